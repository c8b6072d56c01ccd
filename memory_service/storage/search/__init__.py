"""Candidates by owner: one in-memory index per owner for both backends, the databases' own indexes above its size.

An owner of up to `exact_rows` rows is scored whole from columns kept in this process and checked against the database
inside every search's own read, so that both backends rank alike by construction. A larger owner is found through
full-text and vector indexes of the database (locally: a Chroma mirror), always by owner first.

How the rest of storage calls this package:

    index = SearchIndex(vectors=mirror, exact_rows=...)             once per Storage; Postgres: no `vectors`
    search = index.over(link, committed=True)                       for each transaction; the `search` of a Transaction
    search.similar(owner_row, vector, limit=...)                    the vector part of Facts.similar: (row id, cosine)
    index.drop(owner_ids)                                           after an erasure was committed

`committed` says that the transaction writes nothing: only then may what it reads be kept for others.

What the schema must hold. Lexemes are `<owner id>:<stem>`, so that a full-text index is entered by owner.

SQLite, for `turns` (key `id`, name `turns_words`) and for `facts` (key `row_id`, name `facts_words`):

    CREATE VIRTUAL TABLE turns_words USING fts5(words, content='', detail=none, columnsize=0,
        tokenize="ascii tokenchars '!#$%&()*+,-./:;<=>?@[\\]^_`{|}~''""'");
    CREATE TRIGGER turns_words_add AFTER INSERT ON turns WHEN new.terms <> '' BEGIN
        INSERT INTO turns_words (rowid, words)
        VALUES (new.id, new.owner_id || ':' || replace(new.terms, ' ', ' ' || new.owner_id || ':'));
    END;
    CREATE TRIGGER turns_words_remove AFTER DELETE ON turns WHEN old.terms <> '' BEGIN
        INSERT INTO turns_words (turns_words, rowid, words)
        VALUES ('delete', old.id, old.owner_id || ':' || replace(old.terms, ' ', ' ' || old.owner_id || ':'));
    END;
    and AFTER UPDATE OF terms (facts only): the second insert with old.*, then the first with new.*

Postgres, for both tables:

    CREATE INDEX turns_words ON turns USING gin
        (string_to_array(owner_id::text || ':' || replace(terms, ' ', ' ' || owner_id::text || ':'), ' '));
    CREATE INDEX turns_vector ON turns USING hnsw (vector vector_cosine_ops);

and no statistics that would copy samples of text or vectors into the catalogue, where no purge reaches them:

    ALTER TABLE ... ALTER COLUMN <text, terms, body, vector ...> SET STATISTICS 0;
    ALTER INDEX turns_words ALTER COLUMN 1 SET STATISTICS 0

`owners.revision` moves on with every change of the owner's facts (vectors included), `sessions.index_revision` with
every vector that a session's turns gain, and the generation of the home pair with every erasure under it.
"""

from memory_service.storage.search.searching import OwnerSearch, SearchIndex

__all__ = ["OwnerSearch", "SearchIndex"]
