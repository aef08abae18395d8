"""A shop in FastAPI: orders that are cancelled if they are not paid in time. A time-out commits with its order.

pip install 'duetime[fastapi,outbox]' uvicorn
uvicorn shop:api                                                http://127.0.0.1:8000/docs
duetime outbox relay --database sqlite:///shop.sqlite3          sends the time-outs of committed orders
duetime work shop:tasks                                         cancels unpaid orders
pytest                                                          needs 'duetime[server]' and httpx2
"""

import os
from collections.abc import Iterator
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any

from duetime import App
from duetime.fastapi import add_error_handlers, lifespan
from duetime.outbox import Outbox
from fastapi import BackgroundTasks, Depends, FastAPI, HTTPException
from pydantic import BaseModel, Field
from sqlalchemy import create_engine, event, select, update
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

PAYMENT_DELAY = timedelta(minutes=30)
DATABASE = os.environ.get("SHOP_DATABASE", "sqlite:///shop.sqlite3")


class Base(DeclarativeBase):
    pass


class State(StrEnum):
    OPEN = "open"
    PAID = "paid"
    CANCELLED = "cancelled"


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]
    state: Mapped[State] = mapped_column(default=State.OPEN)
    # The id of the message that cancels it.
    timeout_id: Mapped[str] = mapped_column(default="")


outbox = Outbox(Base.metadata)
engine = create_engine(DATABASE, connect_args={"timeout": 30})
tasks = App("shop", outbox=outbox)
api = FastAPI(title="Shop", lifespan=lifespan(tasks))
add_error_handlers(api)


@event.listens_for(engine, "connect")
def _wait_for_writers(connection: Any, _: Any) -> None:
    """Requests, tasks and the relay read while another one writes."""
    connection.execute("PRAGMA journal_mode = WAL")


Base.metadata.create_all(engine)


@tasks.task(retry="exponential:1s..10m", max_attempts=8, timeout="30s")
def cancel_unpaid(order_id: int) -> None:
    # One statement: a second run, or a payment at the same time, changes nothing.
    with Session(engine) as session, session.begin():
        unpaid = update(Order).where(Order.id == order_id, Order.state == State.OPEN)
        session.execute(unpaid.values(state=State.CANCELLED))


def transaction() -> Iterator[Session]:
    """The session of a request; it commits if the request succeeds."""
    with Session(engine) as session, session.begin():
        yield session


# The commit comes before the answer.
Transaction = Annotated[Session, Depends(transaction, scope="function")]


class NewOrder(BaseModel):
    item: Annotated[str, Field(min_length=1, max_length=100)]


class ShownOrder(BaseModel):
    id: int
    item: str
    state: State


@api.post("/orders", status_code=201)
def place(new: NewOrder, session: Transaction) -> ShownOrder:
    order = Order(item=new.item)
    session.add(order)
    session.flush()
    order.timeout_id = cancel_unpaid.with_options(delay=PAYMENT_DELAY).send_in(session, order.id)
    return ShownOrder(id=order.id, item=order.item, state=order.state)


@api.post("/orders/{order_id}/pay")
def pay(order_id: int, session: Transaction, after: BackgroundTasks) -> ShownOrder:
    paid = update(Order).where(Order.id == order_id, Order.state == State.OPEN).values(state=State.PAID)
    session.execute(paid)
    order = session.get(Order, order_id)
    if order is None:
        raise HTTPException(404, "no such order")
    if order.state is not State.PAID:
        raise HTTPException(409, f"it is {order.state}")
    # Only saves the run of a time-out, which would find the order paid.
    after.add_task(cancel_unpaid.cancel, order.timeout_id)
    return ShownOrder(id=order.id, item=order.item, state=order.state)


@api.get("/orders")
def orders(session: Transaction) -> list[ShownOrder]:
    found = session.scalars(select(Order).order_by(Order.id.desc()).limit(100))
    return [ShownOrder(id=one.id, item=one.item, state=one.state) for one in found]
