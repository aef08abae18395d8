"""A small certificate authority (X.509), for trials, compose and tests.

DIR/ca.crt  DIR/ca.key            the CA, an EC key on P-256
DIR/ROLE/tls.crt  tls.key         one certificate for each role, with spiffe://duetime/ROLE as its URI
DIR/ROLE/ca.crt                   a copy of DIR/ca.crt, so that a process needs one directory only
"""

import ipaddress
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA_DAYS = 3_650
# Clocks of machines differ: a certificate is valid from shortly before its creation.
SKEW = timedelta(minutes=10)
# Shards named in a store's certificate.
STORES = 16
LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Pair:
    """A certificate and its key (PEM)."""

    cert: bytes
    key: bytes


class Authority:
    """A CA: its certificate and its signing key."""

    def __init__(self, pair: Pair) -> None:
        """Raises: ValueError: the pair is not a CA."""
        self.pair = pair
        self._cert = x509.load_pem_x509_certificate(pair.cert)
        key = serialization.load_pem_private_key(pair.key, password=None)
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != self._cert.public_key():
            raise ValueError("the CA's key is not that of its certificate")
        self._key = key

    @classmethod
    def make(cls, days: int = CA_DAYS) -> "Authority":
        """Makes a new CA, signed by itself."""
        key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
        name = _name("DueTime CA")
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - SKEW)
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )
        return cls(Pair(_pem(builder.sign(key, hashes.SHA256())), _key_pem(key)))

    def issue(
        self, uri: str, names: Sequence[str], ends_at: datetime, starts_at: datetime | None = None, *, serves: bool
    ) -> Pair:
        """Issues a certificate and its key. `uri`: names the role. `names`: hosts and addresses. `serves`: whether it
        is also for a server."""
        key = ec.generate_private_key(ec.SECP256R1())
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if serves else [])]
        signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name(uri.rpartition("/")[2]))
            .issuer_name(self._cert.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(starts_at or datetime.now(UTC) - SKEW)
            .not_valid_after(ends_at)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri), *_names(names)]), False)
            .add_extension(signer, critical=False)
        )
        return Pair(_pem(builder.sign(self._key, hashes.SHA256())), _key_pem(key))


def names_of(role: str) -> list[str]:
    """The host names of a role in `duetime up`, compose and the Kubernetes manifests."""
    names = [*LOOPBACK, f"{role}.duetime"]
    services = [role, f"duetime-{role}"]
    if role == "gateway":
        # The Service of the second port, for callers with certificates.
        services.append("duetime-gateway-certified")
    if role == "store":
        numbered = [f"{service}-{number}" for service in services for number in range(STORES)]
        names += [f"{one}.{service}" for service in services for one in numbered if one.startswith(f"{service}-")]
        services += numbered
    for service in services:
        names += [service, *(f"{service}.duetime{domain}" for domain in ("", ".svc", ".svc.cluster.local"))]
    for service in (role, f"duetime-{role}"):
        names += [f"*.{service}.duetime.svc", f"*.{service}.duetime.svc.cluster.local"]
    return list(dict.fromkeys(names))


@dataclass(frozen=True)
class CertificateSummary:
    """The content of a certificate."""

    subject: str
    issuer: str
    role: str
    names: list[str]
    starts_at: datetime
    ends_at: datetime
    is_ca: bool


def read(data: bytes) -> Iterator[CertificateSummary]:
    """Yields the content of each certificate in a file. Raises: ValueError: there is none."""
    for cert in x509.load_pem_x509_certificates(data):
        uris, names = _sans(cert)
        role = next((uri.rpartition("/")[2] for uri in uris if uri.startswith("spiffe://")), "")
        ends = cert.not_valid_before_utc, cert.not_valid_after_utc
        subject, issuer = cert.subject.rfc4514_string(), cert.issuer.rfc4514_string()
        yield CertificateSummary(subject, issuer, role, [*uris, *names], *ends, _is_ca(cert))


def _sans(cert: x509.Certificate) -> tuple[list[str], list[str]]:
    try:
        found = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return [], []
    addresses = [str(address) for address in found.get_values_for_type(x509.IPAddress)]
    uris, names = (found.get_values_for_type(kind) for kind in (x509.UniformResourceIdentifier, x509.DNSName))
    return uris, [*names, *addresses]


def _is_ca(cert: x509.Certificate) -> bool:
    try:
        return cert.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _names(names: Sequence[str]) -> Iterator[x509.GeneralName]:
    for name in names:
        try:
            yield x509.IPAddress(ipaddress.ip_address(name))
        except ValueError:
            yield x509.DNSName(name)


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(cert: x509.Certificate) -> bytes:
    return cert.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    plain = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
