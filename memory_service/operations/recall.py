"""`recall`: embed the query, read candidates by owner, rank them (pure), and assemble a block inside a budget.

Recall writes nothing, and a part that is away makes it poorer, never wrong: it is named in `degraded`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from pydantic import TypeAdapter

from memory_service.contract.items import Item
from memory_service.contract.limits import MAX_TOP_K
from memory_service.contract.scopes import Scope, Tier
from memory_service.contract.verbs import (
    Degraded,
    LongTerm,
    MediumTerm,
    Omitted,
    Outcome,
    RecallMode,
    RecallRequest,
    RecallResponse,
    ShortTerm,
    Usage,
)
from memory_service.domain import lexical, scopes
from memory_service.domain.assembly import Recalled, assemble, digest_block
from memory_service.domain.callers import Caller
from memory_service.domain.owners import Owner
from memory_service.domain.ranking import DEFAULT_FLOOR, Ranked, RankOutcome, ScopedPool, rank
from memory_service.domain.settling import Detail, settled
from memory_service.domain.window import Window
from memory_service.errors import ModelUnavailable, StorageUnavailable
from memory_service.operations.generations import read_generation
from memory_service.operations.items import episode_id, episode_item, fact_item
from memory_service.operations.owners import resolve_owners, resolve_sessions
from memory_service.operations.services import Services
from memory_service.operations.turns import shown_answer
from memory_service.operations.windows import read_window
from memory_service.ports.process import Meter
from memory_service.ports.records import (
    DigestRow,
    Episode,
    FactRow,
    ItemFilters,
    SearchQuery,
    SessionRow,
    TurnRow,
    Vector,
)
from memory_service.ports.storage import Transaction

_OMITTED: TypeAdapter[tuple[Omitted, ...]] = TypeAdapter(tuple[Omitted, ...])
"""Makes all of them in one call, since there are many."""
SPARE = 2
"""How many times `top_k` rows are ranked, so that some stand in for those that are duplicates or too long."""
MOST_RANKED = 150
"""Rows whose text is read for one recall at most."""


async def recall(services: Services, caller: Caller, request: RecallRequest) -> RecallResponse:
    """Return what is remembered about a query, how it went, what was left out and what was missing.

    `outcome` speaks of the long-term tier where it is included, else of the others.

    Raises:
        Forbidden, ScopeUnresolved, InvalidRequest: the call itself is wrong; outages never raise.
    """
    plan = _plan(caller, request)
    if request.mode is RecallMode.DISABLE:
        return RecallResponse(outcome=Outcome.DISABLED)
    degraded = [
        Degraded(part=f"scope:{skipped.scope.value}", reason=skipped.reason.value)
        for skipped in plan.skipped
        # A call that names no session asks for none; a user whom the binding expects and nobody named is missing.
        if skipped.reason is scopes.SkipReason.PRINCIPAL_MISSING and caller.is_bound
    ]
    wants_long_term = Tier.LONG_TERM in request.include and services.config.long_term.enabled
    vector = None
    if wants_long_term and request.query.strip():
        try:
            vector = await services.embedder.embed_query(request.query)
        except ModelUnavailable as error:
            degraded.append(Degraded(part="embedding", reason=error.reason))
    look = _Look(services, caller, request, plan, vector if wants_long_term else None, wants_long_term)
    try:
        answer = await services.storage.read(look)
    except StorageUnavailable as error:
        answer = _unavailable(error)
    if degraded:
        answer = answer.model_copy(update={"degraded": (*answer.degraded, *degraded)})
    return _counted(answer, services.meter)


def recall_unopened(meter: Meter, caller: Caller, request: RecallRequest, error: StorageUnavailable) -> RecallResponse:
    """Return the answer of a service that has not opened its storage: the storage is missing, and a recall that is
    switched off, or wrong by itself, is so all the same.

    Raises:
        Forbidden, ScopeUnresolved, InvalidRequest: as for `recall`.
    """
    _plan(caller, request)
    if request.mode is RecallMode.DISABLE:
        return RecallResponse(outcome=Outcome.DISABLED)
    return _counted(_unavailable(error), meter)


def _plan(caller: Caller, request: RecallRequest) -> scopes.ReadPlan:
    return scopes.read_plan(caller, request.scopes, request.session_id, request.workspace, request.mode)


def _unavailable(error: StorageUnavailable) -> RecallResponse:
    missing = Degraded(part="storage", reason=error.reason)
    return RecallResponse(outcome=Outcome.UNAVAILABLE, degraded=(missing,))


def _counted(answer: RecallResponse, meter: Meter) -> RecallResponse:
    meter.count("recalls", outcome=answer.outcome.value)
    for part in answer.degraded:
        meter.count("recall_degraded", part=part.part, reason=part.reason)
    return answer


@dataclass(frozen=True)
class _Look:
    """One recall inside one snapshot: everything that it reads and decides, in order."""

    services: Services
    caller: Caller
    request: RecallRequest
    plan: scopes.ReadPlan
    vector: Vector | None
    wants_long_term: bool

    def __call__(self, tx: Transaction) -> RecallResponse:
        self._look_up_owners(tx)
        session = self._session(tx)
        window = self._window(tx, session)
        digest = self._digest(tx, session)
        medium_term = MediumTerm()
        if digest is not None:
            block = digest_block(digest.summary, digest.created_at)
            medium_term = MediumTerm(summary=digest.summary, version=digest.version, block=block)
        digest_tokens = self.services.counter.count(medium_term.block) if medium_term.block else 0
        degraded = [Degraded(part="short_term", reason="WindowCut")] if window is not None and window.cut else []
        found = self._long_term(tx, session, window) if self.wants_long_term else None
        turns = tuple(shown_answer(shown) for shown in window.turns) if window is not None else ()
        usage = Usage(
            tokens=(found.tokens if found else 0) + digest_tokens + (window.tokens if window else 0),
            long_term=found.tokens if found else 0,
            medium_term=digest_tokens,
            short_term=window.tokens if window else 0,
        )
        return RecallResponse(
            outcome=self._outcome(found, bool(turns or digest)),
            long_term=LongTerm(items=found.items, block=found.block) if found else LongTerm(),
            medium_term=medium_term,
            short_term=ShortTerm(window=turns),
            usage=usage,
            omitted=found.omitted if found else (),
            degraded=tuple(degraded),
            generation=read_generation(tx, self.caller, self.request.session_id),
        )

    def _look_up_owners(self, tx: Transaction) -> None:
        """Find all owners that this recall names in one look; the transaction keeps what it found."""
        named = {*scopes.generation_owners(self.caller, self.request.session_id)}
        for read in self.plan.reads if self.wants_long_term else ():
            named.update(owner for owner in (*read.facts, *read.episodes) if isinstance(owner, Owner))
        (tx.owners.find_searched if self.wants_long_term else tx.owners.find)(sorted(named))

    def _outcome(self, found: _Found | None, has_session_memory: bool) -> Outcome:
        if found is not None:
            return found.outcome
        if Tier.LONG_TERM in self.request.include and not self.services.config.long_term.enabled:
            return Outcome.UNCONFIGURED
        return Outcome.APPLIED if has_session_memory else Outcome.NO_MATCHES

    def _session(self, tx: Transaction) -> SessionRow | None:
        if self.request.session_id is None:
            return None
        owner = scopes.session_owner(self.caller, self.request.session_id, self.request.workspace)
        return tx.sessions.find(owner)

    def _window(self, tx: Transaction, session: SessionRow | None) -> Window[TurnRow] | None:
        if session is None or Tier.SHORT_TERM not in self.request.include:
            return None
        return read_window(tx, session, self.services.config, self.services.counter)

    def _digest(self, tx: Transaction, session: SessionRow | None) -> DigestRow | None:
        if session is None or Tier.MEDIUM_TERM not in self.request.include:
            return None
        return tx.digests.latest(session.id)

    def _long_term(self, tx: Transaction, session: SessionRow | None, window: Window[TurnRow] | None) -> _Found:
        config, request = self.services.config.long_term, self.request
        floor = request.score_floor
        if floor is None:
            floor = config.score_floor if config.score_floor is not None else DEFAULT_FLOOR
        query = SearchQuery(lexical.query_terms(request.query), self.vector, _filters(request, tx.now()))
        if not query.terms and query.vector is None:
            return _Found(Outcome.NO_MATCHES)
        budget = request.token_budget or self.caller.policy.client_params.token_budget
        top_k = request.top_k or (config.default_top_k if budget is None else MAX_TOP_K)
        searched = self._pools(tx, query, session, window)
        ranking = rank(searched.pools, top=min(SPARE * top_k, MOST_RANKED), floor=floor)
        rows = _Rows.fetch(tx, searched, ranking.items).settled(query.terms)
        assembly = assemble(rows.recalled(), budget, self.services.counter, most=top_k)
        omitted: dict[str, str] = {entry.id: entry.reason for entry in assembly.left_out}
        chosen = {item.id for item in assembly.items}
        outcome = Outcome(ranking.outcome.value)
        if ranking.outcome is RankOutcome.APPLIED and not chosen:
            outcome = Outcome.BUDGET_EXHAUSTED
        left_facts = tx.facts.ids(searched.owner_ids, [left.row_id for left in ranking.left_out if left.tier == "fact"])
        for left in ranking.left_out:
            if left.tier == "episode":
                omitted.setdefault(episode_id(left.row_id), left.reason)
            elif left.row_id in left_facts:
                omitted.setdefault(left_facts[left.row_id], left.reason)
        return _Found(
            outcome,
            items=tuple(rows.items(chosen, explain=request.explain)),
            block=assembly.block,
            tokens=assembly.tokens,
            omitted=_OMITTED.validate_python([{"id": name, "reason": reason} for name, reason in omitted.items()]),
        )

    def _pools(
        self, tx: Transaction, query: SearchQuery, session: SessionRow | None, window: Window[TurnRow] | None
    ) -> _Searched:
        shown = None
        if session is not None and window is not None and window.turns:
            shown = (session.id, window.turns[0].turn.seq - 1)
        pools: list[ScopedPool] = []
        owner_ids: set[int] = set()
        for read in self.plan.reads:
            owners = resolve_owners(tx, read.facts)
            pools += [ScopedPool(read.scope, tx.search.facts(owner, query)) for owner in owners]
            owner_ids.update(owner.id for owner in owners)
            if not self.services.config.long_term.episodes:
                continue
            for entry in read.episodes:
                if read.scope is Scope.SESSION:
                    for found in resolve_sessions(tx, (entry,)):
                        home = tx.owners.get(found.home_id)
                        homes = [home] if home is not None else []
                        owner_ids.update(home.id for home in homes)
                        pools.append(ScopedPool(read.scope, tx.search.episodes(homes, query, session=found), shown))
                elif homes := resolve_owners(tx, (entry,)):
                    owner_ids.update(home.id for home in homes)
                    pools.append(ScopedPool(read.scope, tx.search.episodes(homes, query, session=None), shown))
        return _Searched(pools, owner_ids)


@dataclass(frozen=True)
class _Searched:
    """The candidates, and the owners that were read for them: their rows are fetched from those alone."""

    pools: list[ScopedPool]
    owner_ids: set[int]


@dataclass(frozen=True)
class _Found:
    outcome: Outcome
    items: tuple[Item, ...] = ()
    block: str = ""
    tokens: int = 0
    omitted: tuple[Omitted, ...] = ()


@dataclass(frozen=True)
class _Rows:
    """The ranked rows with what was stored for them; a row that went meanwhile is left out."""

    ranked: Sequence[Ranked]
    facts: Mapping[int, FactRow]
    episodes: Mapping[int, Episode]

    @classmethod
    def fetch(cls, tx: Transaction, searched: _Searched, ranked: Sequence[Ranked]) -> _Rows:
        owner_ids = searched.owner_ids
        facts = tx.facts.by_row_ids(owner_ids, [entry.row_id for entry in ranked if entry.tier == "fact"])
        episodes = tx.turns.get(owner_ids, [entry.row_id for entry in ranked if entry.tier == "episode"])
        there = [entry for entry in ranked if entry.row_id in (facts if entry.tier == "fact" else episodes)]
        return cls(there, facts, episodes)

    def settled(self, query_terms: Sequence[str]) -> _Rows:
        """Return the rows in their final order, now that what they say is there."""
        details: dict[tuple[str, int], Detail] = {}
        for entry in self.ranked:
            if entry.tier == "fact":
                fact = self.facts[entry.row_id]
                details[entry.tier, entry.row_id] = Detail(fact.text, fact.importance)
            else:
                details[entry.tier, entry.row_id] = Detail(self.episodes[entry.row_id].turn.text)
        return replace(self, ranked=settled(self.ranked, details, query_terms=query_terms))

    def recalled(self) -> list[Recalled]:
        """Return the rows as assembly takes them, best first."""
        return [self._recalled(entry) for entry in self.ranked]

    def items(self, chosen: Collection[str], *, explain: bool) -> list[Item]:
        """Return the rows with a chosen id as they are answered, best first."""
        return [
            self._item(entry, dict(entry.parts) if explain else None)
            for entry in self.ranked
            if self._id(entry) in chosen
        ]

    def _id(self, entry: Ranked) -> str:
        return self.facts[entry.row_id].id if entry.tier == "fact" else episode_id(entry.row_id)

    def _recalled(self, entry: Ranked) -> Recalled:
        if entry.tier == "fact":
            fact = self.facts[entry.row_id]
            return Recalled(id=fact.id, tier="fact", text=fact.text, said_at=fact.said_at)
        turn = self.episodes[entry.row_id].turn
        return Recalled(
            id=episode_id(turn.id),
            tier="episode",
            text=turn.text,
            said_at=turn.said_at,
            session=turn.session_id,
            seq=turn.seq,
            role=turn.role.value,
            name=turn.name,
        )

    def _item(self, entry: Ranked, explain: dict[str, float] | None) -> Item:
        if entry.tier == "fact":
            return fact_item(self.facts[entry.row_id], score=entry.score, explain=explain)
        episode = self.episodes[entry.row_id]
        return episode_item(
            episode.turn,
            session_id=episode.session,
            scope=entry.scope,
            workspace=episode.workspace,
            score=entry.score,
            explain=explain,
        )


def _filters(request: RecallRequest, now: datetime) -> ItemFilters:
    given = request.filters
    return ItemFilters(
        now=now,
        kinds=frozenset(given.kinds) if given.kinds is not None else None,
        categories=frozenset(given.categories) if given.categories is not None else None,
        tags=frozenset(given.tags) if given.tags is not None else None,
        since=given.since,
        until=given.until,
        min_importance=given.min_importance,
        as_of=given.as_of,
    )
