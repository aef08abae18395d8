"""Certificates that tests make, good ones and bad ones."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from duetime.cli.authority import LOOPBACK, Authority, Pair
from duetime.cli.files import write_private
from duetime.tls import PemFiles
from duetime_core.access.callers import SPIFFE_PREFIX
from duetime_core.access.certificates import Certificates
from duetime_core.access.credentials import ClusterCredentials

DAY = timedelta(days=1)
SERVERS = ("gateway", "store", "scheduler", "retry")


class Certified:
    """A directory as `duetime certs init` makes it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.authority = Authority.make()

    def issue(
        self,
        role: str,
        *,
        uri: str | None = None,
        names: tuple[str, ...] = LOOPBACK,
        ends_in: timedelta = DAY,
        starts_in: timedelta = -DAY,
        by: Authority | None = None,
        trusts: bytes | None = None,
        place: str | None = None,
    ) -> PemFiles:
        """Writes a role's files. `by`: another CA than ours. `trusts`: CAs that count, instead of ours. `place`: of the
        files, instead of the role's."""
        now = datetime.now(UTC)
        pair = (by or self.authority).issue(
            SPIFFE_PREFIX + role if uri is None else uri, names, now + ends_in, now + starts_in, serves=True
        )
        return self.put(place or role, pair, trusts or self.authority.pair.cert)

    def put(self, place: str, pair: Pair, ca: bytes) -> PemFiles:
        for name, data in (("ca.crt", ca), ("tls.key", pair.key), ("tls.crt", pair.cert)):
            write_private(self.root / place / name, data)
        return self.files(place)

    def files(self, place: str) -> PemFiles:
        folder = self.root / place
        return PemFiles(folder / "ca.crt", folder / "tls.crt", folder / "tls.key")

    def issue_all(self) -> "Certified":
        for role in SERVERS:
            self.issue(role)
        return self


def credentials_of(files: PemFiles) -> ClusterCredentials:
    return ClusterCredentials(certificates=Certificates(files))
