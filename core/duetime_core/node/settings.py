"""Settings of a process: environment and flags, read once, checked together, then frozen."""

import argparse
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

from duetime.tls import PemFiles
from duetime_format.faults import worded
from duetime_format.levels import DEFAULT_DELAY_LEVELS, DelayLevels
from duetime_format.limits import GRPC_MESSAGE_BYTES_MAX, PULL_BYTES_MAX
from prometheus_client import CollectorRegistry
from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, CliSettingsSource, SettingsConfigDict

from duetime_core.access.callers import SPIFFE_PREFIX, ClusterSecret
from duetime_core.access.certificates import Certificates, HttpCertificates
from duetime_core.access.credentials import ClusterCredentials
from duetime_core.access.exposure import INSECURE_VARIABLE, NodeListener
from duetime_core.errors import StartupError
from duetime_core.limits.traffic import TrafficLimits
from duetime_core.rpc.channels import COPIES_MARK
from duetime_core.rpc.fronts import FrontKind
from duetime_core.rpc.listening import NO_PORT
from duetime_core.telemetry.secrets import masked

# Variables of all processes; others with these prefixes are misspelt.
CLUSTER_SECRET_VARIABLE = "DUETIME_CLUSTER_SECRET"  # noqa: S105 (its name)
TRANSACTION_TIMEOUT_VARIABLE = "DUETIME_TRANSACTION_TIMEOUT_MS"
# All three are set, or none.
TLS_VARIABLES = {"cert": "DUETIME_TLS_CERT_FILE", "key": "DUETIME_TLS_KEY_FILE", "CA": "DUETIME_TLS_CA_FILE"}
SPIFFE_PREFIX_VARIABLE = "DUETIME_TLS_SPIFFE_PREFIX"
FRONT_VARIABLE = "DUETIME_FRONT"
SHARED_VARIABLES = frozenset(
    {
        "DUETIME_DELAY_LEVELS",
        "DUETIME_LOG_LEVEL",
        "DUETIME_LOG_FORMAT",
        FRONT_VARIABLE,
        CLUSTER_SECRET_VARIABLE,
        TRANSACTION_TIMEOUT_VARIABLE,
        INSECURE_VARIABLE,
        SPIFFE_PREFIX_VARIABLE,
        *TLS_VARIABLES.values(),
    }
)
SHARED_PREFIXES = (
    "DUETIME_DELAY",
    "DUETIME_LOG",
    "DUETIME_CLUSTER",
    "DUETIME_TRANSACTION",
    "DUETIME_INSECURE",
    "DUETIME_TLS",
    FRONT_VARIABLE,
)
# Used by commands outside the cluster's processes: a password does not belong on a command line.
DATABASE_URL_VARIABLE = "DUETIME_DATABASE_URL"
# The key that encrypts secrets of access keys and webhooks in the metadata database.
SECRETS_KEY_VARIABLE = "DUETIME_SECRETS_KEY"


def insecure_of_all() -> Any:
    """The value of DUETIME_INSECURE."""
    return os.environ.get(INSECURE_VARIABLE) or False


def client_setting(name: str) -> Any:
    """A reader of a client's variable, such as DUETIME_TOKEN; empty if unset."""
    return lambda: os.environ.get(name, "")


def log_level_field() -> Any:
    """The setting `log_level` of a process."""
    return Field(
        default_factory=lambda: os.environ.get("DUETIME_LOG_LEVEL", "INFO"),
        pattern="^(DEBUG|INFO|WARNING|ERROR)$",
        description="DEBUG, INFO, WARNING or ERROR; DUETIME_LOG_LEVEL sets it for all",
    )


def log_format_field() -> Any:
    """The setting `log_format` of a process."""
    return Field(
        default_factory=lambda: os.environ.get("DUETIME_LOG_FORMAT", "auto"),
        pattern="^(auto|json|console)$",
        description="auto, json or console; DUETIME_LOG_FORMAT sets it for all",
    )


class ProcessSettings(Protocol):
    """The settings of a process beside its nodes."""

    @property
    def metrics_at(self) -> str: ...

    @property
    def metrics_port(self) -> int: ...

    def metrics_certificates(self) -> HttpCertificates | None:
        """The certificates of the metrics port; None: plain. Raises: StartupError."""
        ...

    @property
    def front(self) -> FrontKind: ...

    @property
    def log_level(self) -> str: ...

    @property
    def log_format(self) -> str: ...

    @property
    def otlp_endpoint(self) -> str: ...

    @property
    def listeners(self) -> Sequence[NodeListener]: ...

    @property
    def metrics_listener(self) -> Sequence[NodeListener]: ...

    @property
    def insecure(self) -> bool: ...

    @classmethod
    def read(cls) -> Self:
        """Raises: StartupError."""
        ...


def tls_file_of_all(kind: str) -> Any:
    """A reader of DUETIME_TLS_CERT_FILE, KEY_FILE or CA_FILE; empty if unset."""
    return lambda: os.environ.get(TLS_VARIABLES[kind], "")


def spiffe_prefix_of_all() -> str:
    """The value of DUETIME_TLS_SPIFFE_PREFIX, or the default."""
    return os.environ.get(SPIFFE_PREFIX_VARIABLE) or SPIFFE_PREFIX


def front_of_all() -> Any:
    """The value of DUETIME_FRONT, or the default."""
    return os.environ.get(FRONT_VARIABLE) or FrontKind.GRPCIO


def files_of(paths: Mapping[str, str]) -> PemFiles | None:
    """The files of a process's certificate, by kind; None: there are none.

    Raises:
        ValueError: some are missing.
    """
    if not any(paths.values()):
        return None
    missing = [TLS_VARIABLES[kind] for kind, path in paths.items() if not path]
    if missing:
        raise ValueError(f"certificate, key and CA must be set together; missing: {', '.join(missing)}")
    return PemFiles(ca=Path(paths["CA"]), cert=Path(paths["cert"]), key=Path(paths["key"]))


class _HelpFormatter(argparse.HelpFormatter):
    """Omits defaults from other variables: their functions have no useful names, and the texts name the variables."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return re.sub(r" \(default factory: [^)]*\)", "", action.help or "")


class NodeSettings(BaseSettings):
    """Settings of every process. Subclasses set `env_prefix`; each field is a variable and a `--flag`."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", validate_default=True, cli_kebab_case=True, cli_hide_none_type=True
    )

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(0, ge=0, le=65535, description="gRPC port; 0: any free one")
    metrics_port: int = Field(0, ge=-1, le=65535, description="Prometheus port; 0: any free one, -1: none")
    metrics_host: str = Field("", description="address of the Prometheus port; empty: host")
    metrics_tls: str = Field(
        "off",
        pattern="^(off|on|certified)$",
        description="whether the Prometheus port accepts only TLS, with the process's certificate; certified: only "
        "clients with a certificate of the CA",
    )
    probe_port: int = Field(
        NO_PORT, ge=NO_PORT, le=65535, description="plain gRPC port for health checks only; 0: any free one, -1: none"
    )
    tls_cert_file: str = Field(
        default_factory=tls_file_of_all("cert"),
        description="the process's certificate (PEM); with it all gRPC ports accept only TLS; DUETIME_TLS_CERT_FILE "
        "sets it for all",
    )
    tls_key_file: str = Field(
        default_factory=tls_file_of_all("key"), description="its key; DUETIME_TLS_KEY_FILE sets it for all"
    )
    tls_ca_file: str = Field(
        default_factory=tls_file_of_all("CA"),
        description="the trusted CAs, for certificates of other processes and of clients; DUETIME_TLS_CA_FILE sets it "
        "for all",
    )
    tls_spiffe_prefix: str = Field(
        default_factory=spiffe_prefix_of_all,
        pattern="^spiffe://.+/$",
        description="text before the role in a certificate's URI; DUETIME_TLS_SPIFFE_PREFIX sets it for all",
    )
    front: FrontKind = Field(
        default_factory=front_of_all,
        description="the gRPC server: grpcio, or compiled, of the package duetime-front; DUETIME_FRONT sets it for all",
    )
    delay_levels: str = Field(
        default_factory=lambda: os.environ.get("DUETIME_DELAY_LEVELS", DEFAULT_DELAY_LEVELS),
        description="delay of each level, equal on every node; DUETIME_DELAY_LEVELS sets it for all",
    )
    log_level: str = log_level_field()
    log_format: str = log_format_field()
    otlp_endpoint: str = Field(
        default_factory=lambda: os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", ""),
        pattern="^(https?://.+)?$",
        description="destination of traces: http://HOST:4318; empty: none; OTEL_EXPORTER_OTLP_ENDPOINT sets it for all",
    )
    cluster_secret: SecretStr = Field(
        default_factory=lambda: SecretStr(os.environ.get(CLUSTER_SECRET_VARIABLE, "")),
        description="secret shared by the cluster's processes; several with commas: the first is sent, all are "
        "accepted; empty: every caller that reaches the port is accepted; "
        "DUETIME_CLUSTER_SECRET sets it for all",
    )
    insecure: bool = Field(
        default_factory=insecure_of_all,
        description="whether it may listen beyond this machine without TLS and authentication; DUETIME_INSECURE=1 sets "
        "it for all",
    )
    upload_bytes_max: int = Field(
        TrafficLimits.upload_bytes_max,
        ge=2 * GRPC_MESSAGE_BYTES_MAX,
        description="bytes of incomplete requests; above it the slowest are rejected",
    )
    answer_bytes_max: int = Field(
        TrafficLimits.answer_bytes_max,
        ge=2 * PULL_BYTES_MAX,
        description="bytes of answers being made or written; above it they are shortened, then rejected",
    )
    connections_max: int = Field(
        TrafficLimits.connections_max,
        ge=16,
        le=1_000_000,
        description="connections to the gRPC port; the last tenth is for hosts with few",
    )
    drain_ms: int = Field(5_000, ge=0, le=600_000, description="longest wait of a stop for calls in flight")

    @field_validator("delay_levels")
    @classmethod
    def _levels_parse(cls, text: str) -> str:
        DelayLevels.parse(text)
        return text

    @field_validator("cluster_secret")
    @classmethod
    def _secret_fits(cls, secret: SecretStr) -> SecretStr:
        ClusterSecret(secret.get_secret_value())
        return secret

    @field_validator("metrics_tls", mode="before")
    @classmethod
    def _switch(cls, text: object) -> object:
        """Accepts other words for on and off."""
        words = {"": "off", "0": "off", "false": "off", "1": "on", "true": "on"}
        return words.get(str(text).lower(), text)

    @model_validator(mode="after")
    def _certificate_is_whole(self) -> Self:
        if self.files is None and self.metrics_tls != "off":
            raise ValueError(f"metrics_tls requires a certificate: {', '.join(TLS_VARIABLES.values())}")
        return self

    @property
    def files(self) -> PemFiles | None:
        """The files of its certificate; None: there are none."""
        return files_of({"cert": self.tls_cert_file, "key": self.tls_key_file, "CA": self.tls_ca_file})

    def credentials(self, registry: CollectorRegistry | None = None) -> ClusterCredentials:
        """Its credentials toward other processes. Raises: StartupError: the files are unreadable."""
        files = self.files
        certificates = Certificates(files, registry) if files is not None else None
        return ClusterCredentials(self.secret, certificates, self.tls_spiffe_prefix)

    @property
    def listeners(self) -> Sequence[NodeListener]:
        """Its addresses for calls."""
        return [NodeListener(self.reached_at, self.tls, self.authenticated)]

    @property
    def metrics_listener(self) -> Sequence[NodeListener]:
        """Its address for metrics, if any."""
        if self.metrics_port == NO_PORT:
            return []
        host = self.metrics_host or self.reached_at
        return [NodeListener(host, self.metrics_tls != "off", self.metrics_tls == "certified", metrics=True)]

    @property
    def metrics_at(self) -> str:
        """The address of the metrics port."""
        return self.metrics_host or self.host

    def metrics_certificates(self) -> HttpCertificates | None:
        """See ProcessSettings."""
        files = self.files
        if files is None or self.metrics_tls == "off":
            return None
        return HttpCertificates(Certificates(files), asked=self.metrics_tls == "certified")

    @property
    def reached_at(self) -> str:
        """Its address for others."""
        return self.host

    @property
    def tls(self) -> bool:
        """Whether calls use only TLS."""
        return bool(self.tls_cert_file)

    @property
    def authenticated(self) -> bool:
        """Whether callers authenticate: processes of the cluster use certificates or the secret."""
        return self.tls or bool(self.secret)

    @property
    def traffic_limits(self) -> TrafficLimits:
        return TrafficLimits(self.upload_bytes_max, self.answer_bytes_max, self.connections_max)

    @property
    def secret(self) -> ClusterSecret:
        return ClusterSecret(self.cluster_secret.get_secret_value())

    @property
    def levels(self) -> DelayLevels:
        return DelayLevels.parse(self.delay_levels)

    @classmethod
    def read(cls, arguments: list[str] | None = None) -> Self:
        """Reads the environment, overridden by flags; `arguments` defaults to the command line's.

        Raises:
            StartupError: one line with all faults, including unknown variables with the process's prefix.
        """
        given = sys.argv[1:] if arguments is None else arguments
        program = f"python -m {cls.__module__.partition('.')[0]}"
        flags: CliSettingsSource[Any] = CliSettingsSource(cls, program, formatter_class=_HelpFormatter)
        source = flags(args=given)
        return read_checked(cls, lambda: cls(_cli_settings_source=source))  # type: ignore[call-arg]


S = TypeVar("S", bound=BaseSettings)


def read_checked(kind: type[S], make: Callable[[], S]) -> S:
    """The settings of a process, from the environment.

    Raises:
        StartupError: one line with all faults, including unknown variables with the process's prefix.
    """
    prefix = kind.model_config.get("env_prefix", "")
    known = {(prefix + name).upper() for name in kind.model_fields}
    known |= SHARED_VARIABLES
    ours = (prefix, *SHARED_PREFIXES)
    unknown = sorted(name for name in os.environ if name.startswith(ours) and name.upper() not in known)
    faults = [f"{name} is not a setting of this process" for name in unknown]
    settings = None
    try:
        settings = make()
    except ValidationError as error:
        faults += [_sentence(prefix, dict(fault)) for fault in error.errors()]
    if faults or settings is None:
        raise StartupError("; ".join(faults))
    return settings


def _sentence(prefix: str, fault: dict[str, Any]) -> str:
    field = "_".join(str(part) for part in fault["loc"])
    name = field if field.isupper() else (prefix + field).upper()
    # The input of a rule about several settings is all of them.
    plain = isinstance(fault["input"], str | int | float | bool) and "secret" not in field
    if fault["type"] == "missing":
        return f"{name} (or --{field.lower().replace('_', '-')}): {worded(fault)}"
    value = "" if not plain else f" = {masked(repr(fault['input']))}"
    return f"{name}{value}: {masked(worded(fault))}"


def transaction_timeout_of_all() -> str:
    """The value of DUETIME_TRANSACTION_TIMEOUT_MS, the default of stores; if unset, RocketMQ's."""
    return os.environ.get(TRANSACTION_TIMEOUT_VARIABLE, "6000")


def database_url_of_commands() -> str:
    """The value of DUETIME_DATABASE_URL; empty if unset."""
    return os.environ.get(DATABASE_URL_VARIABLE, "")


def secrets_key_of_all() -> str:
    """The value of DUETIME_SECRETS_KEY; empty if unset."""
    return os.environ.get(SECRETS_KEY_VARIABLE, "")


def credentials_of_commands() -> ClusterCredentials:
    """Credentials from DUETIME_TLS_CERT_FILE, DUETIME_TLS_KEY_FILE and DUETIME_TLS_CA_FILE, or from the last alone, as
    for clients; else from the secret in DUETIME_CLUSTER_SECRET. Raises: StartupError."""
    paths = {kind: os.environ.get(name, "") for kind, name in TLS_VARIABLES.items()}
    try:
        files = files_of(paths) if paths["cert"] or paths["key"] or not paths["CA"] else PemFiles(Path(paths["CA"]))
    except ValueError as error:
        raise StartupError(str(error)) from error
    try:
        secret = ClusterSecret(os.environ.get(CLUSTER_SECRET_VARIABLE, ""))
    except ValueError as error:
        raise StartupError(f"{CLUSTER_SECRET_VARIABLE} {error}") from error
    return ClusterCredentials(secret, Certificates(files) if files is not None else None)


def parse_stores(text: str) -> dict[int, str]:
    """Store addresses by shard, from `0=HOST:PORT,1=HOST:PORT`. A shard with copies has all of
    theirs, `HOST:PORT|HOST:PORT`.

    Raises:
        ValueError: malformed, empty, or one shard twice.
    """
    stores: dict[int, str] = {}
    for part in text.split(","):
        shard, _, address = part.strip().partition("=")
        copies = [copy.rpartition(":")[::2] for copy in address.split(COPIES_MARK)]
        ports = all(host and port.isascii() and port.isdigit() for host, port in copies)
        if not (shard.isascii() and shard.isdigit() and ports):
            raise ValueError(f"store {part.strip()!r} is not SHARD=HOST:PORT")
        if len(set(copies)) < len(copies):
            raise ValueError(f"store {part.strip()!r} has the same address twice")
        if int(shard) in stores:
            raise ValueError(f"shard {shard} is named twice")
        stores[int(shard)] = address
    return stores


class StoreClientSettings(NodeSettings):
    """Settings shared by the processes that use the store."""

    database_url: str = Field(repr=False, description="metadata database, such as sqlite:////var/lib/duetime/meta.db")
    stores: str = Field(
        description="store addresses by shard: 0=HOST:PORT,1=HOST:PORT; of a shard with copies (experimental) all of "
        "them: 0=HOST:PORT|HOST:PORT|HOST:PORT"
    )
    store_timeout_ms: int = Field(5_000, ge=100, le=600_000, description="deadline of one call to a store")

    @field_validator("stores")
    @classmethod
    def _stores_parse(cls, text: str) -> str:
        parse_stores(text)
        return text

    @property
    def store_addresses(self) -> dict[int, str]:
        return parse_stores(self.stores)
