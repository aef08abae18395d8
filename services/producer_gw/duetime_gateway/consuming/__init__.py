"""Operations of consumers: pulls, leases, and the offsets of groups."""
