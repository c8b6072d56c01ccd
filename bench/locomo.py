"""How well the ranking finds the evidence for questions about long conversations (LoCoMo), arm beside arm.

    python bench/locomo.py --data DIR [--cache DIR] [--conversations 0,1,2]

The data set is not part of the repository; without it the run says so and ends well. Every arm sees the same turns and
the same questions. What is stored of a turn is its speaker, its text with the caption of a shared picture, and its
date: ids never, and the question's category is used for the report only. Vectors come from the built-in model through
a cache outside of the repository.

Abstention asks every question of a conversation that cannot answer it as well, and asks short questions of a handful
of facts; freshness puts pairs of statements, the later one an update of the earlier one, among a conversation's turns.
These sets are in bench/statements.py and need no data set.

Evidence within a budget counts tokens of the block that the service would answer with, frame, dates and quotes
included, by the counter that `--tokens` names.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.statements import PARAPHRASES, UNANSWERABLE, UPDATES
from bench.vectors import CachedEmbedder
from memory_service.contract.scopes import Scope
from memory_service.contract.turns import Role
from memory_service.domain.assembly import Recalled, assemble
from memory_service.domain.candidates import Hits
from memory_service.domain.lexical import query_terms, terms, turn_embedding_text, turn_index_text
from memory_service.domain.quoting import Counter
from memory_service.domain.ranking import DEFAULT_FLOOR, ScopedPool, rank
from memory_service.domain.settling import Detail, settled
from memory_service.domain.weights import DEFAULT_WEIGHTS, Weights
from memory_service.ports.records import Pool
from memory_service.providers.tokens import OfflineTokenCounter

BUDGETS = (256, 512, 1024, 2048)
DEPTH = 120
"""Rows of a ranking that are looked at: more than any budget here has room for."""
RESAMPLES = 2_000
ANSWERABLE = (1, 2, 3, 4)
CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop"}


@dataclass(frozen=True)
class Said:
    """One turn of a conversation."""

    label: str
    session: int
    seq: int
    speaker: str
    text: str
    said_at: datetime


@dataclass(frozen=True)
class Question:
    """A question, the rows that hold its evidence, and its category (for the report)."""

    text: str
    evidence: frozenset[int]
    category: int


@dataclass(frozen=True)
class Conversation:
    """One long conversation with its questions."""

    turns: tuple[Said, ...]
    questions: tuple[Question, ...]
    unanswerable: tuple[str, ...]


class Columns:
    """The turns of a conversation as an owner's rows: what storage would keep and count."""

    def __init__(self, turns: Sequence[Said], embedder: CachedEmbedder) -> None:
        stems = [terms(turn_index_text(t.speaker, Role.USER, t.said_at, t.text)) for t in turns]
        self.vectors = embedder.embed(
            [turn_embedding_text(t.speaker, Role.USER, t.said_at, t.text, None) for t in turns]
        )
        self.lengths = np.array([len(some) for some in stems], np.float32)
        self.postings: dict[str, dict[int, int]] = {}
        for row, some in enumerate(stems):
            for stem in some:
                rows = self.postings.setdefault(stem, {})
                rows[row] = rows.get(row, 0) + 1
        self.row_ids = np.arange(len(turns), dtype=np.int64)
        self.sessions = np.array([t.session for t in turns], np.int64)
        self.seqs = np.array([t.seq for t in turns], np.int64)
        self.said_at = np.array([t.said_at.timestamp() for t in turns], np.float64)

    def pool(self, query: Sequence[str], vector: NDArray[np.float32] | None) -> Pool:
        """Return what storage would answer to a search over every row."""
        size = len(self.row_ids)
        held = [self.postings.get(stem, {}) for stem in query]
        hits = Hits(
            np.array([row for rows in held for row in rows], np.int64),
            np.repeat(np.arange(len(query)), [len(rows) for rows in held]),
            np.array([count for rows in held for count in rows.values()], np.float64),
            len(query),
        )
        cosines = np.full(size, np.nan, np.float32)
        if vector is not None:
            cosines = np.round(np.clip(self.vectors @ vector, 0, 1), 6).astype(np.float32)
        return Pool(
            tier="episode",
            row_ids=self.row_ids,
            session_ids=self.sessions,
            seqs=self.seqs,
            roles=np.zeros(size, np.int8),
            said_at=self.said_at,
            lengths=self.lengths,
            hits=hits,
            cosines=cosines,
            passes=np.ones(size, np.bool_),
            population=size,
            total_length=float(self.lengths.sum()),
            document_counts=np.array([len(rows) for rows in held], np.int64),
            exact=True,
        )


Arm = Callable[[Pool], Sequence[int]]


def recency(pool: Pool) -> Sequence[int]:
    """The newest turns, whatever is asked."""
    return [int(row) for row in np.lexsort((pool.seqs, pool.said_at))[::-1]]


def dense(pool: Pool) -> Sequence[int]:
    """Nearest by meaning."""
    return [int(row) for row in np.lexsort((pool.row_ids, -pool.cosines))]


def with_weights(weights: Weights) -> Arm:
    """Return the arm that ranks with these weights and no floor."""

    def run(pool: Pool) -> Sequence[int]:
        ranking = rank([ScopedPool(Scope.PRIVATE, pool)], top=DEPTH, floor=0.0, weights=weights)
        return [item.row_id for item in ranking.items]

    return run


PLAIN_BM25 = Weights(neighbours=(), session=0, cosine=0, recency=0)
ARMS: dict[str, Arm] = {
    "recency": recency,
    "BM25": with_weights(PLAIN_BM25),
    "dense": dense,
    "ours": with_weights(DEFAULT_WEIGHTS),
}


def load(folder: Path) -> list[Conversation] | None:
    """Return the conversations, or None where the data set is not there."""
    file = folder / "locomo" / "locomo10.json"
    if not file.is_file():
        return None
    return [_conversation(entry) for entry in json.loads(file.read_text())]


def _conversation(entry: dict[str, Any]) -> Conversation:
    turns: list[Said] = []
    talk = entry["conversation"]
    for session in sorted(int(m.group(1)) for key in talk if (m := re.fullmatch(r"session_(\d+)", key))):
        said_at = datetime.strptime(talk[f"session_{session}_date_time"], "%I:%M %p on %d %B, %Y").replace(tzinfo=UTC)
        for seq, turn in enumerate(talk[f"session_{session}"], start=1):
            caption = f" [shares {turn['blip_caption']}]" if turn.get("blip_caption") else ""
            turns.append(Said(turn["dia_id"], session, seq, turn["speaker"], turn["text"] + caption, said_at))
    rows = {turn.label: row for row, turn in enumerate(turns)}
    questions = []
    unanswerable = []
    for qa in entry["qa"]:
        if qa["category"] not in ANSWERABLE:
            unanswerable.append(qa["question"])
            continue
        # Some entries hold several labels, some none that exist; what does not resolve is left out.
        labels = re.findall(r"D\d+:\d+", " ".join(qa.get("evidence", ())))
        evidence = frozenset(rows[label] for label in labels if label in rows)
        if evidence:
            questions.append(Question(qa["question"], evidence, qa["category"]))
    return Conversation(tuple(turns), tuple(questions), tuple(unanswerable))


@dataclass(frozen=True)
class Result:
    """What one arm reached for one question."""

    conversation: int
    category: int
    values: dict[str, float]


def measure(order: Sequence[int], question: Question, turns: Sequence[Said], counter: Counter) -> dict[str, float]:
    """Return every metric of one ranking."""
    evidence = question.evidence
    positions = [place for place, row in enumerate(order) if row in evidence]
    found = {f"R@{k}": sum(place < k for place in positions) / len(evidence) for k in (5, 10, 20)}
    gain = sum(1 / np.log2(place + 2) for place in positions if place < 10)
    ideal = sum(1 / np.log2(place + 2) for place in range(min(10, len(evidence))))
    found["nDCG@10"] = float(gain / ideal)
    found["MRR"] = 1 / (positions[0] + 1) if positions else 0.0
    items = [
        Recalled(
            id=str(row),
            tier="episode",
            text=turns[row].text,
            said_at=turns[row].said_at,
            session=turns[row].session,
            seq=turns[row].seq,
            name=turns[row].speaker,
        )
        for row in order[:DEPTH]
    ]
    for budget in BUDGETS:
        shown = {int(item.id) for item in assemble(items, budget, counter).items}
        found[f"@{budget}"] = len(shown & evidence) / len(evidence)
    return found


def evaluate(
    conversations: Sequence[Conversation],
    embedder: CachedEmbedder,
    arms: dict[str, Arm],
    counter: Counter,
) -> tuple[dict[str, list[Result]], dict[str, float]]:
    """Return each arm's results question by question, and its milliseconds a question."""
    results: dict[str, list[Result]] = {name: [] for name in arms}
    spent = dict.fromkeys(arms, 0.0)
    for number, conversation in enumerate(conversations):
        columns = Columns(conversation.turns, embedder)
        vectors = embedder.embed([question.text for question in conversation.questions])
        for question, vector in zip(conversation.questions, vectors, strict=True):
            pool = columns.pool(query_terms(question.text), vector)
            for name, arm in arms.items():
                begin = time.perf_counter()
                order = arm(pool)
                spent[name] += time.perf_counter() - begin
                values = measure(order, question, conversation.turns, counter)
                results[name].append(Result(number, question.category, values))
    count = sum(len(conversation.questions) for conversation in conversations)
    return results, {name: 1000 * seconds / count for name, seconds in spent.items()}


def mean(results: Sequence[Result], metric: str) -> float:
    """Return the mean over the questions."""
    return float(np.mean([result.values[metric] for result in results])) if results else float("nan")


def margin(ours: Sequence[Result], other: Sequence[Result], metric: str) -> tuple[float, float, float]:
    """Return the paired difference and its 95 % interval by resampling conversations."""
    by_conversation: dict[int, list[float]] = {}
    for a, b in zip(ours, other, strict=True):
        by_conversation.setdefault(a.conversation, []).append(a.values[metric] - b.values[metric])
    groups = [np.array(values) for values in by_conversation.values()]
    random = np.random.default_rng(7)
    means = []
    for _ in range(RESAMPLES):
        chosen = random.integers(0, len(groups), len(groups))
        means.append(np.concatenate([groups[at] for at in chosen]).mean())
    low, high = np.percentile(means, [2.5, 97.5])
    return float(np.concatenate(groups).mean()), float(low), float(high)


def report(results: dict[str, list[Result]], spent: dict[str, float]) -> Iterator[str]:
    """Yield the report's lines."""
    metrics = ["R@5", "R@10", "R@20", "nDCG@10", "MRR", *(f"@{budget}" for budget in BUDGETS)]
    count = len(next(iter(results.values())))
    yield f"{count} questions of categories 1-4 with evidence that resolves; unit: one turn"
    yield f"{'arm':<12}" + "".join(f"{metric:>9}" for metric in metrics) + f"{'ms':>7}"
    for name, some in results.items():
        yield f"{name:<12}" + "".join(f"{mean(some, metric):>9.3f}" for metric in metrics) + f"{spent[name]:>7.2f}"
    yield "R@10 by category"
    for name, some in results.items():
        cells = (
            f"{label} {mean([result for result in some if result.category == category], 'R@10'):.3f}"
            for category, label in CATEGORIES.items()
        )
        yield f"{name:<12}" + "  ".join(cells)
    for metric in ("R@10", "@1024"):
        for name, some in results.items():
            if name != "ours":
                difference, low, high = margin(results["ours"], some, metric)
                yield f"ours - {name}, {metric}: {difference:+.3f} (95 % {low:+.3f} to {high:+.3f})"


FLOORS = (0.1, 0.15, 0.2, 0.25, 0.3, 0.4)


def abstention(conversations: Sequence[Conversation], embedder: CachedEmbedder) -> Iterator[str]:
    """Yield what each floor keeps of what can be answered, and refuses of what cannot."""
    own: list[tuple[Question, list[tuple[int, float]], list[tuple[int, float]]]] = []
    columns = [Columns(conversation.turns, embedder) for conversation in conversations]
    for number, conversation in enumerate(conversations):
        foreign = columns[(number + 1) % len(columns)]
        vectors = embedder.embed([question.text for question in conversation.questions])
        for question, vector in zip(conversation.questions, vectors, strict=True):
            query = query_terms(question.text)
            own.append((question, _scored(columns[number], query, vector), _scored(foreign, query, vector)))
    statements = [Said("", at, 1, "", text, _day(at)) for at, (_, text) in enumerate(PARAPHRASES, start=1)]
    few = Columns(statements, embedder)
    asked = embedder.embed([question for question, _ in PARAPHRASES])
    found = [_scored(few, query_terms(q), v) for (q, _), v in zip(PARAPHRASES, asked, strict=True)]
    unasked = embedder.embed(UNANSWERABLE)
    refused = [_scored(few, query_terms(q), v) for q, v in zip(UNANSWERABLE, unasked, strict=True)]
    yield "floor   own: answered   R@10   other conversation: refused  rows   30 facts: found  refused"
    for floor in FLOORS:
        cells = (
            np.mean([any(score >= floor for _, score in rows) for _, rows, _ in own]),
            np.mean([_recall(rows, question.evidence, floor) for question, rows, _ in own]),
            np.mean([all(score < floor for _, score in rows) for _, _, rows in own]),
            np.mean([sum(score >= floor for _, score in rows[:10]) for _, _, rows in own]),
            np.mean([any(row == at and score >= floor for row, score in rows) for at, rows in enumerate(found)]),
            np.mean([all(score < floor for _, score in rows) for rows in refused]),
        )
        mark = " (default)" if floor == DEFAULT_FLOOR else ""
        yield "{:.2f}   {:>13.4f} {:>6.3f} {:>28.3f} {:>5.2f} {:>16.2f} {:>8.2f}".format(floor, *cells) + mark


def freshness(conversations: Sequence[Conversation], embedder: CachedEmbedder) -> Iterator[str]:
    """Yield how often the later of two statements goes first, as ranked and as settled."""
    for number, conversation in enumerate(conversations[:3]):
        turns = list(conversation.turns)
        begin, span = turns[0].said_at, turns[-1].said_at - turns[0].said_at
        speaker = turns[0].speaker
        first = len(turns)
        for at, (_, earlier, later) in enumerate(UPDATES):
            turns.append(Said("", 1_000 + 2 * at, 1, speaker, earlier, begin + span * 0.3))
            turns.append(Said("", 1_001 + 2 * at, 1, speaker, later, begin + span * 0.8))
        columns = Columns(turns, embedder)
        details = {("episode", row): Detail.of(turn.text) for row, turn in enumerate(turns)}
        newer = {"ranked": 0, "settled": 0}
        vectors = embedder.embed([question for question, _, _ in UPDATES])
        for at, ((question, _, _), vector) in enumerate(zip(UPDATES, vectors, strict=True)):
            items = rank([ScopedPool(Scope.PRIVATE, columns.pool(query_terms(question), vector))], top=20).items
            for name, order in (("ranked", items), ("settled", settled(items, details))):
                rows = [item.row_id for item in order] + [first + 2 * at]
                newer[name] += first + 2 * at + 1 in rows and rows.index(first + 2 * at + 1) < rows.index(
                    first + 2 * at
                )
        yield f"freshness in conversation {number}: later statement first in " + ", ".join(
            f"{count / len(UPDATES):.2f} {name}" for name, count in newer.items()
        )


def _scored(columns: Columns, query: Sequence[str], vector: NDArray[np.float32]) -> list[tuple[int, float]]:
    ranking = rank([ScopedPool(Scope.PRIVATE, columns.pool(query, vector))], top=DEPTH, floor=0.0)
    return [(item.row_id, item.score) for item in ranking.items]


def _recall(rows: Sequence[tuple[int, float]], evidence: frozenset[int], floor: float) -> float:
    kept = [row for row, score in rows if score >= floor][:10]
    return len(evidence & set(kept)) / len(evidence)


def _day(number: int) -> datetime:
    return datetime(2026, 3, 1 + number % 28, tzinfo=UTC)


def main() -> int:
    """Run the benchmark from the command line."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--data", type=Path, required=True, help="folder that holds locomo/locomo10.json")
    arguments.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "memplane-bench")
    arguments.add_argument("--conversations", default="", help="numbers from 0, with commas; all if left out")
    arguments.add_argument("--tokens", choices=("o200k", "characters"), default="o200k")
    given = arguments.parse_args()
    conversations = load(given.data)
    if conversations is None:
        print(f"locomo: skipped, there is no locomo/locomo10.json in {given.data}")
        return 0
    if given.conversations:
        conversations = [conversations[int(number)] for number in given.conversations.split(",")]
    embedder = CachedEmbedder(given.cache)
    results, spent = evaluate(conversations, embedder, ARMS, counter(given.tokens))
    for lines in (report(results, spent), abstention(conversations, embedder), freshness(conversations, embedder)):
        print("\n".join(lines), end="\n\n")
    return 0


class _Characters:
    """Four characters a token: for a run without a tokenizer."""

    def count(self, text: str) -> int:
        return (len(text) + 3) // 4

    def cut(self, text: str, max_tokens: int) -> str:
        return text[: 4 * max_tokens]


class _Remembering:
    """The service's counter, which remembers what it has counted: every arm shows the same lines."""

    def __init__(self) -> None:
        self._counter = OfflineTokenCounter()
        self._known: dict[str, int] = {}

    def count(self, text: str) -> int:
        known = self._known.get(text)
        if known is None:
            known = self._counter.count(text)
            if len(text) < 2_000 and len(self._known) < 200_000:
                self._known[text] = known
        return known

    def cut(self, text: str, max_tokens: int) -> str:
        return self._counter.cut(text, max_tokens)


def counter(name: Literal["o200k", "characters"]) -> Counter:
    """Return a token counter by name."""
    return _Remembering() if name == "o200k" else _Characters()


if __name__ == "__main__":
    raise SystemExit(main())
