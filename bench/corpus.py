"""Sentences for the benchmarks: made up from a seed, so that a run needs no data set; no two of them are the same."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

_WHO = "I,We,My sister,My neighbour,Our team,The supplier,The landlord,Dana,Kim,Priya,Marcus,The clinic".split(",")
_DID = (
    "moved,ordered,cancelled,finished,repaired,booked,painted,sold,borrowed,forgot,measured,replaced,"
    "planned,tasted,recorded,translated,packed,returned,signed,delivered"
).split(",")
_WHAT = (
    "the blue bicycle,a crate of pears,the quarterly report,two concert tickets,the kitchen door,an old violin,"
    "the staging database,a pair of boots,the garden fence,the tax form,a jar of honey,the night train,"
    "the wedding cake,an electric kettle,the budget sheet,a telescope,the rental car,the vaccination record"
).split(",")
_WHERE = (
    "in Hamburg,near the harbour,at the office,in the cellar,on the third floor,at grandmother's house,"
    "behind the station,in the mountains,at the market,by the lake,in Lisbon,on the ferry"
).split(",")
_WHY = (
    "because the old one broke,before the holidays,after the long meeting,although it rained,since it was cheap,"
    "while the children slept,so that nobody had to wait,despite the strike,for the anniversary,without a receipt"
).split(",")


def sentences(seed: int = 0) -> Iterator[str]:
    """Yield sentences of fifteen words or so, for ever."""
    chooser = random.Random(seed)
    for number in itertools.count(1):
        who, did, what, where, why = (chooser.choice(some) for some in (_WHO, _DID, _WHAT, _WHERE, _WHY))
        yield f"{who} {did} {what} {where} {why}, note {seed}-{number}."


def some(count: int, seed: int = 0) -> list[str]:
    """Return so many sentences."""
    return list(itertools.islice(sentences(seed), count))


def questions(count: int, seed: int = 0) -> list[str]:
    """Return so many different questions that the sentences answer."""
    chooser = random.Random(seed)
    asked: dict[str, None] = {}
    while len(asked) < count:
        who, did, what = chooser.choice(_WHO), chooser.choice(_DID), chooser.choice(_WHAT)
        asked[f"When was it that {who.lower()} {did} {what} {chooser.choice(_WHERE)}?"] = None
    return list(asked)
