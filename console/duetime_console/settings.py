"""The console's settings: its address, its cluster, and its sessions."""

from pathlib import Path
from typing import Any, Self

from duetime.client.connection import SERVER_DEFAULT
from duetime.client.tokens import IN_PLAIN_VARIABLE, TOKEN_FILE_VARIABLE, TOKEN_VARIABLE
from duetime_core.access.exposure import NodeListener
from duetime_core.node.settings import (
    client_setting,
    insecure_of_all,
    log_format_field,
    log_level_field,
    read_checked,
    tls_file_of_all,
)
from pydantic import Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

PORT = 9880
_SECRET_CHARS_MIN = 16


class Settings(BaseSettings):
    """Each field is a variable: DUETIME_CONSOLE_SERVER."""

    model_config = SettingsConfigDict(env_prefix="DUETIME_CONSOLE_", frozen=True, extra="forbid", validate_default=True)

    server: str = Field(SERVER_DEFAULT, description="the gateway, HOST:PORT")
    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(PORT, ge=0, le=65535, description="port of pages, JSON and metrics; 0: any free one")
    published_host: str = Field(
        "",
        description="host address to which the container port is published; replaces host in the exposure "
        "check; empty: host",
    )
    metrics_port: int = Field(-1, ge=-1, le=65535, description="a separate port for metrics; 0: any free one, -1: none")
    metrics_host: str = Field("", description="address of the metrics port; empty: host")
    hosts: str = Field(
        "",
        description="host names of the console, with commas; others are rejected; empty: this machine's names "
        "if it listens on loopback, else any",
    )
    read_only: bool = Field(False, description="whether it rejects all changes to the cluster")
    token: SecretStr = Field(
        default_factory=client_setting(TOKEN_VARIABLE),
        description="its own token for a cluster with users, used while no user is signed in; DUETIME_TOKEN too",
    )
    token_file: str = Field(
        default_factory=client_setting(TOKEN_FILE_VARIABLE),
        description="a file with the token, read at each use; DUETIME_TOKEN_FILE too",
    )
    token_in_plain: bool = Field(
        default_factory=lambda: client_setting(IN_PLAIN_VARIABLE)() or False,
        description="whether tokens are sent to another machine without encryption; DUETIME_TOKEN_IN_PLAIN=1 too",
    )
    secret: SecretStr = Field(
        SecretStr(""),
        description="the secret that seals sessions, equal on every console of a cluster; several with commas: the "
        "first seals, all open; empty: from secret_file",
    )
    secret_file: str = Field(
        "", description="file of a generated secret, created if missing; empty: in the user's state folder"
    )
    session_idle_ms: int = Field(
        1_800_000, ge=60_000, le=86_400_000, description="idle time after which a session ends"
    )
    session_ms_max: int = Field(43_200_000, ge=60_000, le=2_592_000_000, description="maximum length of a session")
    secure_cookies: bool = Field(
        False, description="whether browsers use HTTPS only, such as behind a proxy; implied by tls_cert_file"
    )
    tls_cert_file: str = Field(
        "", description="its certificate (PEM), reloaded without a restart; browsers then use HTTPS only"
    )
    tls_key_file: str = Field("", description="the certificate's key")
    server_ca_file: str = Field(
        default_factory=tls_file_of_all("CA"),
        description="the trusted CAs of the gateway's certificate; empty: no TLS to the gateway; "
        "DUETIME_TLS_CA_FILE sets it for all",
    )
    refresh_ms: int = Field(1_000, ge=100, le=60_000, description="interval of reads of the cluster")
    history_hours: int = Field(24, ge=1, le=168, description="length of the past in memory, by minute")
    prometheus_url: str = Field(
        "",
        pattern=r"^(https?://[^\s@?#]+)?$",
        description="a Prometheus that scrapes the cluster, http://HOST:9090: queried for the past beyond "
        "history_hours, or before the console's start",
    )
    prometheus_labels: str = Field(
        "",
        pattern=r'^([a-zA-Z_]\w*="[^"\\\n]*"(,[a-zA-Z_]\w*="[^"\\\n]*")*)?$',
        description='labels of this cluster, if Prometheus has several: namespace="duetime",cluster="eu"',
    )
    runbooks: str = Field(
        "", pattern="^(https?://.+)?$", description="URL of your own runbooks; empty: those of the console"
    )
    errors: str = Field(
        "/errors",
        pattern="^(https?://.+|/.*)$",
        description="URL of the explanations of error reasons; default: the console's own page",
    )
    connections_max: int = Field(
        2_048, ge=16, le=65_536, description="maximum connections; at most four fifths of its descriptors"
    )
    drain_ms: int = Field(3_000, ge=0, le=600_000, description="longest time for which a stop waits for requests")
    insecure: bool = Field(
        default_factory=insecure_of_all,
        description="whether it may listen beyond this machine without TLS; DUETIME_INSECURE=1 sets it for all",
    )
    log_level: str = log_level_field()
    log_format: str = log_format_field()

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if bool(self.tls_cert_file) != bool(self.tls_key_file):
            raise ValueError("tls_cert_file and tls_key_file must be set together")
        if any(len(one) < _SECRET_CHARS_MIN for one in self.secrets):
            raise ValueError(f"secret has fewer than {_SECRET_CHARS_MIN} characters")
        return self

    @property
    def secrets(self) -> list[str]:
        """Those given."""
        return [one.strip() for one in self.secret.get_secret_value().split(",") if one.strip()]

    @property
    def listener(self) -> NodeListener:
        """The page listener. The gateway authorizes all calls, by the token of the signed-in user."""
        return NodeListener(self.reached_at, bool(self.tls_cert_file), authenticated=True)

    @property
    def metrics_listener(self) -> list[NodeListener]:
        """The metrics listener, if enabled: like the pages, with TLS if a certificate is set."""
        if self.metrics_port < 0:
            return []
        return [NodeListener(self.metrics_host or self.reached_at, bool(self.tls_cert_file), False, metrics=True)]

    @property
    def reached_at(self) -> str:
        return self.published_host or self.host

    @property
    def https(self) -> bool:
        """Whether browsers use HTTPS only."""
        return bool(self.tls_cert_file) or self.secure_cookies

    def own_token(self) -> str:
        """The console's own token; empty: none. Raises: OSError: its file can't be read."""
        if text := self.token.get_secret_value():
            return text
        return Path(self.token_file).read_text().strip() if self.token_file else ""

    @classmethod
    def read(cls, **given: Any) -> Self:
        """Settings from the environment, overridden by `given`. Raises: StartupError."""
        return read_checked(cls, lambda: cls(**given))
