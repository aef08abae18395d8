"""What consumers use: pulls, leases, and the offsets of groups."""
