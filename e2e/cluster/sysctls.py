"""Kernel settings that a kubelet changes machine-wide; saved before the first cluster, restored after the last."""

import json
from pathlib import Path

from . import home

_CHANGED_BY_KUBELET = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)


def _saved() -> Path:
    return home.runs() / "sysctls.json"


def read() -> dict[str, str]:
    """The settings as they are now."""
    return {name: (Path("/proc/sys") / name).read_text().strip() for name in _CHANGED_BY_KUBELET}


def save() -> None:
    """Remember the machine's settings, unless a cluster that still runs has done so."""
    if not _saved().exists():
        _saved().write_text(json.dumps(read()))


def put_back() -> None:
    """Restore what was remembered. Safe to repeat."""
    if not _saved().exists():
        return
    now = read()
    for name, value in json.loads(_saved().read_text()).items():
        if now[name] != value:
            (Path("/proc/sys") / name).write_text(value)
    _saved().unlink()
