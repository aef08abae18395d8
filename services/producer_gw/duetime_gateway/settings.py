"""Settings of the gateway process."""

from duetime_core.settings import StoreClientSettings
from duetime_format.limits import QUEUE_COUNT_MAX, REQUEST_BYTES_MAX, TOPICS_MAX_DEFAULT
from pydantic import Field, field_validator
from pydantic_settings import SettingsConfigDict

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

    @property
    def authenticated(self) -> bool:
        """Clients are not asked who they are."""
        return False

    @field_validator("retry_address")
    @classmethod
    def _address_parses(cls, text: str) -> str:
        host, _, port = text.rpartition(":")
        if text and not (host and port.isascii() and port.isdigit()):
            raise ValueError(f"retry address {text!r} is not HOST:PORT")
        return text
