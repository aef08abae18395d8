"""Tasks sent in a transaction of the user's database."""

from duetime import App
from duetime.outbox import Outbox
from sqlalchemy import MetaData, create_engine, select
from sqlalchemy.orm import Session


def test_call_is_written_with_the_commit_or_not_at_all() -> None:
    outbox = Outbox(MetaData())
    engine = create_engine("sqlite://")
    outbox.table.metadata.create_all(engine)
    app = App("shop", outbox=outbox)

    @app.task(topic="mail")
    def send_mail(order_id: int) -> None: ...

    with Session(engine) as session:
        send_mail.send_in(session, 1)
        session.rollback()
        sent = send_mail.with_options(delay="1h").send_in(session, 2)
        session.commit()
        (row,) = session.execute(select(outbox.table)).all()
    assert (row.message_id, row.topic, row.body) == (sent, "mail", b'{"order_id":2}')
    assert row.due_at_ms == row.created_at_ms + 3_600_000
    engine.dispose()
