"""Settings of the gateway process."""

from collections.abc import Sequence
from typing import Self

from duetime_core.exposure import Listener
from duetime_core.listening import NO_PORT
from duetime_core.settings import StoreClientSettings, secrets_key_of_all
from duetime_format.limits import QUEUE_COUNT_MAX, QUEUES_MAX_DEFAULT, REQUEST_BYTES_MAX, TOPICS_MAX_DEFAULT
from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from duetime_gateway.access.provider import Provider, check_url
from duetime_gateway.access.sealing import Seal

MIB = 1024 * 1024


class GatewaySettings(StoreClientSettings):
    """What one gateway needs to know; variables `DUETIME_GATEWAY_*`."""

    model_config = SettingsConfigDict(env_prefix="DUETIME_GATEWAY_", cli_prog_name="duetime-gateway")

    retry_address: str = Field(
        "", description="HOST:PORT of the retry service; empty: no Nack, SendBack and dead letters"
    )
    queue_count_default: int = Field(4, ge=1, le=QUEUE_COUNT_MAX, description="queues of a topic made without a count")
    auto_create_topics: bool = Field(True, description="whether a Send to an unknown topic makes it")
    topics_max: int = Field(
        TOPICS_MAX_DEFAULT,
        ge=1,
        description="most topics of the cluster; past it no new one is made",
    )
    queues_max: int = Field(
        QUEUES_MAX_DEFAULT,
        ge=1,
        description="most queues of topics for each shard of the cluster; past it no new topic is made",
    )
    refuse_empty_bodies: bool = Field(
        False,
        description="whether a Send without a body is refused, as RocketMQ's producers do; brokers stumble over it",
    )
    calls_in_flight_max: int = Field(4_096, ge=1, le=1_000_000, description="calls worked on at once; more are refused")
    waiting_bytes_max: int = Field(
        2 * REQUEST_BYTES_MAX,
        ge=REQUEST_BYTES_MAX,
        le=1 << 34,
        description="bytes that may wait for one shard; more are refused",
    )

    request_bytes_max: int = Field(
        48 * MIB,
        ge=REQUEST_BYTES_MAX,
        description="bytes of Send requests in work, each of which takes several times its size; others wait",
    )

    subscriptions_max: int = Field(2_048, ge=1, description="subscriptions at once; more are refused")
    watchers_max: int = Field(
        1_024, ge=1, le=1_024, description="streams of WatchTransactions at once; more are refused"
    )

    receive_streams_max: int = Field(
        2_048, ge=1, le=1_000_000, description="streams of ReceiveStream at once; more are refused"
    )

    audit_keep_days: int = Field(90, ge=1, le=3_650, description="how long the audit log keeps an event")

    auth: str = Field(
        "off",
        pattern="^(off|required)$",
        description="off: any caller may do everything; required: callers show a token, and have its user's rights",
    )
    rights_keep_ms: int = Field(
        3_600_000, ge=0, description="how long users keep their last rights while the metadata database does not answer"
    )
    oidc_issuer: str = Field("", description="identity provider whose tokens count too, by its issuer URL; empty: none")
    oidc_audience: str = Field("", description="audience that tokens of the identity provider must be for")
    oidc_keys_url: str = Field("", description="where its keys (JWKS) are; empty: where its discovery page says")
    oidc_name_claim: str = Field("sub", min_length=1, description="claim that names the user")
    oidc_groups_claim: str = Field("groups", min_length=1, description="claim that lists the user's groups")
    oidc_skew_s: int = Field(30, ge=0, le=300, description="by how much the provider's clock may differ")

    client_certificates: str = Field(
        "off",
        pattern="^(off|required)$",
        description="required: with TLS the port takes only who shows a certificate of the CA, beside a token if auth "
        "asks for one",
    )
    certified_port: int = Field(
        NO_PORT,
        ge=NO_PORT,
        le=65535,
        description="second gRPC port, for who comes by certificate: Spark's jobs, KEDA; 0: any free one, -1: none",
    )
    secrets_key: SecretStr = Field(
        default_factory=lambda: SecretStr(secrets_key_of_all()),
        description="what secrets of access keys are encrypted with, 32 bytes in base64; several with commas; empty: "
        "no signature of RocketMQ's clients counts; DUETIME_SECRETS_KEY sets it for all",
    )

    rocketmq: bool = Field(True, description="whether RocketMQ 5's clients are served")
    rocketmq_endpoint: str = Field(
        "", description="HOST:PORT that RocketMQ's clients are told to go on at; empty: where each one has begun"
    )
    rocketmq_streams_max: int = Field(
        2_048, ge=1, le=1_000_000, description="streams of RocketMQ's clients (Telemetry) at once; more are refused"
    )
    rocketmq_polls_max: int = Field(
        2_048, ge=1, le=1_000_000, description="receives of RocketMQ's clients that wait at once; more are refused"
    )

    published_host: str = Field(
        "",
        description="address of its machine at which a container's port is published, where that says who reaches it "
        "and host does not; empty: host",
    )

    @field_validator("oidc_issuer", "oidc_keys_url")
    @classmethod
    def _provider_is_safe(cls, url: str) -> str:
        if url:
            check_url(url)
        return url

    @model_validator(mode="after")
    def _provider_is_whole(self) -> Self:
        if bool(self.oidc_issuer) != bool(self.oidc_audience):
            raise ValueError("oidc_issuer and oidc_audience stand together: each issuer has tokens for others too")
        return self

    @model_validator(mode="after")
    def _asks_by_tls(self) -> Self:
        if not self.tls and (self.certified_port != NO_PORT or self.asks_for_certificates):
            raise ValueError("certified_port and client_certificates take a certificate of the gateway's own")
        return self

    @property
    def asks_for_certificates(self) -> bool:
        return self.client_certificates == "required"

    @property
    def listeners(self) -> Sequence[Listener]:
        certified = [Listener(self.reached_at, tls=True, authenticated=True)] * (self.certified_port != NO_PORT)
        return [*super().listeners, *certified]

    @property
    def asks_who_calls(self) -> bool:
        return self.auth == "required"

    @property
    def reached_at(self) -> str:
        return self.published_host or self.host

    @property
    def authenticated(self) -> bool:
        """Whether callers prove who they are: clients know no secret of the cluster."""
        return self.asks_who_calls or self.asks_for_certificates

    @property
    def provider(self) -> Provider | None:
        """None: only our own tokens count."""
        if not self.oidc_issuer:
            return None
        names = self.oidc_name_claim, self.oidc_groups_claim
        return Provider(self.oidc_issuer, self.oidc_audience, self.oidc_keys_url, *names, self.oidc_skew_s)

    @property
    def seal(self) -> Seal | None:
        """None: no secrets can be read."""
        text = self.secrets_key.get_secret_value()
        return Seal(text) if text else None

    @field_validator("secrets_key")
    @classmethod
    def _secrets_key_fits(cls, key: SecretStr) -> SecretStr:
        if key.get_secret_value():
            Seal(key.get_secret_value())
        return key

    @field_validator("retry_address", "rocketmq_endpoint")
    @classmethod
    def _address_parses(cls, text: str) -> str:
        host, _, port = text.rpartition(":")
        if text and not (host and port.isascii() and port.isdigit()):
            raise ValueError(f"address {text!r} is not HOST:PORT")
        return text
