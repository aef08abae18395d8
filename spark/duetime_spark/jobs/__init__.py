"""Jobs: each is a pure transform of tables, and a result of plain values.

    backlog        what is pending, what falls due when        dead_letters   what failed for good, grouped
    lateness       were we late, and through what              retries        what success costs
    audit          does every message have exactly one end

`transform` takes and gives data frames with the columns that docs/spark.md lists; `run` reads the tables, all at one
snapshot.
"""
