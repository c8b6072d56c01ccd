-- min_reader: 1
-- Under which hashes other stores know an owner, so that their erasures reach it here.

CREATE TABLE aliases (
    key TEXT PRIMARY KEY,
    owner_id INTEGER NOT NULL REFERENCES owners (id)
);
CREATE INDEX aliases_owner ON aliases (owner_id);
