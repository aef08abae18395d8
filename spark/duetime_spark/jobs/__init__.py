"""Jobs: each is a pure transform of tables, and a result of plain values.

    backlog        pending messages and their due times     dead_letters   dead letters, grouped by error
    lateness       delay of restored messages, and causes   retries        deliveries until success
    audit          whether every message has exactly one end

`transform` takes and returns data frames with the columns listed in docs/spark.md; `run` reads all tables at one
snapshot.
"""
