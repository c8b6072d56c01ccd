"""JSON lines on stderr: the message, its fields and the request id; never turn text, fact text, tokens or DSNs."""

from __future__ import annotations

import contextvars
import json
import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

request_id: contextvars.ContextVar[str | None] = contextvars.ContextVar("request_id", default=None)
"""The id of the request that this task serves; it travels into job rows and out again."""

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record with its extra fields; of an exception, its type and place only."""
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (current := request_id.get()) is not None:
            entry["request_id"] = current
        entry.update({key: value for key, value in vars(record).items() if key not in _STANDARD})
        if record.exc_info and record.exc_info[0] is not None:
            entry["exception"] = record.exc_info[0].__name__
            entry["traceback"] = _frames(record)
        return json.dumps(entry, default=str, ensure_ascii=False)


def _frames(record: logging.LogRecord) -> list[str]:
    """Return file, line and function of each frame, without source lines and without the exception's own text.

    An exception's text may quote what a user said (a database error does), so it is not logged.
    """
    frames: list[str] = []
    traceback = record.exc_info[2] if record.exc_info else None
    while traceback is not None:
        code = traceback.tb_frame.f_code
        frames.append(f"{code.co_filename}:{traceback.tb_lineno} {code.co_name}")
        traceback = traceback.tb_next
    return frames


def set_up_logging(level: str = "INFO", stream: TextIO | None = None) -> None:
    """Send this program's logs to stderr as JSON lines, and keep libraries at warnings, Python's own included."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("memory_service").setLevel(level)
    logging.captureWarnings(True)
