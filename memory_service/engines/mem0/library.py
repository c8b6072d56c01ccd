"""Importing Mem0 without its side effects: no telemetry, no files in anyone's home, no loggers changed.

Nothing else in the service imports `mem0`, and this module does so only inside `load`.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from memory_service.contract.health import Reason
from memory_service.errors import Misconfigured

SILENCED_LOGGERS = ("posthog", "urllib3")
"""Importing Mem0 silences these for the whole process; they are put back."""

PARTS = "memory_service.engines.mem0.parts"

_lock = threading.Lock()


def load() -> None:
    """Make `engines.mem0.parts` importable: import Mem0 the first time (seconds; call it off the event loop).

    Raises:
        Misconfigured: the package is not installed.
    """
    with _lock:
        if PARTS in sys.modules:
            return
        try:
            with _quiet_import():
                importlib.import_module(PARTS)
        except ImportError as error:
            raise Misconfigured(
                f"the engine 'mem0' needs the package {error.name}; install memplane[service] "
                "or set the engine to 'native'",
                reason=Reason.NOT_CONFIGURED,
            ) from error
        _settle()


@contextmanager
def _quiet_import() -> Iterator[None]:
    levels = {name: logging.getLogger(name).level for name in SILENCED_LOGGERS}
    # Both are read at import only. The folder gets a settings file at once, and nothing afterwards.
    os.environ["MEM0_TELEMETRY"] = "False"
    given = os.environ.get("MEM0_DIR")
    with _scratch_folder() as folder:
        os.environ["MEM0_DIR"] = str(folder)
        try:
            yield
        finally:
            if given is None:
                del os.environ["MEM0_DIR"]
            else:
                os.environ["MEM0_DIR"] = given
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)


@contextmanager
def _scratch_folder() -> Iterator[Path]:
    try:
        folder = tempfile.TemporaryDirectory(prefix="memplane-mem0-", ignore_cleanup_errors=True)
    except OSError:
        # Nothing is writable. An existing folder will do: Mem0 goes on when it cannot write its settings there.
        yield Path(__file__).parent
    else:
        with folder as path:
            yield Path(path)


def _settle() -> None:
    """Switch off what is left to switch off after the import."""
    from mem0.memory import telemetry  # type: ignore[import-untyped]
    from mem0.utils import spacy_models  # type: ignore[import-untyped]

    telemetry.MEM0_TELEMETRY = False  # It may have been imported before by somebody else.
    # Where spaCy is installed without its model, Mem0 would download one. These say that it tried.
    spacy_models._load_failed_full = True
    spacy_models._load_failed_lemma = True
    # It logs texts of memories and messages at every level. What matters of it reaches the caller as an exception.
    logger = logging.getLogger("mem0")
    logger.setLevel(logging.CRITICAL + 1)
    logger.propagate = False
    logger.addHandler(logging.NullHandler())
