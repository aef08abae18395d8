"""Settings of the webhook worker."""

from pathlib import Path
from typing import Self

from duetime.client.connection import SERVER_DEFAULT
from duetime_core.access.sealing import Seal
from duetime_core.node.settings import NodeSettings, secrets_key_of_all, tls_file_of_all
from duetime_format.limits import BACKOFF_MS_MAX, INVISIBLE_MS_MAX
from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from duetime_webhooks.addresses import NetworkRules, parse_networks
from duetime_webhooks.responses import RETRY_AFTER_MS_MIN


class WebhookSettings(NodeSettings):
    """See README.md."""

    model_config = SettingsConfigDict(env_prefix="DUETIME_WEBHOOKS_")

    database_url: str = Field(repr=False, description="metadata database, such as sqlite:////var/lib/duetime/meta.db")
    server: str = Field(SERVER_DEFAULT, description="the gateway, HOST:PORT")
    server_ca_file: str = Field(
        default_factory=tls_file_of_all("CA"),
        description="the trusted CAs of the gateway's certificate; empty: no TLS to the gateway; "
        "DUETIME_TLS_CA_FILE sets it for all",
    )
    secrets_key: SecretStr = Field(
        default_factory=lambda: SecretStr(secrets_key_of_all()),
        description="key of the gateways that decrypts signing secrets; several with commas; DUETIME_SECRETS_KEY sets "
        "it for all",
    )
    permitted_networks: str = Field(
        "",
        description="networks of your own that webhooks may reach, with commas: 10.1.0.0/16,192.168.7.9; empty: public "
        "addresses only",
    )
    refused_networks: str = Field(
        "", description="networks that webhooks may not reach, with commas, such as the cluster's public addresses"
    )
    allow_http: bool = Field(False, description="whether URLs may begin with http://, which others can read")
    ca_file: str = Field("", description="CAs (PEM) of receivers that are trusted beside the system's; empty: none")
    requests_max: int = Field(256, ge=1, le=10_000, description="maximum requests at once; others wait for their turn")
    messages_bytes_max: int = Field(
        64 * 1024 * 1024,
        ge=16 * 1024 * 1024,
        le=1024 * 1024 * 1024 * 1024,
        description="maximum bytes of held messages; webhooks with more of them wait. Each may hold one message beyond "
        "it, if that is larger than half of its part",
    )
    retry_after_ms_max: int = Field(
        3_600_000,
        ge=RETRY_AFTER_MS_MIN,
        le=BACKOFF_MS_MAX,
        description="longest pause that a receiver can ask for with Retry-After",
    )

    lease_ms: int = Field(
        60_000,
        ge=5_000,
        le=INVISIBLE_MS_MAX,
        description="time until messages of a dead worker are delivered by another one",
    )

    @field_validator("permitted_networks", "refused_networks")
    @classmethod
    def _networks_parse(cls, text: str) -> str:
        parse_networks(text)
        return text

    @model_validator(mode="after")
    def _key_is_given(self) -> Self:
        key = self.secrets_key.get_secret_value()
        if not key:
            raise ValueError("secrets_key is not set: without it no signing secret can be decrypted")
        Seal(key)
        return self

    @property
    def rules(self) -> NetworkRules:
        """The networks that webhooks may reach."""
        return NetworkRules(parse_networks(self.permitted_networks), parse_networks(self.refused_networks))

    @property
    def seal(self) -> Seal:
        return Seal(self.secrets_key.get_secret_value())

    @property
    def receivers_ca(self) -> Path | None:
        return Path(self.ca_file) if self.ca_file else None
