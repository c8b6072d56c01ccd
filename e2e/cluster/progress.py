"""One line a step, on standard error, so that a long first run shows what it is doing."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic


def say(line: str) -> None:
    """Write one progress line at once."""
    sys.stderr.write(f"[cluster] {line}\n")
    sys.stderr.flush()


@contextmanager
def step(line: str) -> Iterator[None]:
    """Announce a step that may take long, and say how long it took."""
    say(f"{line} ...")
    began = monotonic()
    yield
    say(f"{line}: {monotonic() - began:.1f} s")
