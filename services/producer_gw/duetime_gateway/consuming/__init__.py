"""What consumers use: pulls, leases, offsets and groups."""
