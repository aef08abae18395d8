"""A process's own certificate, its key and the CAs that it trusts, as its files have them now."""

import ssl
from collections.abc import Callable
from datetime import datetime

import structlog
from duetime.tls import Files, Followed, Pems
from prometheus_client import CollectorRegistry, Counter, Gauge

from duetime_core.errors import StartupError

log = structlog.get_logger()


class CertificateMetrics:
    """What is counted of certificates. They are there where TLS is on."""

    def __init__(self, registry: CollectorRegistry | None) -> None:
        self.expires = Gauge(
            "duetime_tls_certificate_expires_timestamp_seconds",
            "End of the process's own certificate, and of the CA that lasts longest.",
            ["of"],
            registry=registry,
        )
        self.reloads = Counter(
            "duetime_tls_reloads_total",
            "Changed files of certificates: taken, or refused since they can't be read or do not fit.",
            ["outcome"],
            registry=registry,
        )
        self.refused = Counter(
            "duetime_tls_refused_total",
            "Calls refused for the certificate that was shown, or for none.",
            ["reason"],
            registry=registry,
        )
        for outcome in ("taken", "refused"):
            self.reloads.labels(outcome)


class Certificates:
    """Those of one process. Safe to share between threads."""

    def __init__(self, files: Files, registry: CollectorRegistry | None = None) -> None:
        """Raises: StartupError: the files can't be read, or do not fit."""
        self.files = files
        self.metrics = CertificateMetrics(registry)
        try:
            self._followed = Followed(files, changed=self._take, failed=self._tell)
            self._ends = _ends_of(self._followed.now())
        except (OSError, ValueError) as error:
            raise StartupError(f"certificate {files.cert}, key {files.key} and CA {files.ca}: {error}") from error
        for of in ("own", "ca"):
            self.metrics.expires.labels(of).set_function(self._end_getter(of))

    @property
    def followed(self) -> Followed:
        return self._followed

    def now(self) -> Pems:
        """The last that could be read and fitted: the same object until another does."""
        return self._followed.now()

    def _take(self, pems: Pems) -> None:
        self.metrics.reloads.labels("taken").inc()
        try:
            self._ends = _ends_of(pems)
        except ValueError:
            # What OpenSSL takes is taken, although its end is not known.
            self._ends = {}
        own = self._ends.get("own")
        log.info("certificate taken", expires_at=None if own is None else own.isoformat())

    def _tell(self, error: OSError) -> None:
        self.metrics.reloads.labels("refused").inc()
        log.error("changed certificate not taken, the one before stays in use", error=str(error))

    def _end_getter(self, of: str) -> Callable[[], float]:
        def end() -> float:
            self.now()
            found = self._ends.get(of)
            return 0.0 if found is None else found.timestamp()

        return end


def _ends_of(pems: Pems) -> dict[str, datetime]:
    """Until when they are valid. Raises: ValueError: no certificates."""
    # Imported where it is needed: without TLS a start need not wait for it.
    from cryptography import x509

    found = {}
    if pems.cert is not None:
        found["own"] = x509.load_pem_x509_certificate(pems.cert).not_valid_after_utc
    if pems.ca is not None:
        found["ca"] = max(one.not_valid_after_utc for one in x509.load_pem_x509_certificates(pems.ca))
    return found


class HttpCertificates:
    """The same, as the HTTP server of metrics takes them: TLS 1.2 or newer."""

    def __init__(self, certificates: Certificates, *, asked: bool) -> None:
        """`asked`: whether clients have to show a certificate.

        Raises:
            StartupError: as Certificates.
        """
        self._certificates = certificates
        self._asked = asked
        self._pems = certificates.now()
        try:
            self._context = self._make()
        except OSError as error:
            raise StartupError(f"metrics with certificate {certificates.files.cert}: {error}") from error

    def context(self) -> ssl.SSLContext:
        """For a connection that begins now."""
        pems = self._certificates.now()
        if pems is not self._pems:
            try:
                self._context, self._pems = self._make(), pems
            except OSError:
                # They change at this moment: the next connection sees.
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
