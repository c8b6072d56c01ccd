"""Runs in another environment: writes and recalls through a library, in threads, as the lines on stdin ask."""

import json
import os
import sys
import threading
import time


def mem0(settings, store):
    """Mem0 as its documentation shows it, without inference."""
    from mem0 import Memory

    vectors = {
        "chroma": {"provider": "chroma", "config": {"collection_name": "bench", "path": settings["folder"]}},
        "pgvector": {
            "provider": "pgvector",
            "config": {
                "connection_string": settings["dsn"],
                "collection_name": "bench",
                "embedding_model_dims": settings["dimensions"],
            },
        },
    }
    model = {"model": settings["model"], "openai_base_url": settings["url"], "api_key": "none"}
    embedder = {**model, "embedding_dims": settings["dimensions"]}
    if store == "chroma":
        embedder = model
    memory = Memory.from_config(
        {
            "embedder": {"provider": "openai", "config": embedder},
            "llm": {"provider": "openai", "config": {**model, "model": "none"}},
            "vector_store": vectors[store],
            "history_db_path": os.path.join(os.environ["MEM0_DIR"], "history.db"),
        }
    )
    return (
        lambda user, text: memory.add([{"role": "user", "content": text}], user_id=user, infer=False),
        lambda user, query: memory.search(query, filters={"user_id": user}, top_k=10)["results"],
    )


def aimu(settings, _store):
    """AIMU's semantic store with an embedding client of its own."""
    import aimu as package
    from aimu.memory.semantic_store import SemanticMemoryStore

    # One of the models that it knows; the endpoint answers all of them alike.
    client = package.embedding_client(
        "openai:text-embedding-3-small", model_kwargs={"base_url": settings["url"], "api_key": "none"}
    )
    memory = SemanticMemoryStore(persist_path=settings["folder"], embedding_client=client)
    return (lambda _user, text: memory.store(text), lambda _user, query: memory.search(query, n_results=10))


def in_threads(work, items, count):
    """Run a work over items in several threads; return the milliseconds of each and the seconds of all."""
    taken, failures, waiting, lock = [], [], iter(items), threading.Lock()

    def one():
        while True:
            with lock:
                item = next(waiting, None)
            if item is None or failures:
                return
            start = time.perf_counter()
            try:
                work(*item)
            except Exception as error:  # noqa: BLE001 - raised again by the caller
                failures.append(error)
                return
            taken.append((time.perf_counter() - start) * 1000)

    threads = [threading.Thread(target=one) for _ in range(count)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return {"milliseconds": taken, "seconds": time.perf_counter() - began}


def main():
    """Answer questions until stdin ends."""
    name, _, store = sys.argv[1].partition("-")
    write, recall = {"mem0": mem0, "aimu": aimu}[name](json.loads(sys.argv[2]), store)
    for line in sys.stdin:
        asked = json.loads(line)
        answer = {}
        if asked["do"] == "write":
            answer = in_threads(write, asked["items"], asked["threads"])
        elif asked["do"] == "recall":
            answer = in_threads(recall, asked["items"], asked["threads"])
        elif asked["do"] == "look":
            answer = {"found": len(recall(*asked["item"]))}
        print(json.dumps(answer), flush=True)


main()
