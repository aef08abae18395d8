"""An order and its message in one transaction of your own database: both are stored, or neither.

python examples/outbox_orders.py            the order is cancelled after 15 minutes
python examples/outbox_orders.py 3s         a quick run

Needs SQLAlchemy: pip install 'duetime[outbox]'.
"""

import sys

from duetime import Consumer, LeasedMessage
from duetime.outbox import Outbox, Relay
from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

TOPIC = "unpaid-orders"
DELAY = sys.argv[1] if len(sys.argv) > 1 else "15m"


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    article: Mapped[str]
    state: Mapped[str] = mapped_column(default="unpaid")


outbox = Outbox(Base.metadata)


def place(session: Session, article: str) -> None:
    """Inserts an order and its time-out; the caller's transaction commits both."""
    order = Order(article=article)
    session.add(order)
    session.flush()  # the database gives the order its id
    outbox.send(session, TOPIC, str(order.id).encode(), delay=DELAY, key=str(order.id))
    if article == "a unicorn":
        raise LookupError("out of stock")


def order_all(engine: Engine) -> None:
    for article in ("tea", "a unicorn", "sugar"):
        try:
            with Session(engine) as session, session.begin():
                place(session, article)
            print(f"ordered: {article}", flush=True)
        except LookupError as error:
            print(f"rolled back, with its message: {article}, {error}", flush=True)


def main() -> None:
    engine = create_engine("sqlite:///orders.db")
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    order_all(engine)

    # A process of its own in production: duetime outbox relay --database URL
    relay = Relay(engine, outbox=outbox)
    relay.run(drain=True)
    print(f"the relay sent {relay.stats.sent} messages", flush=True)

    consumer = Consumer(group="accounts")

    @consumer.handler(TOPIC, concurrency=1)
    def time_out(message: LeasedMessage) -> None:
        with Session(engine) as session, session.begin():
            order = session.get(Order, int(message.body))
            if order is not None and order.state == "unpaid":
                order.state = "cancelled"
                print(f"not paid, cancelled: {order.article}", flush=True)
            session.flush()
            if session.query(Order).filter_by(state="unpaid").count() == 0:
                consumer.stop()

    consumer.run()
    engine.dispose()


if __name__ == "__main__":
    main()
