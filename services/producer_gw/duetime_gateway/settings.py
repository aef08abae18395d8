"""Settings of the gateway process."""

from collections.abc import Sequence
from typing import Self

from duetime_core.access.exposure import NodeListener
from duetime_core.access.sealing import Seal
from duetime_core.node.settings import StoreClientSettings, secrets_key_of_all
from duetime_core.rpc.listening import NO_PORT
from duetime_format.limits import QUEUE_COUNT_MAX, QUEUES_MAX_DEFAULT, REQUEST_BYTES_MAX, TOPICS_MAX_DEFAULT
from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from duetime_gateway.access.provider import Provider, check_url

MIB = 1024 * 1024


class GatewaySettings(StoreClientSettings):
    """Settings of one gateway; variables `DUETIME_GATEWAY_*`."""

    model_config = SettingsConfigDict(env_prefix="DUETIME_GATEWAY_")

    retry_address: str = Field(
        "", description="HOST:PORT of the retry service; empty: no Nack, SendBack or dead letters"
    )
    queue_count_default: int = Field(4, ge=1, le=QUEUE_COUNT_MAX, description="queues of a topic without a given count")
    auto_create_topics: bool = Field(True, description="whether a Send to an unknown topic creates it")
    topics_max: int = Field(
        TOPICS_MAX_DEFAULT,
        ge=1,
        description="limit of topics in the cluster; no more are created",
    )
    queues_max: int = Field(
        QUEUES_MAX_DEFAULT,
        ge=1,
        description="most queues of topics for each shard of the cluster; past it no new topic is made",
    )
    refuse_empty_bodies: bool = Field(
        False,
        description="whether a Send without a body is rejected, as by RocketMQ's producers; brokers cannot handle it",
    )
    calls_in_flight_max: int = Field(
        4_096, ge=1, le=1_000_000, description="maximum concurrent calls; more are rejected"
    )
    waiting_bytes_max: int = Field(
        2 * REQUEST_BYTES_MAX,
        ge=REQUEST_BYTES_MAX,
        le=1 << 34,
        description="bytes that may wait for one shard; more are rejected",
    )

    request_bytes_max: int = Field(
        48 * MIB,
        ge=REQUEST_BYTES_MAX,
        description="bytes of Send requests in progress (their memory is several times that); others wait",
    )

    subscriptions_max: int = Field(2_048, ge=1, description="maximum concurrent subscriptions; more are rejected")
    watchers_max: int = Field(
        1_024, ge=1, le=1_024, description="maximum concurrent streams of WatchTransactions; more are rejected"
    )

    receive_streams_max: int = Field(
        2_048, ge=1, le=1_000_000, description="maximum concurrent streams of ReceiveStream; more are rejected"
    )

    audit_keep_days: int = Field(90, ge=1, le=3_650, description="retention of events in the audit log")

    auth: str = Field(
        "off",
        pattern="^(off|required)$",
        description="off: any caller may do everything; required: callers send a token and get its user's rights",
    )
    rights_keep_ms: int = Field(
        3_600_000, ge=0, description="how long users keep their last rights while the metadata database is unavailable"
    )
    oidc_issuer: str = Field("", description="issuer URL of an accepted identity provider; empty: none")
    oidc_audience: str = Field("", description="required audience of the identity provider's tokens")
    oidc_keys_url: str = Field("", description="URL of its keys (JWKS); empty: from its discovery document")
    oidc_name_claim: str = Field("sub", min_length=1, description="claim that names the user")
    oidc_groups_claim: str = Field("groups", min_length=1, description="claim that lists the user's groups")
    oidc_skew_s: int = Field(30, ge=0, le=300, description="permitted difference of the provider's clock")

    client_certificates: str = Field(
        "off",
        pattern="^(off|required)$",
        description="required: with TLS the port accepts only clients with a certificate of the CA, in addition to a "
        "token if auth requires one",
    )
    certified_port: int = Field(
        NO_PORT,
        ge=NO_PORT,
        le=65535,
        description="second gRPC port, for clients with certificates: Spark's jobs, KEDA; 0: any free one, -1: none",
    )
    secrets_key: SecretStr = Field(
        default_factory=lambda: SecretStr(secrets_key_of_all()),
        description="key for the secrets of access keys and webhooks, 32 bytes in base64; several with commas; empty: "
        "signatures of RocketMQ's clients and new webhooks are rejected; DUETIME_SECRETS_KEY sets it for all",
    )

    rocketmq: bool = Field(True, description="whether RocketMQ 5's clients are served")
    rocketmq_endpoint: str = Field(
        "", description="HOST:PORT advertised to RocketMQ's clients; empty: each client's own endpoint"
    )
    rocketmq_streams_max: int = Field(
        2_048, ge=1, le=1_000_000, description="maximum concurrent Telemetry streams of RocketMQ's clients"
    )
    rocketmq_lite_subscriptions_max: int = Field(
        200_000,
        ge=1,
        le=10_000_000,
        description="maximum lite topics that RocketMQ's clients subscribe to, each of each client; half of them for "
        "one user or host",
    )
    rocketmq_polls_max: int = Field(
        2_048, ge=1, le=1_000_000, description="maximum waiting receives of RocketMQ's clients"
    )

    published_host: str = Field(
        "",
        description="host address to which the container's port is published; replaces host in the exposure check; "
        "empty: host",
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
            raise ValueError("oidc_issuer and oidc_audience must be set together: issuers serve other audiences too")
        return self

    @model_validator(mode="after")
    def _asks_by_tls(self) -> Self:
        if not self.tls and (self.certified_port != NO_PORT or self.asks_for_certificates):
            raise ValueError("certified_port and client_certificates require the gateway to have a certificate")
        return self

    @property
    def asks_for_certificates(self) -> bool:
        return self.client_certificates == "required"

    @property
    def listeners(self) -> Sequence[NodeListener]:
        certified = [NodeListener(self.reached_at, tls=True, authenticated=True)] * (self.certified_port != NO_PORT)
        return [*super().listeners, *certified]

    @property
    def asks_who_calls(self) -> bool:
        return self.auth == "required"

    @property
    def reached_at(self) -> str:
        return self.published_host or self.host

    @property
    def authenticated(self) -> bool:
        """Whether callers are authenticated: clients have no secret of the cluster."""
        return self.asks_who_calls or self.asks_for_certificates

    @property
    def provider(self) -> Provider | None:
        """None: only DueTime's own tokens are accepted."""
        if not self.oidc_issuer:
            return None
        names = self.oidc_name_claim, self.oidc_groups_claim
        return Provider(self.oidc_issuer, self.oidc_audience, self.oidc_keys_url, *names, self.oidc_skew_s)

    @property
    def seal(self) -> Seal | None:
        """None: no secrets can be decrypted."""
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
