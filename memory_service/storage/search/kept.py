"""The rows of one owner as they are kept between searches, and how they are brought up to a newer state."""

from __future__ import annotations

from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from memory_service.storage.search import reading
from memory_service.storage.search.columns import OwnerIndex, Rows, Snapshot
from memory_service.storage.search.reading import SessionState
from memory_service.storage.statements import Link
from memory_service.storage.states import FactState, HomeState

S = TypeVar("S", HomeState, FactState)

_SESSIONS_FOLLOWED = 100
"""Sessions looked at one by one, each with up to three statements, before it is less work to read all turns anew."""

_SESSION_BYTES = 300
"""What is known of a session: four numbers in a tuple, and its slot in a dictionary."""


class Kept(Generic[S]):
    """An index and the state of the rows that it holds; None where it holds nothing yet."""

    state: S | None
    index: OwnerIndex
    _snapshot: Snapshot | None = None

    @property
    def nbytes(self) -> int:
        """About how much memory the rows take."""
        return self.index.nbytes

    def snapshot(self) -> Snapshot:
        """Return the rows as they are kept now."""
        if self._snapshot is None:
            self._snapshot = self.index.snapshot()
        return self._snapshot

    def bring_up(self, link: Link, state: S) -> None:
        """Read what changed since the kept state; after an error everything is read anew the next time."""
        known, self.state = self.state, None
        if known is None or not self._follow(link, known, state):
            self._load(link, state)
        self.state = state

    def copy(self) -> Kept[S]:
        """Return rows that change apart from these."""
        raise NotImplementedError

    def _load(self, link: Link, state: S) -> None:
        raise NotImplementedError

    def _follow(self, link: Link, known: S, state: S) -> bool:
        """Take over what changed; False where all has to be read anew."""
        raise NotImplementedError

    def _is_mostly_dead(self, dying: int = 0) -> bool:
        """Whether more than half of the slots stand for no row: they keep their vectors and stems."""
        return self.index.dead + dying > len(self.index) // 2


class KeptTurns(Kept[HomeState]):
    """The turns of a home pair, or of one session of it."""

    def __init__(self, home_id: int, session_id: int | None = None) -> None:
        """Start with nothing read."""
        self.state = None
        self.index = OwnerIndex(of_facts=False)
        self._home = home_id
        self._session = session_id
        self._sessions: dict[int, SessionState] = {}

    @property
    def nbytes(self) -> int:
        """About how much memory the rows and what is known of their sessions take."""
        return super().nbytes + _SESSION_BYTES * len(self._sessions)

    def copy(self) -> KeptTurns:
        """Return rows that change apart from these."""
        other = KeptTurns(self._home, self._session)
        other.state, other.index, other._sessions = self.state, self.index.copy(), dict(self._sessions)
        return other

    def _load(self, link: Link, state: HomeState) -> None:
        self.index, self._snapshot = OwnerIndex(of_facts=False), None
        changing = self._changed(link, state)
        if self._session is None:
            batch = reading.all_turns(link, self._home)
        else:
            batch = reading.session_turns(link, self._home, self._session, after_seq=0)
        self.index.append(batch.rows, batch.terms, batch.slots, batch.vectors)
        self._sessions = _last_turns(batch.rows) | {session.session_id: session for session in changing}

    def _follow(self, link: Link, known: HomeState, state: HomeState) -> bool:
        if not known.leads_to(state):
            return False
        new = [session for session in self._changed(link, known) if session != self._known(session.session_id)]
        if not new:
            return True
        if len(new) > _SESSIONS_FOLLOWED or any(session.is_before(self._known(session.session_id)) for session in new):
            return False
        self._snapshot = None
        for session in new:
            old = self._known(session.session_id)
            if session.index_revision != old.index_revision:
                self._look_again(link, session.session_id)
            elif session.last_seq > old.last_seq:
                batch = reading.session_turns(link, self._home, session.session_id, after_seq=old.last_seq)
                self.index.append(batch.rows, batch.terms, batch.slots, batch.vectors)
            self._sessions[session.session_id] = session
        return not self._is_mostly_dead()

    def _changed(self, link: Link, since: HomeState) -> list[SessionState]:
        """Return the sessions with changes that this state may not have seen."""
        if self._session is None:
            return reading.changed_sessions(link, self._home, since=since.horizon)
        found = reading.session_state(link, self._home, self._session)
        return [] if found is None or found.changed < since.horizon else [found]

    def _known(self, session_id: int) -> SessionState:
        return self._sessions.get(session_id) or SessionState(session_id, last_seq=0, index_revision=0, changed=0)

    def _look_again(self, link: Link, session_id: int) -> None:
        """Take over vectors that came late and turns that are new, and drop those that are no longer there.

        An import stores turns below a session's last seq, so they are told by their ids.
        """
        index = self.index
        slots = np.flatnonzero(index.column("is_live") & (index.column("session_ids") == session_id))
        known, there_now = index.column("row_ids")[slots], reading.turn_ids(link, self._home, session_id)
        gone = slots[~np.isin(known, there_now)]
        index.kill(gone)
        slots = np.setdiff1d(slots[~index.column("has_vector")[slots]], gone)
        if len(slots):
            seqs = index.column("seqs")[slots]
            row_ids, vectors = reading.late_vectors(
                link, self._home, session_id, from_seq=int(seqs.min()), upto_seq=int(seqs.max())
            )
            here, there = _matches(index.column("row_ids")[slots], row_ids)
            index.set_vectors(slots[here], vectors[there])
        fresh = np.setdiff1d(there_now, known)
        if len(fresh):
            batch = reading.turns(link, [self._home], fresh.tolist())
            index.append(batch.rows, batch.terms, batch.slots, batch.vectors)


class KeptFacts(Kept[FactState]):
    """The facts of an owner that can ever count: active ones, and superseded ones for `as_of`."""

    def __init__(self, owner_id: int) -> None:
        """Start with nothing read."""
        self.state = None
        self.index = OwnerIndex(of_facts=True)
        self._owner = owner_id

    def copy(self) -> KeptFacts:
        """Return rows that change apart from these."""
        other = KeptFacts(self._owner)
        other.state, other.index = self.state, self.index.copy()
        return other

    def _load(self, link: Link, state: FactState) -> None:
        self.index, self._snapshot = OwnerIndex(of_facts=True), None
        self._append(link, reading.facts(link, self._owner))

    def _follow(self, link: Link, known: FactState, state: FactState) -> bool:
        self._snapshot = None
        rows = reading.facts(link, self._owner)
        live = np.flatnonzero(self.index.column("is_live"))
        here, there = _matches(self.index.column("row_ids")[live], rows.row_ids)
        same = self._unchanged(live[here], rows, there)
        dead = np.setdiff1d(live, live[here][same])
        if self._is_mostly_dead(len(dead)):
            return False
        self.index.kill(dead)
        changed = np.setdiff1d(np.arange(len(rows)), there[same])
        if len(changed):
            self._append(link, rows.take(changed))
        return True

    def _append(self, link: Link, rows: Rows) -> None:
        batch = reading.fact_words(link, self._owner, rows)
        self.index.append(batch.rows, batch.terms, batch.slots, batch.vectors)

    def _unchanged(self, slots: NDArray[np.int64], rows: Rows, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        assert rows.facts is not None
        same: NDArray[np.bool_] = self.index.column("said_at")[slots] == rows.said_at[numbers]
        same &= self.index.column("has_vector")[slots] == rows.facts.has_vector[numbers]
        for name, values in self.index.encode(rows.facts).items():
            old, new = self.index.column(name)[slots], values[numbers]
            same &= (old == new) | (np.isnan(old) & np.isnan(new))
        return same


def _last_turns(rows: Rows) -> dict[int, SessionState]:
    """Return what rows tell of their sessions; the revision, which they do not tell, is none that a session has."""
    session_ids, places = np.unique(rows.session_ids, return_inverse=True)
    last_seqs = np.zeros(len(session_ids), np.int64)
    np.maximum.at(last_seqs, places, rows.seqs)
    pairs = zip(session_ids.tolist(), last_seqs.tolist(), strict=True)
    return {number: SessionState(number, last_seq, index_revision=-1, changed=0) for number, last_seq in pairs}


def _matches(ours: NDArray[np.int64], theirs: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    _, here, there = np.intersect1d(ours, theirs, assume_unique=True, return_indices=True)
    return here.astype(np.int64), there.astype(np.int64)
