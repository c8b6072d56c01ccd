-- min_reader: 1
-- Full text for owners that are too large to be scored whole. A word is `<owner id>:<stem>`, so that the index is
-- entered by owner. It keeps no content of its own; the tokenizer splits at white space alone.

CREATE VIRTUAL TABLE turns_words USING fts5(
    words, content='', detail=none, columnsize=0,
    tokenize="ascii tokenchars '!#$%&()*+,-./:;<=>?@[\]^_`{|}~''""'"
);
CREATE TRIGGER turns_words_add AFTER INSERT ON turns WHEN new.terms <> '' BEGIN
    INSERT INTO turns_words (rowid, words)
    VALUES (new.id, new.owner_id || ':' || replace(new.terms, ' ', ' ' || new.owner_id || ':'));
END;
CREATE TRIGGER turns_words_remove AFTER DELETE ON turns WHEN old.terms <> '' BEGIN
    INSERT INTO turns_words (turns_words, rowid, words)
    VALUES ('delete', old.id, old.owner_id || ':' || replace(old.terms, ' ', ' ' || old.owner_id || ':'));
END;

CREATE VIRTUAL TABLE facts_words USING fts5(
    words, content='', detail=none, columnsize=0,
    tokenize="ascii tokenchars '!#$%&()*+,-./:;<=>?@[\]^_`{|}~''""'"
);
CREATE TRIGGER facts_words_add AFTER INSERT ON facts WHEN new.terms <> '' BEGIN
    INSERT INTO facts_words (rowid, words)
    VALUES (new.row_id, new.owner_id || ':' || replace(new.terms, ' ', ' ' || new.owner_id || ':'));
END;
CREATE TRIGGER facts_words_remove AFTER DELETE ON facts WHEN old.terms <> '' BEGIN
    INSERT INTO facts_words (facts_words, rowid, words)
    VALUES ('delete', old.row_id, old.owner_id || ':' || replace(old.terms, ' ', ' ' || old.owner_id || ':'));
END;
CREATE TRIGGER facts_words_change AFTER UPDATE OF terms ON facts BEGIN
    INSERT INTO facts_words (facts_words, rowid, words)
    SELECT 'delete', old.row_id, old.owner_id || ':' || replace(old.terms, ' ', ' ' || old.owner_id || ':')
    WHERE old.terms <> '';
    INSERT INTO facts_words (rowid, words)
    SELECT new.row_id, new.owner_id || ':' || replace(new.terms, ' ', ' ' || new.owner_id || ':')
    WHERE new.terms <> '';
END;

-- What is there already comes to stand in the index too: a trigger that takes out what was never in it breaks it.
INSERT INTO turns_words (rowid, words)
SELECT id, owner_id || ':' || replace(terms, ' ', ' ' || owner_id || ':') FROM turns WHERE terms <> '';
INSERT INTO facts_words (rowid, words)
SELECT row_id, owner_id || ':' || replace(terms, ' ', ' ' || owner_id || ':') FROM facts WHERE terms <> '';
