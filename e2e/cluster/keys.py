"""The cluster's own certificate authority and what it signs, made by openssl; good for ten years, kept for one run."""

import base64
import json
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .commands import run

ADMIN = "admin"
# Each program has a user of its own so that the audit log tells them apart. All may do everything, as in a test
# cluster; what the project's programs may do comes from their own RBAC.
USERS = (
    ADMIN,
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet-node0",
    "kubelet-node1",
    "kube-proxy",
    "kube-router",
    "local-path-provisioner",
    "kwok",
)


@dataclass(frozen=True)
class Keys:
    """The key files of one cluster."""

    folder: Path

    @property
    def authority(self) -> Path:
        return self.folder / "ca.crt"

    def certificate(self, name: str) -> Path:
        return self.folder / f"{name}.crt"

    def key(self, name: str) -> Path:
        return self.folder / f"{name}.key"

    @property
    def account_public_key(self) -> Path:
        return self.folder / "accounts.pub"

    @property
    def tokens(self) -> Path:
        return self.folder / "tokens.csv"

    def kubeconfig(self, user: str) -> Path:
        return self.folder / f"{user}.kubeconfig"


def make(folder: Path, server: str, addresses: list[str], names: list[str]) -> Keys:
    """Make all keys and one kubeconfig a user for a server with these addresses and DNS names."""
    folder.mkdir(parents=True)
    folder.chmod(0o700)
    keys = Keys(folder)
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    run(
        [
            "openssl",
            "req",
            "-x509",
            *new_key,
            "-keyout",
            keys.key("ca"),
            "-out",
            keys.authority,
            "-subj",
            "/CN=memplane-test",
            "-days",
            "3650",
            "-addext",
            "basicConstraints=critical,CA:TRUE",
            "-addext",
            "keyUsage=critical,keyCertSign,cRLSign",
        ]
    )
    subject_names = ",".join([*(f"IP:{a}" for a in addresses), *(f"DNS:{n}" for n in names)])
    signed = {
        "server": ("/CN=kube-apiserver", f"subjectAltName={subject_names}\nextendedKeyUsage=serverAuth"),
        "kubelet-client": ("/O=system:masters/CN=kube-apiserver-kubelet-client", "extendedKeyUsage=clientAuth"),
    }
    for name, (subject, extensions) in signed.items():
        request = run(["openssl", "req", *new_key, "-keyout", keys.key(name), "-subj", subject])
        extension_file = folder / f"{name}.extensions"
        extension_file.write_text(extensions)
        run(
            [
                "openssl",
                "x509",
                "-req",
                "-CA",
                keys.authority,
                "-CAkey",
                keys.key("ca"),
                "-CAcreateserial",
                "-days",
                "3650",
                "-extfile",
                extension_file,
                "-out",
                keys.certificate(name),
            ],
            stdin=request,
        )
    # RSA, because that is what real clusters sign tokens with.
    run(["openssl", "genrsa", "-out", keys.key("accounts"), "2048"])
    run(["openssl", "rsa", "-in", keys.key("accounts"), "-pubout", "-out", keys.account_public_key])
    tokens = {user: secrets.token_hex(16) for user in USERS}
    keys.tokens.write_text("".join(f"{token},{user},{user},system:masters\n" for user, token in tokens.items()))
    for user, token in tokens.items():
        write_kubeconfig(keys.kubeconfig(user), server, keys.authority, token, user)
    return keys


def write_kubeconfig(
    to: Path, server: str, authority: Path, token: str, user: str, *, namespace: str = "default"
) -> Path:
    """Write a kubeconfig that stands alone: the authority is inside."""
    bundle = base64.b64encode(authority.read_bytes()).decode()
    context = {"cluster": "memplane-test", "user": user, "namespace": namespace}
    to.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [
                    {"name": "memplane-test", "cluster": {"server": server, "certificate-authority-data": bundle}}
                ],
                "users": [{"name": user, "user": {"token": token}}],
                "contexts": [{"name": "memplane-test", "context": context}],
                "current-context": "memplane-test",
            }
        )
    )
    to.chmod(0o600)
    return to


def only_cluster(kubeconfig: str) -> dict[str, Any]:
    """The cluster of a kubeconfig, given as JSON, that names one."""
    cluster: dict[str, Any] = json.loads(kubeconfig)["clusters"][0]["cluster"]
    return cluster


def authority_in(cluster: dict[str, Any]) -> bytes:
    """The certificate authority inside a kubeconfig's cluster."""
    return base64.b64decode(cluster["certificate-authority-data"])
