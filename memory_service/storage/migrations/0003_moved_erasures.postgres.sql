-- min_reader: 1
-- Under which hashes other stores know an owner, so that their erasures reach it here.

CREATE TABLE {schema}.aliases (
    key TEXT PRIMARY KEY,
    owner_id BIGINT NOT NULL REFERENCES {schema}.owners (id)
);
CREATE INDEX aliases_owner ON {schema}.aliases (owner_id);
