"""The console's settings: where it listens, which cluster it shows, and how it keeps sessions."""

from pathlib import Path
from typing import Any, Self

from duetime.client.connection import SERVER_DEFAULT
from duetime.client.tokens import IN_PLAIN_VARIABLE, TOKEN_FILE_VARIABLE, TOKEN_VARIABLE
from duetime_core.exposure import Listener
from duetime_core.settings import (
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
        description="address of its machine at which a container's port is published, where that says who reaches it "
        "and host does not; empty: host",
    )
    metrics_port: int = Field(-1, ge=-1, le=65535, description="a port of metrics alone; 0: any free one, -1: none")
    metrics_host: str = Field("", description="address of the Prometheus port; empty: host")
    hosts: str = Field(
        "",
        description="names by which browsers reach it, with commas; others are refused; empty: this machine's names "
        "where it listens on loopback, else any",
    )
    read_only: bool = Field(False, description="whether it refuses all that would change the cluster")
    token: SecretStr = Field(
        default_factory=client_setting(TOKEN_VARIABLE),
        description="the token by which it watches a cluster with users while nobody is signed in; DUETIME_TOKEN too",
    )
    token_file: str = Field(
        default_factory=client_setting(TOKEN_FILE_VARIABLE),
        description="the file that has it, read at each use; DUETIME_TOKEN_FILE too",
    )
    token_in_plain: bool = Field(
        default_factory=lambda: client_setting(IN_PLAIN_VARIABLE)() or False,
        description="whether tokens are shown to another machine without encryption; DUETIME_TOKEN_IN_PLAIN=1 too",
    )
    secret: SecretStr = Field(
        SecretStr(""),
        description="what sessions are sealed with, equal on every console of a cluster; several with commas: the "
        "first seals, all open; empty: that of secret_file",
    )
    secret_file: str = Field(
        "", description="where a secret of its own is kept, made where there is none; empty: in the user's state folder"
    )
    session_idle_ms: int = Field(1_800_000, ge=60_000, le=86_400_000, description="a session ends when idle so long")
    session_ms_max: int = Field(43_200_000, ge=60_000, le=2_592_000_000, description="and in any case after so long")
    secure_cookies: bool = Field(
        False, description="whether browsers reach it by HTTPS alone, as behind a proxy; with tls_cert_file they do"
    )
    tls_cert_file: str = Field(
        "", description="its certificate (PEM), renewed without a restart; with it browsers come by HTTPS alone"
    )
    tls_key_file: str = Field("", description="the certificate's key")
    server_ca_file: str = Field(
        default_factory=tls_file_of_all("CA"),
        description="the CAs that count of the gateway's certificate; empty: the gateway takes no TLS; "
        "DUETIME_TLS_CA_FILE sets it for all",
    )
    refresh_ms: int = Field(1_000, ge=100, le=60_000, description="between two looks at the cluster")
    history_hours: int = Field(24, ge=1, le=168, description="how much of the past it keeps, by minute")
    prometheus_url: str = Field(
        "",
        pattern=r"^(https?://[^\s@?#]+)?$",
        description="a Prometheus that scrapes the cluster, http://HOST:9090: it is asked for the past beyond "
        "history_hours, or before the console's start",
    )
    prometheus_labels: str = Field(
        "",
        pattern=r'^([a-zA-Z_]\w*="[^"\\\n]*"(,[a-zA-Z_]\w*="[^"\\\n]*")*)?$',
        description='which of several clusters that it scrapes this one is: namespace="duetime",cluster="eu"',
    )
    runbooks: str = Field(
        "", pattern="^(https?://.+)?$", description="where your own runbooks are read; empty: in the console"
    )
    errors: str = Field(
        "/errors",
        pattern="^(https?://.+|/.*)$",
        description="where reasons of errors are explained: the console's own page",
    )
    connections_max: int = Field(
        2_048, ge=16, le=65_536, description="most connections; four fifths of its descriptors at most"
    )
    drain_ms: int = Field(3_000, ge=0, le=600_000, description="longest time that a stop waits for requests")
    insecure: bool = Field(
        default_factory=insecure_of_all,
        description="whether it may listen beyond this machine without TLS; DUETIME_INSECURE=1 says so for all",
    )
    log_level: str = log_level_field()
    log_format: str = log_format_field()

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if bool(self.tls_cert_file) != bool(self.tls_key_file):
            raise ValueError("tls_cert_file and tls_key_file stand together")
        if any(len(one) < _SECRET_CHARS_MIN for one in self.secrets):
            raise ValueError(f"secret has fewer than {_SECRET_CHARS_MIN} characters")
        return self

    @property
    def secrets(self) -> list[str]:
        """Those given."""
        return [one.strip() for one in self.secret.get_secret_value().split(",") if one.strip()]

    @property
    def listener(self) -> Listener:
        """Where it listens. Who may do what is the gateway's to decide, by the token of whoever is signed in."""
        return Listener(self.reached_at, bool(self.tls_cert_file), authenticated=True)

    @property
    def metrics_listener(self) -> list[Listener]:
        """Where it tells its metrics, if it does: as its pages, by TLS where it has a certificate."""
        if self.metrics_port < 0:
            return []
        return [Listener(self.metrics_host or self.reached_at, bool(self.tls_cert_file), False, metrics=True)]

    @property
    def reached_at(self) -> str:
        return self.published_host or self.host

    @property
    def https(self) -> bool:
        """Whether browsers come by HTTPS alone."""
        return bool(self.tls_cert_file) or self.secure_cookies

    def own_token(self) -> str:
        """The console's own; empty: it has none. Raises: OSError: its file can't be read."""
        if text := self.token.get_secret_value():
            return text
        return Path(self.token_file).read_text().strip() if self.token_file else ""

    @classmethod
    def read(cls, **given: Any) -> Self:
        """From the environment, overridden by what is given. Raises: StartupError."""
        return read_checked(cls, lambda: cls(**given))
