"""The service's process without its worker, so that a run measures a request alone: python -m bench.serving FILE."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from memory_service.contract.config import ServiceConfig
from memory_service.process import serve


def main() -> int:
    """Serve the configuration in a file."""
    serve.runs_worker = lambda _config: False  # type: ignore[assignment]
    return serve.run(ServiceConfig.model_validate(json.loads(Path(sys.argv[1]).read_text())))


if __name__ == "__main__":
    sys.exit(main())
