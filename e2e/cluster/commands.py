"""Running a command to its end."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from .errors import ProgramFailed

# Clients of the cluster's own CA must not be pointed at the machine's bundle, nor at the user's cluster or proxy.
_NOT_PASSED_ON = (
    "KUBECONFIG",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "https_proxy",
    "http_proxy",
)


def cluster_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without what would lead a program away from the test cluster."""
    kept = {name: value for name, value in os.environ.items() if name not in _NOT_PASSED_ON}
    return {**kept, **(more or {})}


def run(
    command: Sequence[str | Path],
    *,
    stdin: str | None = None,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    timeout_seconds: float = 120,
) -> str:
    """Run a command and return its standard output.

    Raises:
        ProgramFailed: it ended with another code than 0, or not in time; carries its standard error.
    """
    line = " ".join(str(word) for word in command)
    try:
        done = subprocess.run(
            [str(word) for word in command],
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            check=False,
            env=None if environment is None else dict(environment),
            cwd=folder,
            timeout=timeout_seconds,
        )
    except subprocess.TimeoutExpired as error:
        raise ProgramFailed(line, f"did not end within {timeout_seconds:g} s") from error
    except FileNotFoundError as error:
        raise ProgramFailed(line, f"not found: {error.filename}") from error
    if done.returncode != 0:
        raise ProgramFailed(line, done.stderr or done.stdout, done.returncode)
    return done.stdout
