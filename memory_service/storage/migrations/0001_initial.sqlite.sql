-- min_reader: 1
-- Times are microseconds since 1970 UTC, JSON is text, booleans are 0 and 1, vectors are little-endian float32.
-- Wide texts stand last in a row, so that a search reads past none of them. Every index ends with the row's number by
-- itself; naming it there makes SQLite 3.40 miss rows of `(a, number) IN (SELECT ...)`.

CREATE TABLE owners (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    key TEXT NOT NULL UNIQUE,
    scope TEXT NOT NULL,
    agent TEXT NOT NULL,
    principal TEXT NOT NULL,
    session TEXT NOT NULL,
    workspace TEXT NOT NULL,
    generation INTEGER NOT NULL DEFAULT 0,
    erased_at INTEGER,
    revision INTEGER NOT NULL DEFAULT 0,
    removals INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX owners_agent ON owners (agent, principal, session);
CREATE INDEX owners_principal ON owners (principal);

CREATE TABLE principals (
    hash TEXT PRIMARY KEY,
    display TEXT NOT NULL
);

CREATE TABLE tombstones (
    key TEXT PRIMARY KEY,
    erased_at INTEGER NOT NULL
);

CREATE TABLE sessions (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    owner_id INTEGER NOT NULL UNIQUE REFERENCES owners (id),
    home_id INTEGER NOT NULL REFERENCES owners (id),
    last_seq INTEGER NOT NULL,
    window_tokens INTEGER NOT NULL,
    window_turns INTEGER NOT NULL,
    folded_seq INTEGER NOT NULL,
    extracted_seq INTEGER NOT NULL,
    digest_version INTEGER NOT NULL,
    index_revision INTEGER NOT NULL,
    changed INTEGER NOT NULL DEFAULT 0,
    fact_scope TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    last_write_at INTEGER NOT NULL,
    ended_at INTEGER
);
CREATE INDEX sessions_home ON sessions (home_id, last_write_at);
CREATE INDEX sessions_changed ON sessions (home_id, changed);
CREATE INDEX sessions_waiting ON sessions (last_write_at) WHERE extracted_seq < last_seq;

CREATE TABLE turns (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    owner_id INTEGER NOT NULL,
    session_id INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    client_id TEXT,
    role INTEGER NOT NULL,
    infer INTEGER NOT NULL,
    indexed INTEGER NOT NULL,
    tokens INTEGER NOT NULL,
    said_at INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    length INTEGER NOT NULL,
    terms TEXT NOT NULL,
    vector BLOB,
    name TEXT,
    text TEXT NOT NULL,
    content TEXT,
    parts TEXT
);
CREATE UNIQUE INDEX turns_seq ON turns (session_id, seq);
CREATE UNIQUE INDEX turns_client ON turns (session_id, client_id) WHERE client_id IS NOT NULL;
CREATE INDEX turns_owner ON turns (owner_id);
CREATE INDEX turns_unindexed ON turns (session_id, seq) WHERE indexed = 0;
CREATE INDEX turns_created ON turns (created_at);

CREATE TABLE digests (
    owner_id INTEGER NOT NULL,
    session_id INTEGER NOT NULL,
    version INTEGER NOT NULL,
    upto_seq INTEGER NOT NULL,
    tokens INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    summary TEXT NOT NULL,
    PRIMARY KEY (session_id, version)
);
CREATE INDEX digests_owner ON digests (owner_id);
CREATE INDEX digests_created ON digests (created_at, session_id, version);

CREATE TABLE facts (
    row_id INTEGER PRIMARY KEY AUTOINCREMENT,
    owner_id INTEGER NOT NULL REFERENCES owners (id),
    id TEXT NOT NULL,
    kind TEXT NOT NULL,
    status TEXT NOT NULL,
    key TEXT,
    dedupe_key TEXT,
    text_hash TEXT NOT NULL,
    said_at INTEGER NOT NULL,
    valid_from INTEGER NOT NULL,
    valid_to INTEGER,
    superseded_by TEXT,
    expires_at INTEGER,
    importance REAL,
    pinned INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    category TEXT,
    tags TEXT NOT NULL,
    length INTEGER NOT NULL,
    terms TEXT NOT NULL,
    embedding_model TEXT,
    vector BLOB,
    text TEXT NOT NULL,
    evidence TEXT,
    attributes TEXT NOT NULL
);
CREATE UNIQUE INDEX facts_id ON facts (id);
CREATE INDEX facts_owner ON facts (owner_id, status);
CREATE UNIQUE INDEX facts_key ON facts (owner_id, key) WHERE key IS NOT NULL AND status IN ('active', 'pending');
CREATE UNIQUE INDEX facts_dedupe ON facts (owner_id, dedupe_key)
    WHERE dedupe_key IS NOT NULL AND status IN ('active', 'pending');
CREATE INDEX facts_text ON facts (owner_id, text_hash);
CREATE INDEX facts_unindexed ON facts (row_id) WHERE vector IS NULL;
CREATE INDEX facts_expires ON facts (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX facts_updated ON facts (updated_at);

CREATE TABLE fact_sources (
    owner_id INTEGER NOT NULL,
    fact_id INTEGER NOT NULL,
    agent TEXT NOT NULL,
    principal TEXT NOT NULL,
    session TEXT NOT NULL,
    workspace TEXT NOT NULL,
    seqs TEXT NOT NULL,
    PRIMARY KEY (owner_id, fact_id, agent, principal, session, workspace)
);
CREATE INDEX fact_sources_agent ON fact_sources (agent, principal, session);
CREATE INDEX fact_sources_principal ON fact_sources (principal);

CREATE TABLE fact_history (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    owner_id INTEGER NOT NULL,
    fact_id INTEGER NOT NULL,
    at INTEGER NOT NULL,
    event TEXT NOT NULL,
    actor TEXT NOT NULL,
    agent TEXT NOT NULL,
    principal TEXT NOT NULL,
    session TEXT NOT NULL,
    text TEXT NOT NULL
);
CREATE INDEX fact_history_fact ON fact_history (owner_id, fact_id);
CREATE INDEX fact_history_agent ON fact_history (agent, principal, session);
CREATE INDEX fact_history_principal ON fact_history (principal);

CREATE TABLE jobs (
    id TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    state TEXT NOT NULL,
    dedupe_key TEXT NOT NULL,
    lane TEXT,
    attempts INTEGER NOT NULL,
    failures INTEGER NOT NULL,
    crashes INTEGER NOT NULL,
    run_at INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    finished_at INTEGER,
    session_id INTEGER,
    owner_id INTEGER,
    generation INTEGER,
    lease_until INTEGER,
    lease_token TEXT,
    worker TEXT,
    request_id TEXT,
    error TEXT,
    payload TEXT NOT NULL
);
CREATE UNIQUE INDEX jobs_queued ON jobs (kind, dedupe_key) WHERE state = 'queued';
CREATE INDEX jobs_dead ON jobs (kind, dedupe_key) WHERE state = 'dead';
CREATE UNIQUE INDEX jobs_lane ON jobs (lane) WHERE state = 'running' AND lane IS NOT NULL;
CREATE INDEX jobs_due ON jobs (kind, run_at, id) WHERE state = 'queued';
CREATE INDEX jobs_leases ON jobs (lease_until) WHERE state = 'running';
CREATE INDEX jobs_created ON jobs (created_at, id);
CREATE INDEX jobs_state ON jobs (state, created_at, id);
CREATE INDEX jobs_owner ON jobs (owner_id);
CREATE INDEX jobs_session ON jobs (session_id);
CREATE INDEX jobs_finished ON jobs (finished_at) WHERE state = 'done';

CREATE TABLE receipts (
    id TEXT PRIMARY KEY,
    agent TEXT NOT NULL,
    principal TEXT NOT NULL,
    status TEXT NOT NULL,
    erased TEXT NOT NULL,
    erased_at INTEGER NOT NULL,
    purged_at INTEGER,
    waiting_for TEXT NOT NULL
);
CREATE INDEX receipts_unpurged ON receipts (erased_at, id) WHERE status = 'erased';

CREATE TABLE idempotency (
    owner_id INTEGER NOT NULL,
    route TEXT NOT NULL,
    key TEXT NOT NULL,
    body_hash TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    status INTEGER,
    body TEXT,
    PRIMARY KEY (owner_id, route, key)
);
CREATE INDEX idempotency_created ON idempotency (created_at);

CREATE TABLE answered_facts (
    owner_id INTEGER NOT NULL,
    route TEXT NOT NULL,
    key TEXT NOT NULL,
    fact_id TEXT NOT NULL,
    PRIMARY KEY (owner_id, route, key, fact_id),
    FOREIGN KEY (owner_id, route, key) REFERENCES idempotency (owner_id, route, key) ON DELETE CASCADE
);
CREATE INDEX answered_facts_fact ON answered_facts (fact_id);

CREATE TABLE commits (
    token TEXT PRIMARY KEY,
    at INTEGER NOT NULL
);
CREATE INDEX commits_at ON commits (at);
