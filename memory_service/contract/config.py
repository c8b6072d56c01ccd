"""ServiceConfig: the one file that configures a memory service; a person or the operator writes it.

Secrets are never in it: a field whose name ends in `File` names a file that holds one and may change at any time.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from memory_service.contract.base import FileModel
from memory_service.contract.endpoints import EndpointUrl

Seconds = Annotated[float, Field(gt=0, le=86_400)]


class StorageType(StrEnum):
    """`local`: SQLite + Chroma in one folder, one process. `external`: Postgres + pgvector, any number of replicas."""

    LOCAL = "local"
    EXTERNAL = "external"


class StorageConfig(FileModel):
    """Where memory lives."""

    type: StorageType = Field(
        default=StorageType.LOCAL, description="Unset: `external` where a DSN or its file is given, else `local`."
    )
    data_dir: str | None = Field(
        default=None, description="local: the folder; the platform's user data folder if unset."
    )
    lock_wait_seconds: Annotated[float, Field(ge=0, le=86_400)] = 0
    dsn: str | None = Field(default=None, description="external: a Postgres URL; prefer dsnFile.", repr=False)
    dsn_file: str | None = None
    schema_name: str = Field(default="memplane", pattern=r"^[a-z_][a-z0-9_]{0,50}$", alias="schema")
    store_uid: str = Field(default="", max_length=64, description="Whose schema it is; checked against its `meta`.")
    store_name: str = Field(
        default="",
        max_length=400,
        description="Its namespace and name; finds what its predecessors in this cluster left.",
    )
    pool_size: Annotated[int, Field(ge=1, le=100)] = 8

    @model_validator(mode="before")
    @classmethod
    def _a_dsn_means_external(cls, given: Any) -> Any:
        is_external = isinstance(given, dict) and any(given.get(name) for name in ("dsn", "dsn_file", "dsnFile"))
        return {**given, "type": StorageType.EXTERNAL} if is_external and "type" not in given else given

    @field_validator("data_dir")
    @classmethod
    def _a_folder_is_local(cls, folder: str | None, info: ValidationInfo) -> str | None:
        if folder is not None and info.data.get("type") is StorageType.EXTERNAL:
            raise ValueError("no folder with a database: leave it out, or set `type: local` and give no DSN")
        return folder

    @field_validator("dsn", "dsn_file")
    @classmethod
    def _a_database_is_external(cls, place: str | None, info: ValidationInfo) -> str | None:
        if place is not None and info.data.get("type") is StorageType.LOCAL:
            raise ValueError("no database with `type: local`: leave it out, or set `type: external`")
        if place is not None and info.data.get("dsn") is not None:
            raise ValueError("one place is expected: give `dsn` or `dsnFile`")
        return place


class ChatConfig(FileModel):
    """An OpenAI-compatible chat endpoint; unset url: no extraction by a model and no digests, episodes only."""

    url: EndpointUrl | None = None
    model: str | None = None
    api_key_file: str | None = None
    headers: dict[str, str] = Field(default_factory=dict, repr=False)
    timeout_seconds: Seconds = 60
    max_retries: Annotated[int, Field(ge=0, le=20)] = 2
    context_tokens: Annotated[int, Field(ge=512)] = 16_384

    @model_validator(mode="after")
    def _url_and_model_come_together(self) -> Self:
        if (self.url is None) != (self.model is None):
            raise ValueError("give both `url` and `model`, or neither")
        return self


class EmbeddingConfig(FileModel):
    """An OpenAI-compatible embedding endpoint; unset url: the built-in all-MiniLM-L6-v2 (384 dimensions)."""

    url: EndpointUrl | None = None
    model: str | None = None
    api_key_file: str | None = None
    headers: dict[str, str] = Field(default_factory=dict, repr=False)
    dimensions: Annotated[int, Field(ge=1, le=4_096)] | None = None
    timeout_seconds: Seconds = 15
    query_timeout_seconds: Seconds = 2
    max_retries: Annotated[int, Field(ge=0, le=20)] = 2
    input_tokens: Annotated[int, Field(ge=16)] | None = Field(
        default=None,
        description="Longest input of the model; longer text is cut into chunks whose vectors are averaged.",
    )

    @model_validator(mode="after")
    def _endpoint_is_whole(self) -> Self:
        if (self.url is None) != (self.model is None):
            raise ValueError("give both `url` and `model`, or neither")
        if self.url is not None and self.dimensions is None:
            raise ValueError("`dimensions` is required with `url`: the schema is made for it")
        return self


class ModelsConfig(FileModel):
    """The model endpoints."""

    chat: ChatConfig = ChatConfig()
    embedding: EmbeddingConfig = EmbeddingConfig()


class EngineName(StrEnum):
    """What turns turns into candidate facts."""

    MEM0 = "mem0"
    NATIVE = "native"


class ExtractionConfig(FileModel):
    """How facts are extracted."""

    concurrency: Annotated[int, Field(ge=1, le=64)] = 4
    max_retries: Annotated[int, Field(ge=0, le=100)] = 5
    system_prompt: str | None = None
    idle_seconds: Annotated[float, Field(ge=0)] = Field(
        default=900, description="A session without writes for this long is extracted by the sweeper."
    )
    min_turns: Annotated[int, Field(ge=1)] = Field(
        default=8, description="Turns that wait before extraction starts by itself."
    )


class ShortTermConfig(FileModel):
    """The window."""

    token_budget: Annotated[int, Field(ge=1)] = 4_096
    hard_event_cap: Annotated[int, Field(ge=1)] = 2_000


class MediumTermConfig(FileModel):
    """The digest. Marks in tokens; derived from the budget when unset: trigger = budget, target = budget / 2."""

    enabled: bool | None = Field(default=None, description="Unset: whether a chat model is set.")
    compaction_trigger: Annotated[int, Field(ge=1)] | None = None
    compaction_target: Annotated[int, Field(ge=1)] | None = None
    digest_retention: Annotated[int, Field(ge=1)] = 20
    digest_tokens: Annotated[int, Field(ge=16)] = 1_024
    system_prompt: str | None = None


class LongTermConfig(FileModel):
    """Facts and episodes."""

    enabled: bool = True
    episodes: bool = True
    default_top_k: Annotated[int, Field(ge=1, le=100)] = 10
    score_floor: Annotated[float, Field(ge=0, le=1)] | None = None


class RetentionConfig(FileModel):
    """How long rows are kept, in seconds; unset means until they are erased."""

    turns_seconds: Annotated[float, Field(gt=0)] | None = None
    facts_seconds: Annotated[float, Field(gt=0)] | None = None


class AuthMode(StrEnum):
    """How callers prove themselves."""

    NONE = "none"
    STATIC = "static"
    CLUSTER = "cluster"


class Revocation(StrEnum):
    """Whether TokenReview must check each token: `required` refuses every token while it cannot."""

    PREFERRED = "preferred"
    REQUIRED = "required"


class UserIssuer(FileModel):
    """An issuer whose JWTs name principals."""

    issuer: str
    audiences: Annotated[tuple[str, ...], Field(min_length=1)]
    jwks_url: str | None = None
    jwks_file: str | None = None
    jwks_ca_file: str | None = Field(
        default=None, description="Authority of jwksUrl's certificate, instead of the system's."
    )
    claim: str = "sub"

    @model_validator(mode="after")
    def _keys_come_from_one_place(self) -> Self:
        if (self.jwks_url is None) == (self.jwks_file is None):
            raise ValueError("give exactly one of `jwksUrl` and `jwksFile`")
        if self.jwks_ca_file is not None and not (self.jwks_url or "").startswith("https://"):
            raise ValueError("`jwksCaFile` needs a `jwksUrl` that begins with `https://`")
        return self


class UsersConfig(FileModel):
    """Whose word counts for who the user is."""

    issuers: tuple[UserIssuer, ...] = ()


class ServiceAccountRef(FileModel):
    """A ServiceAccount."""

    namespace: str
    name: str


class IdentityConfig(FileModel):
    """Who may call. In a pod, issuer, JWKS and API server are found by themselves."""

    auth: AuthMode = AuthMode.NONE
    tokens_file: str | None = None
    issuer: str | None = None
    jwks: str | None = Field(default=None, description="URL or file of the cluster's JWKS.")
    audience: str | None = Field(default=None, description="memplane:<namespace>/<store>")
    admin_audience: str | None = Field(default=None, description="memplane-admin:<namespace>/<store>")
    operator_audience: str = "memplane:operator"
    operator: ServiceAccountRef | None = None
    admins: tuple[ServiceAccountRef, ...] = ()
    users: UsersConfig = UsersConfig()
    revocation: Revocation = Revocation.PREFERRED
    kube_api: str | None = Field(default=None, description="API server's URL; found by itself in a pod.")
    kube_ca_file: str | None = None
    kube_token_file: str | None = None
    allow_unauthenticated: bool = False
    allowed_origins: tuple[str, ...] = ()


class BindingsConfig(FileModel):
    """Where bindings are: ConfigMaps `<prefix>-<n>` watched through the API, and the folder they are mounted in."""

    directory: str | None = None
    namespace: str | None = None
    config_map_prefix: str | None = None


class TlsConfig(FileModel):
    """The server's certificate and key; both are read again when they change."""

    cert_file: str
    key_file: str


class ServerConfig(FileModel):
    """Where the service listens and how much it takes at once."""

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535)] = 8800
    metrics_port: Annotated[int, Field(ge=1, le=65_535)] | None = Field(
        default=None, description="Serve /metrics on this port, plain, instead of on the main one."
    )
    tls: TlsConfig | None = None
    max_in_flight: Annotated[int, Field(ge=1)] = 256
    grace_seconds: Annotated[float, Field(ge=0)] = 25

    @field_validator("metrics_port")
    @classmethod
    def _metrics_have_a_port_of_their_own(cls, port: int | None, info: ValidationInfo) -> int | None:
        if port is not None and port == info.data.get("port"):
            raise ValueError("another port than `port` is expected; leave it out to serve /metrics on that one")
        return port


class WorkerMode(StrEnum):
    """`inline`: jobs run in the serving process. `separate`: by `memplane work` (external storage only)."""

    INLINE = "inline"
    SEPARATE = "separate"


class WorkerConfig(FileModel):
    """Background work."""

    mode: WorkerMode = WorkerMode.INLINE
    concurrency: Annotated[int, Field(ge=1, le=64)] = 4
    lease_seconds: Annotated[float, Field(ge=1, le=86_400)] = 30
    poll_seconds: Annotated[float, Field(gt=0, le=86_400)] = 1
    sweep_seconds: Annotated[float, Field(gt=0, le=86_400)] = 30


class ServiceConfig(FileModel):
    """The whole configuration; every part has a default that works on a laptop."""

    storage: StorageConfig = StorageConfig()
    engine: EngineName = EngineName.MEM0
    models: ModelsConfig = ModelsConfig()
    extraction: ExtractionConfig = ExtractionConfig()
    short_term: ShortTermConfig = ShortTermConfig()
    medium_term: MediumTermConfig = MediumTermConfig()
    long_term: LongTermConfig = LongTermConfig()
    retention: RetentionConfig = RetentionConfig()
    identity: IdentityConfig = IdentityConfig()
    bindings: BindingsConfig = BindingsConfig()
    server: ServerConfig = ServerConfig()
    worker: WorkerConfig = WorkerConfig()

    @property
    def compaction_trigger(self) -> int:
        """Window tokens at which a fold is scheduled."""
        return self.medium_term.compaction_trigger or self.short_term.token_budget

    @property
    def compaction_target(self) -> int:
        """Window tokens that a fold leaves."""
        return self.medium_term.compaction_target or max(1, self.compaction_trigger // 2)

    @property
    def digests_enabled(self) -> bool:
        """Whether turns that leave the window are folded into a digest."""
        has_model = self.models.chat.url is not None
        return has_model if self.medium_term.enabled is None else self.medium_term.enabled and has_model

    @model_validator(mode="after")
    def _marks_are_in_order(self) -> Self:
        budget, trigger, target = self.short_term.token_budget, self.compaction_trigger, self.compaction_target
        if not (0 < target <= trigger <= budget) or (target == trigger and budget > 1):
            raise ValueError(
                "0 < compactionTarget < compactionTrigger <= tokenBudget is expected; "
                f"got {target}, {trigger}, {budget}"
            )
        if self.worker.mode is WorkerMode.SEPARATE and self.storage.type is StorageType.LOCAL:
            raise ValueError("worker.mode `separate` needs storage.type `external`: one process owns a local folder")
        if self.medium_term.enabled and self.models.chat.url is None:
            raise ValueError("mediumTerm.enabled needs models.chat: a chat model writes the digests")
        return self
