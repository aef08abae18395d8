"""The credentials between the cluster's processes: a certificate, or the cluster's secret."""

from dataclasses import dataclass, field

from duetime_core.access.callers import SPIFFE_PREFIX, Callers, ClusterSecret
from duetime_core.access.certificates import Certificates


@dataclass(frozen=True, slots=True)
class ClusterCredentials:
    """With certificates the secret is neither sent nor required. With neither, all calls are accepted."""

    secret: ClusterSecret = field(default_factory=ClusterSecret)
    certificates: Certificates | None = None
    # Text before the role in a certificate's URI.
    spiffe_prefix: str = SPIFFE_PREFIX

    def callers(self) -> Callers:
        """The permitted callers of this process's servers."""
        if self.certificates is None:
            return Callers(self.secret)
        refused = self.certificates.metrics.refused
        return Callers(prefix=self.spiffe_prefix, note=lambda reason: refused.labels(reason.lower()).inc())


NO_CREDENTIALS = ClusterCredentials()
