"""A ModelAPI that is missing, comes, and moves; a Secret that is missing, comes, and changes."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from e2e.cluster.clusters import Namespace
from e2e.installation import (
    POD_READY_SECONDS,
    RESTRICTED,
    Installation,
    agent_memory,
    agent_pod,
    agent_pods,
    conditions,
    fingerprint,
    local_store,
    say,
    store_pods,
    until_it_reaches_its_store,
    wait_for,
)

MODEL_PROGRAM = """
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

seen = []

class Model(BaseHTTPRequestHandler):
    def answer(self, content):
        text = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self):
        self.answer(seen if self.path == "/seen" else {"object": "list", "data": [{"id": "chat", "object": "model"}]})

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        seen.append(f"{self.path} {self.headers.get('Authorization', '')}")
        message = {"role": "assistant", "content": json.dumps({"memory": [], "facts": []})}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        about = {"id": "1", "object": "chat.completion", "created": 1, "model": "chat"}
        self.answer({**about, "choices": [choice], "usage": usage})

    def log_message(self, *arguments):
        pass

ThreadingHTTPServer(("", 8000), Model).serve_forever()
"""
"""An OpenAI-compatible endpoint that remembers with which key it was asked for an answer, and at which path."""

_SEEN = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8000/seen').read().decode())"


def model_server(image: str) -> list[dict[str, Any]]:
    container = {
        "name": "model",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-c", MODEL_PROGRAM],
        "readinessProbe": {"tcpSocket": {"port": 8000}, "periodSeconds": 1},
        "securityContext": RESTRICTED,
    }
    meta = {"name": "models", "labels": {"app": "models"}}
    pod_spec = {"terminationGracePeriodSeconds": 0, "containers": [container]}
    service_spec = {"selector": {"app": "models"}, "ports": [{"port": 8000}]}
    return [
        {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": pod_spec},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "models"}, "spec": service_spec},
    ]


def model_api(namespace: Namespace, path: str, **spec: Any) -> dict[str, Any]:
    url = f"http://models.{namespace.name}.svc.cluster.local:8000/{path}"
    return {
        "apiVersion": "memplane.dev/v1alpha1",
        "kind": "ModelAPI",
        "metadata": {"name": "models"},
        "spec": {"baseURL": url, **spec},
    }


def secret(value: str) -> dict[str, Any]:
    data = {"api-key": base64.b64encode(value.encode()).decode()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "model-key"}, "data": data}


MODELS = {"summarization": {"modelAPI": "models", "model": "chat"}}
KEY = {"apiKeySecretRef": {"name": "model-key", "key": "api-key"}}


def seen(namespace: Namespace) -> str:
    return namespace.kubectl.execute("models", "python", "-c", _SEEN)


def until_asked_with(namespace: Namespace, what: str, session: str) -> None:
    """Have something to extract until the model was asked in some way; a changed Secret takes a minute to arrive.

    Whatever is said meanwhile is stored at once.
    """
    counter = iter(range(1000))

    def is_asked() -> bool:
        number = next(counter)
        answer = say(namespace, f"My favourite number is {number}.", session=f"{session}-{number}")
        assert answer["written"] == ["stored"], answer
        end = f"c.sessions.end('{session}-{number}')"
        script = (
            f"from memory_service.client import SyncMemoryClient as C\nwith C.bind('team', outbox=None) as c: {end}"
        )
        namespace.kubectl.execute("deployment/assistant", "python", "-c", script)
        return what in seen(namespace)

    namespace.cluster.wait_until(
        f"the model asked with {what!r}", is_asked, seconds=180, explain=lambda: seen(namespace)
    )


@pytest.fixture
def restricted(namespace: Namespace) -> Namespace:
    namespace.kubectl("label", "namespace", namespace.name, "pod-security.kubernetes.io/enforce=restricted")
    return namespace


def test_a_store_waits_for_its_model_api_starts_with_it_and_follows_it(
    restricted: Namespace, memplane: Installation
) -> None:
    restricted.apply(local_store(models=MODELS))
    wait_for(restricted, "memorystore", "team", "Ready", "False", reason="WaitingForModelAPI", seconds=20)
    assert conditions(restricted, "memorystore", "team")["ModelsReady"]["reason"] == "ModelAPINotFound"
    restricted.apply(model_api(restricted, "v1"))
    wait_for(restricted, "modelapi", "models", "Ready", "False", seconds=20)
    wait_for(restricted, "memorystore", "team", "ModelsReady", "False", reason="ModelAPINotReady", seconds=20)
    assert restricted.kubectl.find("deployment", "team-memory") is None
    restricted.apply(*model_server(memplane.service_image))
    restricted.kubectl.wait("condition=Ready", "pod/models", seconds=POD_READY_SECONDS)
    wait_for(restricted, "modelapi", "models", "Ready", "True", seconds=30)
    wait_for(restricted, "memorystore", "team", "Ready", "True")

    before = fingerprint(store_pods(restricted))
    restricted.apply(model_api(restricted, "moved/v1"))

    def is_rolled_out() -> bool:
        pods = store_pods(restricted)
        return len(pods) == 1 and fingerprint(pods) != before

    restricted.cluster.wait_until("new pods", is_rolled_out, seconds=60, explain=restricted.describe)
    assert "/moved/v1" in restricted.kubectl.get("configmap", "team-memory-config")["data"]["config.yaml"]
    wait_for(restricted, "memorystore", "team", "Ready", "True")


def test_a_secret_that_is_missing_comes_and_changes_restarts_nothing(
    restricted: Namespace, memplane: Installation
) -> None:
    template = agent_pod(memplane.service_image, "team")
    restricted.apply(*model_server(memplane.service_image), model_api(restricted, "v1", **KEY))
    restricted.apply(local_store(models=MODELS), agent_memory(agent={"template": template}))
    missing = wait_for(restricted, "memorystore", "team", "ModelsReady", "False", reason="SecretMissing")
    assert missing["message"]
    wait_for(restricted, "memorystore", "team", "Ready", "True")
    wait_for(restricted, "agentmemory", "assistant", "Ready", "True")
    until_it_reaches_its_store(restricted)
    pods = fingerprint(store_pods(restricted)), fingerprint(agent_pods(restricted))

    restricted.apply(secret("first-key"))
    wait_for(restricted, "memorystore", "team", "ModelsReady", "True", seconds=150)
    until_asked_with(restricted, "Bearer first-key", "first")
    restricted.apply(secret("second-key"))
    until_asked_with(restricted, "Bearer second-key", "second")
    assert (fingerprint(store_pods(restricted)), fingerprint(agent_pods(restricted))) == pods
