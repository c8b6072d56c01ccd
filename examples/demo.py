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
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from agent import Agent
from model_server import Handler

from memory_service.client import MemoryClient, Prelude, Recalled
from memory_service.contract.items import Item

STORE = "demo-memory"
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
        say("1. Start a store", "memplane serve, with its data in one folder; a rule-based model stands in for a chat model")
        with _service(Path(folder) / "store", chat_url) as endpoint:
            print(f"   {endpoint} is ready after {time.monotonic() - started:.1f} s")
            os.environ["MEMPLANE_ENDPOINT"] = endpoint
            async with MemoryClient.bind(STORE, user="kim", outbox=Path(folder) / "outbox") as client:
                await _show(client)
    say("How to go on")
    print(
        textwrap.indent(
            "memplane serve                                     a store of your own, on http://127.0.0.1:8800\n"
            'memplane remember "I like green tea"               save a fact, then:\n'
            'memplane recall "what should I drink?"             find it again\n'
            "docs/tutorial/first-agent.md                       the same from Python, step by step\n"
            "docs/how-to/                                       Postgres, chat models, erasure",
            "   ",
        )
    )


async def _show(client: MemoryClient) -> None:
    say("2. Monday: a conversation", "the agent recalls before each run and flushes after it")
    monday = Agent(client, "monday")
    for message in MONDAY:
        await monday.run(message)
        print(f"   user: {message}")
    await client.sessions.end("monday")
    detail = await _folded(client)
    print(f"   window: {len(detail.window)} newest turns, {detail.session.tokens} tokens, verbatim")
    for digest in detail.digests[:1]:
        print(f"   digest, version {digest.version}: {_short(digest.summary, 96)}")
    facts = await _facts(client, 5)
    print("   facts: " + "; ".join(fact.text for fact in facts))

    say("3. Tuesday: another conversation", "asked by meaning: the question shares no word with what was said")
    question = "Which snacks would be dangerous?"
    tuesday = Agent(client, "tuesday")
    reply = await tuesday.run(question)
    print(f"   user: {question}")
    _block(reply.prelude)
    found = await client.recall(question, session_id="tuesday", top_k=3, explain=True)
    _why(found)

    say("4. A correction", "a newer statement takes an older one's place; the old one keeps its validity")
    saved = await client.remember("User lives in Oslo", key="home")
    saved = await client.remember("User lives in Lisbon", key="home")
    assert saved.fact is not None
    history = await client.facts.history(saved.fact.id)
    for entry in history.entries:
        print(f"   {entry.event:<10} {entry.text}")
    old = next(fact for fact in await _facts(client, 1) if "peanuts" in fact.text)
    new = await client.facts.supersede(old.id, "User is no longer allergic to peanuts")
    before = await client.facts.get(old.id)
    print(f"   superseded {before.text!r} by {new.text!r}")

    say("5. An erasure", "everything of this user with this agent, every tier at once, with a receipt")
    forgotten = await client.forget()
    assert forgotten.receipt_id is not None
    print("   erased: " + ", ".join(f"{count} {tier}" for tier, count in forgotten.erased.items() if count))
    receipt = await client.receipts.get(forgotten.receipt_id)
    while receipt.status != "purged":
        await asyncio.sleep(0.1)
        receipt = await client.receipts.get(forgotten.receipt_id)
    print(f"   receipt {receipt.receipt_id}: bytes purged from the disk at {receipt.purged_at:%H:%M:%S} UTC")
    after = await client.recall(question, session_id="tuesday")
    print(f"   the same question now: {after.outcome.value}")


async def _facts(client: MemoryClient, at_least: int) -> tuple[Item, ...]:
    """Wait until extraction has run, then return the facts."""
    while True:
        page = await client.list(tiers=("fact",))
        if len(page.items) >= at_least:
            return page.items
        await asyncio.sleep(0.1)


async def _folded(client: MemoryClient):  # type: ignore[no-untyped-def]
    """Wait until the window has been folded, then return the session."""
    while True:
        detail = await client.sessions.get("monday")
        if detail.digests:
            return detail
        await asyncio.sleep(0.1)


def _block(prelude: Prelude) -> None:
    print("   what goes into the prompt:")
    print(textwrap.indent(prelude.block, "   | "))


def _why(found: Recalled) -> None:
    for item in found.items:
        parts = ", ".join(f"{name} {value:+.2f}" for name, value in (item.explain or {}).items())
        print(f"   {item.score:.2f} {item.tier:<8} {_short(item.text, 48):<48} {parts}")


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
