"""The main job, from nothing to an agent that remembers: a store on this machine, two conversations, one erasure.

It starts a memory service (SQLite + Chroma, built-in embedder) and a stand-in for a chat model that follows rules, both
on loopback. There is no key and no network. Everything lies in one temporary folder that goes with the demo.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parent))

from agent import Agent
from model_server import Handler

from memory_service.client import MemoryClient, Prelude, Recalled
from memory_service.contract.items import Item
from memory_service.contract.sessions import SessionDetail
from memory_service.contract.verbs import Receipt

T = TypeVar("T")

STORE = "demo-memory"
PATIENCE_SECONDS = 60.0
"""How long the demo waits for background work before it gives up; it takes about a second."""
MONDAY = (
    "Hi, I'm planning the week. My daughter is called Ingrid and she starts school in August.",
    "I am allergic to peanuts, so please keep that in mind.",
    "I live in Oslo, near the harbour.",
    "My budget for the trip is 900 euros.",
    "I prefer trains to planes whenever there is a choice.",
    "On Sunday we walked around the lake and fed the ducks until it rained.",
)


async def main() -> None:
    """Show what a store does, step by step."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="memplane-demo-") as folder, _model() as chat_url:
        say(
            "1. Start a store",
            "memplane serve, with its data in one folder; a rule-based model stands in for a chat model",
        )
        with _service(Path(folder) / "store", chat_url) as endpoint:
            print(f"   {endpoint} is ready after {time.monotonic() - started:.1f} s")
            os.environ["MEMPLANE_ENDPOINT"] = endpoint
            async with MemoryClient.bind(STORE, user="kim", outbox=Path(folder) / "outbox") as client:
                await _show(client)
    say("How to go on")
    steps = (
        ("serve", "a store of your own, on http://127.0.0.1:8800; then, in another terminal:"),
        ('remember "I like green tea"', "save a fact"),
        ('recall "What should I drink?"', "find it by meaning"),
    )
    for arguments, does in steps:
        print(f"   {f'{_memplane()} {arguments}':<48} {does}")
    print(f"   {'docs/tutorial/first-agent.md':<48} an agent of your own, step by step")
    print(f"   {'docs/how-to/':<48} tools, chat models, Postgres, erasure")


async def _show(client: MemoryClient) -> None:
    say("2. Monday: a conversation", "the agent recalls before each run and flushes after it")
    monday = Agent(client, "monday")
    for message in MONDAY:
        await monday.run(message)
        print(f"   user: {message}")
    await client.sessions.end("monday")
    await client.sessions.compact("monday")
    detail = await _folded(client)
    print(f"   window: {len(detail.window)} newest turns, {detail.session.tokens} tokens, verbatim")
    for digest in detail.digests[:1]:
        print(f"   digest, version {digest.version}: {_short(digest.summary, 96)}")
    facts = await _facts(client, 5)
    print("   facts: " + "\n          ".join(fact.text for fact in facts))

    say("3. Tuesday: another conversation", "asked by meaning: the question shares no word with what was said")
    question = "Which snacks would be dangerous?"
    tuesday = Agent(client, "tuesday")
    reply = await tuesday.run(question)
    print(f"   user: {question}")
    _block(reply.prelude)
    print("   why, with the score and the parts of the rank:")
    found = await client.recall(question, session_id="tuesday", top_k=3, explain=True)
    _why(found)

    say("4. A correction", "a newer statement takes an older one's place; the old one keeps its time and its successor")
    old = next(fact for fact in await _facts(client, 5) if "Oslo" in fact.text)
    earlier = datetime.now(UTC)
    new = await client.facts.supersede(old.id, "User lives in Lisbon")
    print(f"   superseded: {old.text!r} by {new.text!r}")
    for title, as_of in (("now", None), (f"as of {earlier:%H:%M:%S}", earlier)):
        found = await client.recall("Which city is home?", top_k=1, filters={"kinds": ["semantic"], "as_of": as_of})
        print(f"   where is home, {title}: " + ", ".join(item.text for item in found.long_term.items))

    say("5. An erasure", "everything of this user with this agent, every tier at once, with a receipt")
    forgotten = await client.forget()
    assert forgotten.receipt_id is not None
    print("   erased: " + ", ".join(f"{count} {tier}" for tier, count in forgotten.erased.items() if count))
    receipt = await _purged(client, forgotten.receipt_id)
    print(f"   receipt {receipt.receipt_id}: bytes purged from the disk at {receipt.purged_at:%H:%M:%S} UTC")
    after = await client.recall(question, session_id="tuesday")
    print(f"   the same question now: {after.outcome.value}")


async def _facts(client: MemoryClient, at_least: int) -> tuple[Item, ...]:
    """Return the facts once extraction has found so many."""
    page = await _until(lambda: client.list(tiers=("fact",)), lambda page: len(page.items) >= at_least)
    return page.items


async def _folded(client: MemoryClient) -> SessionDetail:
    """Return the session once its window has been folded."""
    return await _until(lambda: client.sessions.get("monday"), lambda detail: bool(detail.digests))


async def _purged(client: MemoryClient, receipt_id: str) -> Receipt:
    """Return the receipt once the bytes are gone."""
    return await _until(lambda: client.receipts.get(receipt_id), lambda receipt: receipt.status == "purged")


async def _until(read: Callable[[], Awaitable[T]], is_done: Callable[[T], bool]) -> T:
    """Read again and again until background work has come to where it should."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            found = await read()
            if is_done(found):
                return found
            await asyncio.sleep(0.1)


def _block(prelude: Prelude) -> None:
    print("   what goes into the prompt:")
    print(textwrap.indent(prelude.block, "   | "))


def _why(found: Recalled) -> None:
    for item in found.long_term.items:
        parts = ", ".join(f"{name} {value:+.2f}" for name, value in (item.explain or {}).items())
        print(f"   {item.score:.2f} {item.tier:<8} {_short(item.text, 48):<48} {parts}")


def _memplane() -> str:
    """Return the command as it can be typed here."""
    command = Path(sys.executable).with_name("memplane")
    return os.path.relpath(command) if command.is_relative_to(Path.cwd()) else "memplane"


def _short(text: str, width: int) -> str:
    return textwrap.shorten(" ".join(text.split()), width, placeholder="…")


def say(title: str, explanation: str = "") -> None:
    """Print a heading."""
    print(f"\n{title}" + (f"\n   {explanation}" if explanation else ""))


@contextlib.contextmanager
def _model() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def _service(folder: Path, chat_url: str) -> Iterator[str]:
    """Run `memplane serve` on a free port until the block is left."""
    command = [
        *(sys.executable, "-m", "memory_service.cli", "serve", "--port", "0", "--data-dir", str(folder)),
        *("--chat-url", chat_url, "--chat-model", "rules", "--window-tokens", "120"),
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        lines = []
        for line in process.stderr:
            if line.startswith("listening on "):
                break
            lines.append(line)
        else:
            raise SystemExit("the service did not start:\n" + "".join(lines))
        drain = threading.Thread(target=process.stderr.read, daemon=True)
        drain.start()
        yield line.split()[-1]
    finally:
        process.terminate()
        process.wait(timeout=30)


if __name__ == "__main__":
    asyncio.run(main())
