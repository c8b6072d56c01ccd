"""Image archives written without a builder: a root file system of a few static programs.

`PAUSE` holds a pod's network, `BUSYBOX` is the volume provisioner's helper and a small test pod (its wget cannot
resolve names: static programs have no name service), `COREDNS` is the cluster's DNS.
"""

import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import debian, programs

PAUSE = "localhost/memplane-test/pause:1"
BUSYBOX = "localhost/memplane-test/busybox:1"
COREDNS = "localhost/memplane-test/coredns:1"
_APPLETS = ("sh", "cat", "chmod", "date", "echo", "head", "httpd", "id", "kill", "ls", "mkdir", "nc", "rm", "sleep")
_MORE_APPLETS = ("nslookup", "printf", "stat", "sync", "tail", "touch", "true", "wc", "wget")


def write_basic_images(to: Path) -> Path:
    """Write pause, busybox and CoreDNS into one archive."""
    busybox = Path(shutil.which("busybox", path=debian.SEARCH_PATH) or "/bin/busybox")
    small = _layer(
        {"bin/busybox": busybox},
        links={f"bin/{name}": "busybox" for name in (*_APPLETS, *_MORE_APPLETS)},
        texts={"etc/passwd": "root:x:0:0::/:/bin/sh\nnobody:x:65532:65532::/tmp:/bin/sh\n"},
    )
    dns = _layer({"coredns": programs.path("coredns")}, links={}, texts={})
    return _write(
        to,
        {
            PAUSE: (small, ["/bin/sleep", "2147483647"]),
            BUSYBOX: (small, ["/bin/sh"]),
            COREDNS: (dns, ["/coredns"]),
        },
    )


def _layer(files: Mapping[str, Path], links: Mapping[str, str], texts: Mapping[str, str]) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as tar:
        for folder, mode in (("bin", 0o755), ("etc", 0o755), ("tmp", 0o1777)):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            tar.addfile(entry)
        for name, content in [
            *((name, path.read_bytes()) for name, path in files.items()),
            *((name, text.encode()) for name, text in texts.items()),
        ]:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755
            tar.addfile(entry, io.BytesIO(content))
        for name, target in links.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
    return written.getvalue()


def _write(to: Path, images: Mapping[str, tuple[bytes, Sequence[str]]]) -> Path:
    """Write images of one layer each in the form that `docker save` has, which every runtime reads."""
    files: dict[str, bytes] = {}
    manifest = []
    for name, (layer, command) in images.items():
        digest = hashlib.sha256(layer).hexdigest()
        config = json.dumps(
            {
                "architecture": "amd64",
                "os": "linux",
                "config": {"Env": ["PATH=/bin"], "Entrypoint": list(command)},
                "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
            }
        ).encode()
        config_name = f"{hashlib.sha256(config).hexdigest()}.json"
        layer_name = f"{digest}.tar"
        files |= {config_name: config, layer_name: layer}
        manifest.append({"Config": config_name, "RepoTags": [name], "Layers": [layer_name]})
    files["manifest.json"] = json.dumps(manifest).encode()
    with tarfile.open(to, "w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return to
