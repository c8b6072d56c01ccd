"""Runs a page of the documentation as a reader would: its files are saved, its commands run in order.

How a page says what is what (CONTRIBUTING tells writers):

    ```sh                 commands; all blocks of a page run in one folder, and what they export stays set
    ```sh service         a command that keeps running in a terminal of its own, until it prints `listening on`
    ```text               what the block above prints, line for line; `…` stands for anything in a line, and in a
                          line of its own for any lines
    ```python agent.py    a file of this name (any language); it is saved, and commands use it
    ```sh cluster         commands that are run where there is a cluster
    ```sh cluster service one of them that keeps running: a port that is forwarded
    ```sh example         shown, and not run
    <!-- stop the service -->

Commands that only read are run again until they print what the page says: background work may need a moment.
"""

from __future__ import annotations

import os
import re
import selectors
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

LIMIT_SECONDS = 120.0
_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w+)?[ ]?(?P<about>[^\n]*)\n(?P<body>.*?)^(?P=indent)```$"
    r"|^<!-- (?P<stop>stop) the service -->$",
    re.DOTALL | re.MULTILINE,
)
_LISTENS = re.compile(rb"listening on (https?://\S+)\n|Forwarding from (127\.0\.0\.1:\d+) ")
_READS = re.compile(
    r"^kubectl get\b|"
    r"^memplane (recall|list|receipt|sessions list|sessions show|jobs list|admin diagnostics|facts history)\b"
)


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    language: str
    about: str
    body: str
    line: int


def blocks(page: Path) -> list[Block]:
    """Return a page's blocks in order, those inside of lists too."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            found["language"] or found["stop"] or "",
            (found["about"] or "").strip(),
            textwrap.dedent(found["body"] or "") if found["indent"] else found["body"] or "",
            text.count("\n", 0, found.start()) + 1,
        )
        for found in _FENCE.finditer(text)
    ]


class Reader:
    """Somebody who follows a page in a folder, with an empty home and no other variables than those given."""

    def __init__(
        self,
        folder: Path,
        repository: Path,
        variables: Mapping[str, str] | None = None,
        *,
        replaced: Mapping[str, str] | None = None,
    ) -> None:
        """`replaced` puts other texts into files and commands: addresses and names that are the test's own."""
        self._folder = folder
        self._replaced = replaced or {}
        programs = folder / ".programs"
        programs.mkdir(parents=True)
        # The reader's PATH has what an activated virtual environment has, whatever the tests were started with.
        for name, command in (("python", ""), ("memplane", " -m memory_service.cli")):
            self.provide(name, f"{shlex.quote(sys.executable)}{command}")
        self._env = {
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(folder / ".home"),
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(repository),
            "MEMPLANE_PORT": "0",
            # What a program prints and what it logs come in the order in which a terminal shows them.
            "PYTHONUNBUFFERED": "1",
            "MEM0_TELEMETRY": "False",
            "ANONYMIZED_TELEMETRY": "False",
            **(variables or {}),
        }
        self._service: subprocess.Popen[bytes] | None = None
        self.log = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def provide(self, program: str, command: str) -> None:
        """Give the reader a program, which is a command with arguments of its own before the reader's."""
        path = self._folder / ".programs" / program
        path.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        path.chmod(0o700)

    def follow(self, page: Path, *, about: str = "") -> int:
        """Do what a page says; return how many blocks were run: those that are `about` this."""
        found = blocks(page)
        done = 0
        for number, block in enumerate(found):
            place = f"{page.name}, line {block.line}"
            if block.about.split(" ")[0] in ({"example", "cluster"} - {about}) or block.language == "text":
                continue
            if block.language == "stop":
                self.stop()
            elif block.language == "sh":
                following = found[number + 1] if number + 1 < len(found) else None
                expected = following.body if following is not None and following.language == "text" else ""
                if block.about == f"{about} service".strip():
                    self.serve(self._own(block.body).strip(), place)
                elif about and block.about != about:
                    continue
                else:
                    assert block.about == about, f"{place}: {block.about!r} is no kind of block"
                    self.run(self._own(block.body), expected, place)
                done += 1
            else:
                assert block.about, f"{place}: name the file that this block is"
                (self._folder / block.about).write_text(self._own(block.body), encoding="utf-8")
        return done

    def _own(self, body: str) -> str:
        for text, own in self._replaced.items():
            body = body.replace(text, own)
        return body

    def run(self, commands: str, expected: str, place: str) -> None:
        """Run commands and compare what they print."""
        reads = all(_READS.match(line) for line in commands.strip().splitlines())
        until = time.monotonic() + LIMIT_SECONDS
        while True:
            ran = subprocess.run(
                [
                    "bash",
                    "-c",
                    f"set -euo pipefail; [ ! -f .exports ] || . ./.exports\n{commands}\nexport -p > .exports",
                ],
                cwd=self._folder,
                env=self._env,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=LIMIT_SECONDS,
                check=False,
                text=True,
            )
            wrong = difference(ran.stdout, expected) if expected else None
            if ran.returncode == 0 and wrong is None:
                return
            if not reads or time.monotonic() > until:
                assert ran.returncode == 0, f"{place}: exit code {ran.returncode}\n{commands}\n{ran.stdout}"
                raise AssertionError(f"{place}: {wrong} by\n{commands}\nbut\n{ran.stdout}")

    def serve(self, command: str, place: str) -> None:
        """Run a service in place of the one before, until it listens; commands that follow find it."""
        self.stop()
        self._service = subprocess.Popen(
            ["bash", "-c", f"[ ! -f .exports ] || . ./.exports\nexec {command}"],
            cwd=self._folder,
            env=self._env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        endpoint = self._endpoint(self._service, place)
        # A service that is started again keeps its address, as it does on a reader's machine.
        self._env |= {"MEMPLANE_ENDPOINT": endpoint, "MEMPLANE_PORT": endpoint.rsplit(":", 1)[1]}

    def _endpoint(self, service: subprocess.Popen[bytes], place: str) -> str:
        assert service.stdout is not None
        said = b""
        until = time.monotonic() + LIMIT_SECONDS
        with selectors.DefaultSelector() as waiting:
            waiting.register(service.stdout, selectors.EVENT_READ)
            while time.monotonic() < until and waiting.select(until - time.monotonic()):
                piece = os.read(service.stdout.fileno(), 65_536)
                if not piece:
                    break
                said += piece
                found = _LISTENS.search(said)
                if found:
                    return found.group(1).decode() if found.group(1) else f"http://{found.group(2).decode()}"
        raise AssertionError(f"{place}: the service does not listen:\n{said.decode(errors='replace')}")

    def stop(self) -> None:
        """End the service as Ctrl-C does."""
        service, self._service = self._service, None
        if service is None:
            return
        service.send_signal(signal.SIGINT)
        try:
            rest, _ = service.communicate(timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            service.kill()
            service.communicate()
            raise
        self.log += rest.decode(errors="replace")
        assert service.returncode == 0, f"the service ended with {service.returncode}:\n{self.log}"


def difference(printed: str, expected: str) -> str | None:
    """Say where what was printed is not what a page shows, None where it is.

    Line for line, blank ones and the width of columns aside. `…` in a line stands for any letters, alone in a line for
    any lines, also for none.
    """
    lines = [_columns(line) for line in printed.splitlines() if line.strip()]
    runs: list[list[str]] = [[]]
    for line in expected.splitlines():
        if line.strip() == "…":
            runs.append([])
        elif line.strip():
            runs[-1].append(line)
    at = 0
    for number, run in enumerate(runs):
        is_last = number == len(runs) - 1
        # The first run begins where the output does, the last one ends where it ends, the others are looked for.
        starts = range(at, len(lines) + 1) if number else range(at, at + 1)
        if number and is_last:
            starts = range(max(at, len(lines) - len(run)), len(lines) + 1)
        agreed = {start: _agreed(lines[start:], run) for start in starts}
        found = next((start for start in starts if agreed[start] == len(run)), None)
        if found is None:
            return f"{run[max(agreed.values())]!r} was not printed"
        at = found + len(run)
    return f"{lines[at]!r} was printed too" if at < len(lines) else None


def _agreed(lines: Sequence[str], run: Sequence[str]) -> int:
    """Return how many lines of a run, from its first, are as they were printed."""
    for count, (line, wanted) in enumerate(zip(lines, run, strict=False)):
        if not re.fullmatch(".*".join(re.escape(_columns(piece)) for piece in wanted.split("…")), line):
            return count
    return min(len(lines), len(run))


def _columns(line: str) -> str:
    return " ".join(line.split())
