"""What operators ask: groups, lanes, the backlog. Shards answer in messages of their contract, put together here."""
