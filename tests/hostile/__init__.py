"""An adversary of our own: valid requests, slow connections, failing disks and databases, against real processes."""
