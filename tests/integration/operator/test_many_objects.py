"""The benchmark of many objects, with few of them: that what its page says can be seen is seen."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_all_become_ready_and_an_outage_costs_one_write_for_each_agent() -> None:
    sizes = ["--stores", "3", "--bindings", "15", "--outage", "5"]
    ran = subprocess.run(
        [sys.executable, "bench/operator_scale.py", *sizes],
        cwd=ROOT,
        capture_output=True,
        check=False,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    seen = next(line for line in ran.stdout.splitlines() if line.startswith("| 3 |"))
    assert seen.split("|")[3].strip() == "18"
    assert "by 5 status writes, 1 at most for one binding, and 1 Events" in ran.stdout
    assert ran.stdout.rstrip().endswith("by 5 writes.")
