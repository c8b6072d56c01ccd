"""Benchmarks: `make bench`, or `python -m bench` with the names of some. Nothing leaves this machine's loopback."""

import os
import tempfile
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "memplane" / "bench"
"""What is kept between runs: vectors of texts, and the environments of other systems."""

os.environ.update(
    ANONYMIZED_TELEMETRY="False",
    HF_HUB_OFFLINE="1",
    MEM0_DIR=os.environ.get("MEM0_DIR") or tempfile.gettempdir(),
    MEM0_TELEMETRY="False",
    ORT_DISABLE_TELEMETRY="1",
)
