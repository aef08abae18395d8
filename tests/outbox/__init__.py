"""The transactional outbox, on SQLite and PostgreSQL, against the whole cluster."""
