"""What `helm test` asks: an operator leads, the API server takes a MemoryStore and refuses a misspelt one."""

import json
import os
import ssl
import sys
import urllib.error
import urllib.request
from pathlib import Path

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
HOST = os.environ["KUBERNETES_SERVICE_HOST"]
SERVER = f"https://{f'[{HOST}]' if ':' in HOST else HOST}:{os.environ['KUBERNETES_SERVICE_PORT']}"
CONTEXT = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))


def ask(path, content=None):
    """Return the API server's status code and answer."""
    headers = {"Authorization": f"Bearer {(ACCOUNT / 'token').read_text()}", "Content-Type": "application/json"}
    body = json.dumps(content).encode() if content else None
    request = urllib.request.Request(SERVER + path, data=body, headers=headers)
    try:
        with urllib.request.urlopen(request, context=CONTEXT, timeout=20) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def dry_run(spec):
    """Return what comes of creating a MemoryStore without keeping it."""
    store = {"apiVersion": "memplane.dev/v1alpha1", "kind": "MemoryStore", "metadata": {"name": "test"}, "spec": spec}
    path = f"/apis/memplane.dev/v1alpha1/namespaces/{os.environ['STORES']}/memorystores"
    return ask(f"{path}?dryRun=All&fieldValidation=Strict", store)


def check(name, holds, seen):
    """Say whether something holds, and end when it does not."""
    sys.stdout.write(f"{'ok' if holds else 'FAILED'}: {name}\n")
    if not holds:
        sys.exit(json.dumps(seen, indent=1))


namespace, name = os.environ["LEASE"].split("/")
code, lease = ask(f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}")
check("an operator leads", code == 200 and lease["spec"].get("holderIdentity"), lease)
code, answer = dry_run({"storage": {"type": "local"}})
check("a MemoryStore is accepted and given its defaults", code == 201 and answer["spec"]["engine"] == "mem0", answer)
code, answer = dry_run({"storage": {"type": "remote"}})
check("a storage type that does not exist is refused", code == 422 and "local" in answer["message"], answer)
code, answer = dry_run({"storage": {"type": "local"}, "replica": 1})
check("a misspelt field is refused", code == 400 and "replica" in answer["message"], answer)
