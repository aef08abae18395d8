"""Arguments of tasks that would arrive as other values are rejected where they are sent."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest
from duetime import App, Context, InvalidArgument, Occurrence
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SecretStr, StringConstraints, computed_field


@dataclass
class Item:
    name: str
    made: Any = field(default=None, compare=False)


@dataclass
class PricedItem(Item):
    price: int = 0


class SameItem(Item):
    pass


class Size(Enum):
    SMALL = (1, 2)
    LARGE = (3, 4)


class Level(IntEnum):
    HIGH = 3


class Point(NamedTuple):
    x: float
    y: Decimal


class Order(BaseModel):
    order_id: int = Field(default=0, alias="orderId")


class Symmetric(BaseModel):
    model_config = ConfigDict(serialize_by_alias=True, populate_by_name=True)
    order_id: int = Field(default=0, alias="orderId")
    _made: object = PrivateAttr(default_factory=object)


class Login(BaseModel):
    user: str
    token: SecretStr


class Hidden(BaseModel):
    note: str = Field(default="", exclude=True)


class Sum(BaseModel):
    one: int

    @computed_field  # type: ignore[prop-decorator]
    @property
    def double(self) -> int:
        return 2 * self.one


def taking(kind: Any) -> Callable[[Any], None]:
    def take(value: Any) -> None: ...

    take.__annotations__["value"] = kind
    return take


BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("kind", "value", "says"),
    [
        (SecretStr, SecretStr("pa55"), "value is SecretStr, and would arrive with another value"),
        (Login, Login(user="ann", token=SecretStr("pa55")), "value.token is SecretStr, and would arrive with"),
        (list[Login] | None, [Login(user="ann", token=SecretStr("pa55"))], r"value\[0\].token is SecretStr"),
        (Item, PricedItem("pen", price=3), "value is PricedItem, and would arrive as Item"),
        (Item, SameItem("pen"), "value is SameItem, and would arrive as Item"),
        (dict[str, Item], {"a": PricedItem("pen")}, "value.a is PricedItem, and would arrive as Item"),
        (Order, Order(orderId=7), "value.order_id is int, and would arrive with another value"),
        (Hidden, Hidden(note="x"), "value.note is str, and would arrive with another value"),
    ],
    ids=lambda one: getattr(one, "__name__", None),
)
def test_value_that_would_arrive_as_another_is_rejected(kind: Any, value: Any, says: str) -> None:
    task = App("shop").task(taking(kind))
    with pytest.raises(InvalidArgument, match=says) as raised:
        task.message(value)
    assert "pa55" not in str(raised.value)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Any, PricedItem("pen")),
        (Any, {1: (2, 3)}),
        (Item, Item("pen", made=(1, 2))),
        (list[Item], (Item("pen"),)),
        (Size, Size.LARGE),
        (int, Level.HIGH),
        (Level, Level.HIGH),
        (Point, Point(1.5, Decimal("NaN"))),
        (Decimal, Decimal("1.50")),
        (set[int], {3, 1, 2}),
        (datetime, datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=BERLIN)),
        (Symmetric, Symmetric(orderId=7)),
        (Sum, Sum(one=2)),
        (Annotated[str, StringConstraints(strip_whitespace=True)], " ann "),
        (timedelta, timedelta(seconds=90)),
    ],
    ids=repr,
)
def test_value_that_arrives_in_its_annotations_form_is_sent(kind: Any, value: Any) -> None:
    assert App("shop").task(taking(kind)).message(value).body


class Objects(Enum):
    ONE = object()


class Alike(Enum):
    TUPLE = (1, 2)
    LIST = [1, 2]  # noqa: RUF012  the value of a member


@pytest.mark.parametrize(
    ("kind", "says"),
    [(Objects, "Objects has a value that JSON can't hold"), (Alike, "Alike has members that can't be distinguished")],
)
def test_enum_without_a_form_of_its_own_is_rejected_by_the_task(kind: Any, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        App("shop").task(taking(kind))


def test_optional_context_is_injected() -> None:
    app, found = App("shop"), list[Any]()

    @app.task
    def work(n: int, context: Context | None = None) -> None:
        found.append(context and context.task)

    @app.every("1h")
    async def hourly(when: Occurrence | None = None) -> None:
        found.append(when and when.schedule)

    work(1)
    with app.eager() as eager:
        work.send(2)
        eager.advance("1h")
    assert found == [None, "work", "hourly"]
