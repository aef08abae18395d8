"""Jobs: each is a pure transform of tables, and a result of plain values.

    backlog        pending messages, and when they fall due    dead_letters   dead letters, grouped by error
    lateness       how late restored messages were, and why    retries        deliveries until success
    audit          whether every message has exactly one end

`transform` takes and returns data frames with the columns that docs/spark.md lists; `run` reads the tables, all at one
snapshot.
"""
