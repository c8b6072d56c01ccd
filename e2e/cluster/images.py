"""The project's images, built by its own Dockerfiles and without a registry.

The base image is a Debian of a few packages that mmdebstrap unpacks; buildah builds the Dockerfiles of images/ on it.
An image's name carries a hash of all that goes into it, and what was built stays in the cache, so that a second run
with the same sources builds nothing.
"""

import fcntl
import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from . import debian, home
from .commands import run
from .layouts import Layout
from .progress import step

_BASE_PACKAGES = (
    "base-files",
    "base-passwd",
    "ca-certificates",
    "coreutils",
    "dash",
    "libgomp1",
    "libstdc++6",
    "python3",
    "python3-venv",
    "tzdata",
)
_RECIPE = "images/Dockerfile"
_SOURCES = ("pyproject.toml", "README.md", "LICENSE", "constraints.txt", "memory_service", "operator")
_BUILD_LIMIT_SECONDS = 1800
_KEPT_BUILDS = 4  # of each image, newer ones included; they share all layers but the last, mostly


@dataclass(frozen=True)
class Image:
    """A built image: the name pods say, and where it is saved."""

    reference: str
    layout: Layout

    @property
    def repository(self) -> str:
        """The name without the tag."""
        return self.reference.rpartition(":")[0]

    @property
    def tag(self) -> str:
        return self.reference.rpartition(":")[2]


def service() -> Image:
    """The memory service's image; also a small Python pod that has the client."""
    return _build("service", _RECIPE, _SOURCES)


def operator() -> Image:
    """The operator's image."""
    return _build("operator", _RECIPE, _SOURCES)


def postgres() -> Image:
    """PostgreSQL with pgvector, configured as the world's images are (POSTGRES_PASSWORD, PGDATA)."""
    return _build("postgres", "images/postgres/Dockerfile", ("images/postgres/start.sh",))


def is_forgotten(reference: str) -> bool:
    """Whether an image is an earlier one of ours that the cache no longer has."""
    name, _, key = reference.removeprefix("localhost/memplane/").partition(":")
    return reference.startswith("localhost/memplane/") and key not in _layout(name).tags()


def _files(names: Sequence[str]) -> Iterator[Path]:
    for name in names:
        path = home.REPOSITORY / name
        found = sorted(path.rglob("*")) if path.is_dir() else [path]
        yield from (file for file in found if file.is_file() and "__pycache__" not in file.parts)


def _digest(recipe: str, sources: Sequence[str]) -> str:
    digest = hashlib.sha256(_base_key().encode())
    for file in _files([recipe, f"{recipe}.dockerignore", *sources]):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(home.REPOSITORY)} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:12]


def _layout(name: str) -> Layout:
    return Layout(home.images() / "built" / name)


def _build(name: str, recipe: str, sources: Sequence[str]) -> Image:
    """Build the target of this name."""
    key = _digest(recipe, sources)
    reference = f"localhost/memplane/{name}:{key}"
    layout = _layout(name)
    if key in layout.tags():
        return Image(reference, layout)
    debian.require_image_packages()
    layout.folder.mkdir(parents=True, exist_ok=True)
    with _one_builder_at_a_time():
        base = _base()
        with step(f"building {reference}"):
            _buildah(
                "build",
                "--layers",
                "--isolation=chroot",
                "--network=host",
                "--volume=/etc/ssl/certs:/etc/ssl/certs:ro",
                f"--secret=id=pip.conf,src={_pip_settings()}",
                f"--build-arg=BASE={base}",
                f"--ignorefile={home.REPOSITORY / recipe}.dockerignore",
                f"--file={home.REPOSITORY / recipe}",
                f"--target={name}",
                f"--tag={reference}",
                str(home.REPOSITORY),
            )
        _save(reference, layout, key)
    return Image(reference, layout)


def newer(image: Image) -> Image:
    """Another image of the same programs, as the next release has one: other name, other digest."""
    tag = f"{image.tag}-newer"
    if tag not in image.layout.tags():
        with _one_builder_at_a_time():
            image.layout.relabel(image.tag, tag, {"org.opencontainers.image.version": "newer"})
    return Image(f"{image.repository}:{tag}", image.layout)


def _save(reference: str, layout: Layout, key: str) -> None:
    """Put a built image into its layout, and forget the oldest ones there."""
    with step(f"saving {reference}"):
        _buildah("push", "--disable-compression", reference, f"oci:{layout.folder}:{key}")
    kept = layout.tags()[-_KEPT_BUILDS:]
    repository = reference.rpartition(":")[0]
    forgotten = {f"{repository}:{old}" for old in layout.tags() if old not in kept}
    layout.keep(kept)
    if gone := forgotten & set(_built_names()):
        _buildah("rmi", *sorted(gone))


@contextmanager
def _one_builder_at_a_time() -> Iterator[None]:
    with (home.images() / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _buildah(*arguments: str) -> str:
    storage = home.images() / "storage.conf"
    storage.write_text(
        f'[storage]\ndriver = "overlay"\ngraphroot = "{home.images()}/storage"\nrunroot = "{home.images()}/running"\n'
    )
    environment = {**os.environ, "CONTAINERS_STORAGE_CONF": str(storage), "BUILDAH_ISOLATION": "chroot"}
    return run(["buildah", *arguments], environment=environment, timeout_seconds=_BUILD_LIMIT_SECONDS)


def _built_names() -> list[str]:
    return _buildah("images", "--format", "{{.Name}}:{{.Tag}}").splitlines()


def _suite() -> str:
    lines = Path("/etc/os-release").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)["VERSION_CODENAME"].strip('"')


def _base_key() -> str:
    return hashlib.sha256(" ".join([_suite(), *_BASE_PACKAGES]).encode()).hexdigest()[:12]


def _base() -> str:
    """The base image's name; made when it is not there."""
    reference = f"localhost/memplane/base:{_base_key()}"
    if reference in _built_names():
        return reference
    with step(f"making {reference} from Debian packages"):
        root = home.images() / "base.tar"
        run(
            ["mmdebstrap", "--quiet", "--variant=extract", f"--include={','.join(_BASE_PACKAGES)}", _suite(), root],
            timeout_seconds=_BUILD_LIMIT_SECONDS,
        )
        container = _buildah("from", "scratch").strip()
        _buildah("add", "--quiet", container, str(root))
        _buildah("config", "--env", "PATH=/usr/local/bin:/usr/bin:/bin", container)
        _buildah("commit", "--quiet", "--rm", container, reference)
        root.unlink()
    return reference


def _pip_settings() -> Path:
    """This machine's index, when its environment names one, for the build alone: a secret is in no layer."""
    named = {
        name.removeprefix("PIP_").lower().replace("_", "-"): value
        for name, value in os.environ.items()
        if name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST", "PIP_DEFAULT_TIMEOUT")
    }
    named["cert"] = "/etc/ssl/certs/ca-certificates.crt"
    settings = home.images() / "pip.conf"
    settings.write_text("\n".join(["[global]", *(f"{name} = {value}" for name, value in named.items())]) + "\n")
    settings.chmod(0o600)
    return settings
