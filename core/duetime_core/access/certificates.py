"""A process's own certificate, its key and its trusted CAs, as currently in its files."""

import ssl
from collections.abc import Callable
from datetime import datetime

import structlog
from duetime.tls import PemFiles, PemFollower, Pems
from prometheus_client import CollectorRegistry, Counter, Gauge

from duetime_core.errors import StartupError

log = structlog.get_logger()


class CertificateMetrics:
    """Metrics of certificates; present only with TLS."""

    def __init__(self, registry: CollectorRegistry | None) -> None:
        self.expires = Gauge(
            "duetime_tls_certificate_expires_timestamp_seconds",
            "Expiry of the process's own certificate, and of the CA valid for longest.",
            ["of"],
            registry=registry,
        )
        self.reloads = Counter(
            "duetime_tls_reloads_total",
            "Changed certificate files: loaded, or rejected because unreadable or inconsistent.",
            ["outcome"],
            registry=registry,
        )
        self.refused = Counter(
            "duetime_tls_refused_total",
            "Calls rejected for their certificate, or for lack of one.",
            ["reason"],
            registry=registry,
        )
        for outcome in ("taken", "refused"):
            self.reloads.labels(outcome)


class Certificates:
    """The certificates of one process. Thread-safe."""

    def __init__(self, files: PemFiles, registry: CollectorRegistry | None = None) -> None:
        """Raises: StartupError: the files are unreadable or inconsistent."""
        self.files = files
        self.metrics = CertificateMetrics(registry)
        try:
            self._followed = PemFollower(files, changed=self._take, failed=self._tell)
            self._ends = _ends_of(self._followed.now())
        except (OSError, ValueError) as error:
            raise StartupError(f"certificate {files.cert}, key {files.key} and CA {files.ca}: {error}") from error
        for of in ("own", "ca"):
            self.metrics.expires.labels(of).set_function(self._end_getter(of))

    @property
    def followed(self) -> PemFollower:
        return self._followed

    def now(self) -> Pems:
        """The last readable, consistent files: the same object until they change."""
        return self._followed.now()

    def _take(self, pems: Pems) -> None:
        self.metrics.reloads.labels("taken").inc()
        try:
            self._ends = _ends_of(pems)
        except ValueError:
            # OpenSSL accepts it, so it is used, though its expiry is unknown.
            self._ends = {}
        own = self._ends.get("own")
        log.info("certificate loaded", expires_at=None if own is None else own.isoformat())

    def _tell(self, error: OSError) -> None:
        self.metrics.reloads.labels("refused").inc()
        log.error("cannot load the changed certificate; the previous one stays in use", error=str(error))

    def _end_getter(self, of: str) -> Callable[[], float]:
        def end() -> float:
            self.now()
            found = self._ends.get(of)
            return 0.0 if found is None else found.timestamp()

        return end


def _ends_of(pems: Pems) -> dict[str, datetime]:
    """Their expiry. Raises: ValueError: no certificates."""
    # Imported late: without TLS, a start need not wait for it.
    from cryptography import x509

    found = {}
    if pems.cert is not None:
        found["own"] = x509.load_pem_x509_certificate(pems.cert).not_valid_after_utc
    if pems.ca is not None:
        found["ca"] = max(one.not_valid_after_utc for one in x509.load_pem_x509_certificates(pems.ca))
    return found


class HttpCertificates:
    """The same for the HTTP server of metrics: TLS 1.2 or newer."""

    def __init__(self, certificates: Certificates, *, asked: bool) -> None:
        """`asked`: whether clients must have a certificate.

        Raises:
            StartupError: see Certificates.
        """
        self._certificates = certificates
        self._asked = asked
        self._pems = certificates.now()
        try:
            self._context = self._make()
        except OSError as error:
            raise StartupError(f"metrics with certificate {certificates.files.cert}: {error}") from error

    def context(self) -> ssl.SSLContext:
        """The context for a new connection."""
        pems = self._certificates.now()
        if pems is not self._pems:
            try:
                self._context, self._pems = self._make(), pems
            except OSError:
                # The files are being changed: the next connection tries again.
                return self._context
        return self._context

    def _make(self) -> ssl.SSLContext:
        files = self._certificates.files
        assert files.cert is not None, "a process has a certificate"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(files.cert, files.key, password=lambda: b"")
        if self._asked:
            context.load_verify_locations(files.ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context
