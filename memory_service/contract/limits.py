"""Every limit on what a caller can grow; docs/reference/limits.md lists them and a test keeps it so."""

MAX_BODY_BYTES = 8 * 1024 * 1024
"""Bytes of one request body; more is answered 413 before it is read."""
BODY_GRACE_SECONDS = 5
"""Seconds that the first bytes of a body may take; a body that comes more slowly than both is answered 408."""
BODY_BYTES_PER_SECOND = 64 * 1024
"""For each so many bytes that have come a body has one more second. Judgement: below any link that agents work over."""
HEAD_SECONDS = 10
"""Seconds that a TLS handshake may take, and a connection be held before a request's whole head has come."""
MAX_HEADER_BYTES = 32 * 1024
"""Bytes of a request's path, query and headers together; more is 431, and no more is taken in."""
MAX_TOKEN_CHARS = 16_384
"""Characters of a token in a header. Projected tokens have about 1,200; a bound keeps junk from being parsed."""
MAX_ERRORS = 50
"""Wrong fields that one refusal names."""
MAX_FIELD_CHARS = 200
"""What a refused field is called is cut to this: a name that nobody knows may be as long as a body."""
MAX_ID_CHARS = 128
"""Characters of a session's, a workspace's, a turn's and a request's id."""
MAX_KEY_CHARS = 200
"""Characters of a fact's key and of an Idempotency-Key."""
MAX_AGENT_CHARS = 331
MAX_CURSOR_CHARS = 1_024
MAX_GENERATION_CHARS = 4_096
MAX_WHOLE_NUMBER = 2**53
"""The largest seq and revision that can be named: up to it JSON's numbers are exact everywhere."""
MAX_QUEUED_SECONDS = 320_000_000
"""Ten years; an outbox that cannot tell how long something waited sends this."""
MAX_SESSIONS = 1_000_000
"""Sessions of an agent on behalf of one user, in one workspace. Judgement: one a minute for two years."""
MAX_FACTS = 1_000_000
"""Facts of one owner, superseded ones too, to which a caller may add one. Judgement, as for sessions."""
MAX_TURNS_PER_WRITE = 500
MAX_TURN_CHARS = 1_000_000
"""Characters of one turn's text, its parts' texts included."""
MAX_PARTS_PER_TURN = 256
MAX_JSON_DEPTH = 32
"""How deeply tool arguments, tool results and attributes may nest."""
MAX_NUMBER_DIGITS = 4_300
"""Digits of a whole number in JSON: as many as Python reads and writes."""
MAX_NAME_CHARS = 200
MAX_URL_CHARS = 8_192
"""Characters of a media part's reference."""
MAX_ALT_CHARS = 4_096
"""Characters of what a media part shows, in words."""
MAX_QUERY_CHARS = 32_000
MAX_TOP_K = 100
MAX_TOKEN_BUDGET = 1_000_000
MAX_FILTER_VALUES = 64
MAX_FACT_CHARS = 16_000
MAX_EVIDENCE_CHARS = 16_000
MAX_HISTORY_LINES = 500
"""Changes of one fact that its history keeps, the newest ones."""
MAX_HISTORY_CHARS = 1_000_000
"""Characters of text in one fact's history; older changes go first."""
MAX_SOURCE_SEQS = 100
"""Turns of one session that a fact names as where it was said, the last ones."""
MAX_TAGS = 32
MAX_TAG_CHARS = 100
MAX_ATTRIBUTES_BYTES = 16_384
MAX_FACTS_PER_BATCH = 100
MAX_PAGE = 1_000
MAX_PAGE_CHARS = 2_000_000
"""Characters of text on one page; what is beyond them follows on the next. One item is given however long it is."""
DEFAULT_PAGE = 100
MAX_PRINCIPAL_CHARS = 1_000
MAX_IMPORT_LINES = 1_000
"""Lines of one import request; the command line sends as many requests as it takes."""
