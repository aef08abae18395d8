"""Log lines, metrics and traces of a process, without the secrets and texts of users."""
