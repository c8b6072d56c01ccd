"""Storage: the port's two implementations. `open_storage` is the only place that names a backend.

`local`     `local`, `sqlite_link`, `local_tables`, `folder`        SQLite in one folder, one process
`external`  `external`, `postgres_link`, `postgres_tables`          Postgres + pgvector, any number of replicas
both        `rows` (one module per noun), `search`, `statements` (one SQL text for both), `migration`, `purge`

A backend's libraries are imported when it is opened, never before: neither mode loads the other's.
"""

from __future__ import annotations

from pathlib import Path

from memory_service.contract.config import StorageConfig, StorageType
from memory_service.ports.models import Clock
from memory_service.ports.storage import Storage
from memory_service.storage.migration import Identity


def open_storage(
    config: StorageConfig,
    *,
    embedding_model: str,
    dimension: int,
    clock: Clock,
    creates: bool = True,
    cluster: str = "",
) -> Storage:
    """Return the configured backend; nothing is opened before `migrate`, which makes a store where there is none.

    With `creates` false it refuses instead, as Misconfigured, and leaves nothing behind. `cluster` is a mark that no
    other cluster has: of two clusters' stores of one name neither is the other's.

    Raises:
        Misconfigured: no data folder or DSN can be named.
    """
    from memory_service.storage.search import SearchIndex, local_search

    store_name = f"{cluster}/{config.store_name}" if cluster and config.store_name else ""
    identity = Identity(embedding_model, dimension, config.store_uid, store_name)
    if config.type is StorageType.LOCAL:
        from memory_service.storage.local import LocalStorage

        folder = _data_folder(config)
        return LocalStorage(
            folder,
            identity=identity,
            clock=clock,
            searches=local_search(folder, dimension),
            lock_wait_seconds=config.lock_wait_seconds,
            creates=creates,
        )
    from memory_service.storage.external import ExternalStorage

    return ExternalStorage(config, identity=identity, clock=clock, searches=SearchIndex(), creates=creates)


def _data_folder(config: StorageConfig) -> Path:
    if config.data_dir is not None:
        return Path(config.data_dir).expanduser()
    from platformdirs import user_data_path

    return user_data_path("memplane", appauthor=False)
