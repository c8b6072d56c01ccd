"""Logs as JSON lines: a constant message and the fields of `extra`."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final

_STANDARD: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", "settings"}


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        content: dict[str, str | int | float] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        content |= {
            key: value
            for key, value in record.__dict__.items()
            if key not in _STANDARD and isinstance(value, str | int | float | bool)
        }
        if record.exc_info:
            content["error"] = self.formatException(record.exc_info)
        return json.dumps(content, ensure_ascii=False)


def configure(level: str) -> None:
    """Write all logs to stderr; kopf's per-object chatter is kept down."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in ("kopf", "asyncio", "aiohttp"):
        logging.getLogger(name).setLevel(logging.WARNING)
