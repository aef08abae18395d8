"""The transactional outbox: messages are written in the user's own transaction, and a relay moves them to the server.

outbox = Outbox(Base.metadata)

with Session(engine) as session, session.begin():
    session.add(order)
    outbox.send(session, "orders", b"cancel 42", delay="15m")     # committed with the order, or not at all

Relay(engine, "localhost:9800", outbox=outbox).run()              # or: duetime outbox relay --database URL

table      the table and its writer
rows       the steps of a relay on rows, each a transaction
verdicts   the next state of a row
listening  NOTIFY of PostgreSQL
relay      the loop
"""

from duetime.outbox.relay import Relay, RelayStats
from duetime.outbox.rows import Faulty, OutboxStatus, Rows
from duetime.outbox.table import Outbox

__all__ = ["Outbox", "Relay", "RelayStats", "Rows", "OutboxStatus", "Faulty"]
