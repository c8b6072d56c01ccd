"""Built images on disk, as an OCI layout: a folder of blobs named by their digest, and an index of images by tag.

A layer that two builds share lies there once, so saving an image after an edit writes its last layer alone, and a node
skips what it has.
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

_TAG = "org.opencontainers.image.ref.name"


@dataclass(frozen=True)
class Layout:
    """The saved builds of one image, the newest last."""

    folder: Path

    def _index(self) -> dict[str, Any]:
        path = self.folder / "index.json"
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"manifests": []}
        return found

    def tags(self) -> list[str]:
        """The tags, in the order they were saved."""
        return [
            entry["annotations"][_TAG] for entry in self._index()["manifests"] if _TAG in entry.get("annotations", {})
        ]

    def _blob(self, digest: str) -> Path:
        algorithm, _, name = digest.partition(":")
        return self.folder / "blobs" / algorithm / name

    def _entry(self, tag: str) -> dict[str, Any]:
        (entry,) = [e for e in self._index()["manifests"] if e.get("annotations", {}).get(_TAG) == tag]
        found: dict[str, Any] = entry
        return found

    def _blobs(self, tag: str) -> list[Path]:
        digest = self._entry(tag)["digest"]
        manifest = json.loads(self._blob(digest).read_text())
        parts = [manifest["config"], *manifest["layers"]]
        return [self._blob(digest), *(self._blob(part["digest"]) for part in parts)]

    def write(self, tag: str, to: IO[bytes]) -> None:
        """Write one image as an archive that `ctr images import` takes."""
        index = json.dumps({"schemaVersion": 2, "manifests": [self._entry(tag)]}).encode()
        with tarfile.open(fileobj=to, mode="w|") as tar:
            tar.add(self.folder / "oci-layout", "oci-layout")
            for blob in self._blobs(tag):
                tar.add(blob, str(blob.relative_to(self.folder)))
            entry = tarfile.TarInfo("index.json")
            entry.size = len(index)
            tar.addfile(entry, io.BytesIO(index))

    def relabel(self, tag: str, to: str, labels: Mapping[str, str]) -> None:
        """Save an image once more, with labels of its own and the same layers."""
        entry = self._entry(tag)
        manifest = json.loads(self._blob(entry["digest"]).read_text())
        config = json.loads(self._blob(manifest["config"]["digest"]).read_text())
        config["config"]["Labels"] = {**(config["config"].get("Labels") or {}), **labels}
        manifest["config"] |= self._add(config)
        index = self._index()
        index["manifests"].append({**entry, **self._add(manifest), "annotations": {_TAG: to}})
        (self.folder / "index.json").write_text(json.dumps(index))

    def _add(self, content: dict[str, Any]) -> dict[str, Any]:
        """Write a blob and return what refers to it."""
        text = json.dumps(content).encode()
        digest = f"sha256:{hashlib.sha256(text).hexdigest()}"
        self._blob(digest).write_bytes(text)
        return {"digest": digest, "size": len(text)}

    def keep(self, tags: Sequence[str]) -> None:
        """Forget all other images, and blobs that no kept one needs."""
        index = self._index()
        index["manifests"] = [self._entry(tag) for tag in tags]
        needed = {blob for tag in tags for blob in self._blobs(tag)}
        (self.folder / "index.json").write_text(json.dumps(index))
        for blob in (self.folder / "blobs").glob("*/*"):
            if blob not in needed:
                blob.unlink()
