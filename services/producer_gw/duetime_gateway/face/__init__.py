"""The gateway's side of `duetime.v1`: converts requests to domain objects, and outcomes to answers."""
