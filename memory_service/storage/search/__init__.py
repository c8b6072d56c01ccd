"""Candidates by owner: one in-memory index per owner for both backends, the databases' own indexes above its size.

An owner of up to `exact_rows` rows is scored whole from columns kept in this process and checked against the database
inside every search's own read, so that both backends rank alike by construction. A larger owner is found through
full-text and vector indexes of the database (locally: a Chroma mirror), always by owner first.

How the rest of storage calls this package:

    index = local_search(data_dir, dimension)       once per Storage; Postgres: SearchIndex()
    search = index.over(link, committed=True)       for each transaction that only reads: others use what it read
    search = index.over(link)                       for each transaction that may write
    search.similar(owner_row, vector, limit=...)    nearest active facts: (row id, cosine)
    index.clear()                                   after an erasure was committed
    index.close()

What the schema must hold is in the migrations named `search`. Lexemes are `<owner id>:<stem>`, so that a full-text
index is entered by owner. No text column of Postgres has statistics: they would copy samples into the catalogue, where
no purge reaches them.

`owners.revision` moves on with every change of the owner's facts (vectors included), `sessions.index_revision` with
every vector that a session's turns gain and with turns that go one by one, `owners.removals` with sessions of the pair
that go whole; numbers of sessions and rows are never given twice. `sessions.changed` says under which transaction
turns of a session changed last (storage/states.py), so that only sessions that changed are looked at.
"""

from memory_service.storage.search.searching import OwnerSearch, SearchIndex, local_search

__all__ = ["OwnerSearch", "SearchIndex", "local_search"]
