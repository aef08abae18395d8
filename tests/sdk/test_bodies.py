"""Bodies as values: sending, reading, and errors of a body that does not fit."""

import subprocess
import sys
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any, Literal
from uuid import UUID

import pydantic
import pytest
from duetime import (
    AsyncProducer,
    AsyncReceiver,
    BadBody,
    Consumer,
    InvalidArgument,
    InvalidMessage,
    LeasedMessage,
    Message,
    Producer,
    Puller,
)
from duetime.client.bodies import decoder, encoded
from hypothesis import given
from hypothesis import strategies as st

from tests.sdk.consuming import consuming
from tests.sdk.gateway import Gateway
from tests.sdk.groups import Groups

JSON = "application/json"


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Item:
    sku: str
    price: Decimal
    parts: "list[Item]" = field(default_factory=list)


@dataclass
class Order:
    id: UUID
    at: datetime
    items: list[Item]
    paid: bool = False
    weight: float | None = None
    kind: Literal["sale", "return"] = "sale"
    colour: Colour = Colour.RED
    day: date | None = None
    hour: time | None = None
    size: tuple[int, str] = (0, "")
    tags: set[str] = field(default_factory=set)
    counts: dict[str, int] = field(default_factory=dict)
    rest: Any = None


class Model(pydantic.BaseModel):
    number: int
    inner: "list[Model]" = []


@pydantic.dataclasses.dataclass
class Checked:
    number: int = pydantic.Field(gt=0)


ORDER = Order(
    UUID(int=42),
    datetime(2026, 12, 24, 18, tzinfo=UTC),
    [Item("a", Decimal("1.20"), [Item("b", Decimal(3))])],
    weight=2,
    kind="return",
    colour=Colour.BLUE,
    day=date(2026, 12, 24),
    hour=time(18),
    size=(4, "m"),
    tags={"x"},
    counts={"a": 1},
    rest=[{"b": None}],
)

VALUES = [
    (ORDER, Order),
    ([ORDER.items[0]], list[Item]),
    (Model(number=1, inner=[Model(number=2)]), Model),
    (Checked(number=4), Checked),
    ({"a": 1, "b": [True, None, 1.5, "é"]}, dict),
    ([1, 2], list[int]),
    ([1, "a"], list[int | str]),
    ([[1, 2]], list[list[int]]),
]


@pytest.mark.parametrize(("value", "kind"), VALUES, ids=str)
def test_encoded_body_is_decoded(value: Any, kind: Any) -> None:
    body, content_type = encoded(value)
    assert content_type == JSON
    assert decoder(kind)(body, content_type) == value
    # Its sender may know nothing of the property.
    assert decoder(kind)(body, "") == value
    assert decoder(kind)(body, "application/order+json; charset=utf-8") == value


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ).filter(lambda value: isinstance(value, dict | list))
)
def test_any_json_value_is_read_back(value: Any) -> None:
    body, content_type = encoded(value)
    assert decoder(Any)(body, content_type) == value


def test_spaces_around_json_are_skipped() -> None:
    assert [decoder(Any)(body, JSON) for body in (b' {"a": [1]}', b"2 \r\n\t", b"\n null \n")] == [{"a": [1]}, 2, None]


def test_bytes_and_text_have_no_content_type() -> None:
    assert encoded(b"\xff") == (b"\xff", "")
    assert encoded("é") == ("é".encode(), "")
    assert decoder(bytes)(b"\xff", JSON) == b"\xff"
    assert decoder(str)("é".encode(), "text/plain") == "é"
    with pytest.raises(BadBody, match="it is not UTF-8: invalid start byte at byte 0"):
        decoder(str)(b"\xff", "")


MISFITS: list[tuple[Any, bytes, str, str]] = [
    (Order, b"", "", "it is not JSON: Expecting value at character 0"),
    (Order, b"1 secret", "", "it is not JSON: Extra data at character 2"),
    (Order, b"\xff", "", "it is not UTF-8"),
    (Order, b"[" * 100_000, "", "it is not JSON: RecursionError"),
    (dict, b"1" * 5_000, "", "it is not JSON: ValueError"),
    (Order, b"secret", "text/plain", "its content type is 'text/plain', not application/json"),
    (Model, b"<secret/>", "application/xml", "its content type is 'application/xml'"),
    (Order, b'["secret"]', "", r"it is an array, not an object \(Order\)"),
    (Order, b"{}", "", "id is missing"),
    (Item, b'{"sku": "s", "price": "secret"}', "", "price is a text, not a decimal number"),
    (Item, b'{"sku": 12, "price": 1}', "", "sku is a number, not a text"),
    (Item, b'{"sku": "s", "price": 1, "parts": [{"sku": "s"}]}', "", r"parts\[0\].price is missing"),
    (int, b"true", "", "it is true or false, not a whole number"),
    (int, b"1.5", "", "it is a number, not a whole number"),
    (float, b'"1"', "", "it is a text, not a number"),
    (Item | None, b'{"sku": null}', "", "sku is null, not a text"),
    (int | str, b"[]", "", "it is an array, not int or str"),
    (tuple[int, str], b"[1]", "", "it is an array, not an array of 2"),
    (Literal[1, "a"], b"true", "", "it is true or false, not one of 1, 'a'"),
    (Colour, b'"secret"', "", "it is a text, not a value of Colour"),
    (datetime, b'"secret"', "", "it is a text, not a time in ISO 8601"),
    (UUID, b"5", "", "it is a number, not a UUID"),
    (dict[str, int], b'{"a": "secret"}', "", "a is a text, not a whole number"),
    (Model, b'{"number": "secret"}', "", "number: Input should be a valid integer"),
    (Model, b'{"number": 1, "inner": [{}]}', "", "inner.0.number: Field required"),
    (Model, b"secret", "", "it: Invalid JSON"),
    (Checked, b'{"number": 0}', "", "number: Input should be greater than 0"),
]


@pytest.mark.parametrize(("kind", "body", "content_type", "says"), MISFITS)
def test_decoding_errors_omit_values(kind: Any, body: bytes, content_type: str, says: str) -> None:
    with pytest.raises(BadBody, match=rf"^the body can't be read: {says}") as caught:
        decoder(kind)(body, content_type)
    assert "secret" not in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert not caught.value.retriable


def test_own_checks_of_a_dataclass_are_reported() -> None:
    @dataclass
    class Positive:
        number: int

        def __post_init__(self) -> None:
            if self.number < 1:
                raise ValueError("number is below 1")

    with pytest.raises(BadBody, match="it is not a valid Positive: number is below 1"):
        decoder(Positive)(b'{"number": 0}', "")


def test_fields_of_newer_senders_are_passed_over() -> None:
    assert decoder(Item)(b'{"sku": "s", "price": 1, "new": 2}', "") == Item("s", Decimal(1))


@dataclass
class Odd:
    at: complex


@pytest.mark.parametrize("kind", [complex, Odd, list[complex], "Order"])
def test_type_that_json_can_not_hold_is_refused_at_once(kind: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"body: JSON can't hold "):
        Consumer(group="billing").handler("orders", body=kind)


@pytest.mark.parametrize(
    "body", [{"a": object()}, [float("nan")], {"a": b"x"}, {(1, 2): 3}, "\ud800", [float("inf")], {"a": 1j}]
)
def test_value_without_json_is_an_invalid_message(body: Any) -> None:
    with pytest.raises(InvalidMessage, match="body: has no JSON form: "):
        Message("orders", body)


@pytest.mark.parametrize(
    "body", [None, 5, True, (1, 2), bytearray(b"x"), memoryview(b"x"), {1}, Order, Model, iter([])]
)
def test_body_of_another_kind_is_a_type_error(body: Any) -> None:
    with pytest.raises(TypeError, match=r"^body is .*, not bytes, str, dict, list, a dataclass or a pydantic model$"):
        Message("orders", body)


def test_message_has_its_bytes_and_the_property() -> None:
    properties = {"size": "6"}
    message = Message("orders", {"a": 1}, properties=properties)
    assert (message.body, message.properties) == (b'{"a":1}', {"size": "6", "content_type": JSON})
    assert properties == {"size": "6"}
    own = Message("orders", {"a": 1}, properties={"content_type": "application/vnd.order+json"})
    assert own.properties == {"content_type": "application/vnd.order+json"}
    assert Message("orders", "text").properties == {}


def test_values_travel_and_are_read(threaded_tap: Gateway, topic: str) -> None:
    with Producer(threaded_tap.address) as producer:
        producer.send(topic, ORDER, queue=0)
        producer.send_many([Message(topic, Model(number=5), queue=0), Message(topic, "plain", queue=0)])
    with Puller(threaded_tap.address, topic) as puller:
        messages = puller.poll(wait="30s")
        while len(messages) < 3:
            messages += puller.poll(wait="30s")
    assert [message.content_type for message in messages] == [JSON, JSON, ""]
    assert messages[0].json(Order) == ORDER
    assert messages[1].json(Model) == Model(number=5)
    assert messages[1].json() == {"number": 5, "inner": []}
    assert messages[2].json(str) == "plain"
    with pytest.raises(BadBody):
        messages[2].json()


async def test_reschedule_takes_values_too(tap: Gateway) -> None:
    async with AsyncProducer(tap.address) as producer:
        with pytest.raises(InvalidMessage, match="has no JSON form"):
            await producer.reschedule("some-id", delay="1h", body={"a": object()})


# --- handlers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plain", [True, False], ids=["thread", "loop"])
async def test_handler_is_given_the_value_and_the_message_if_it_takes_both(
    groups: Groups, topic: str, group: str, plain: bool
) -> None:
    await groups.put(topic, b'{"sku": "s", "price": 1}', ids="id-%d")
    consumer = Consumer(groups.address, group=group)
    seen: list[Any] = []

    def handle(item: Item, message: LeasedMessage) -> None:
        seen.append((item, message.id))

    async def handle_alone(item: Item) -> None:
        seen.append((item, "id-0"))

    consumer.handler(topic, body=Item)(handle if plain else handle_alone)
    async with consuming(consumer):
        await groups.until(lambda: bool(groups.bodies("ack")))
    assert seen == [(Item("s", Decimal(1)), "id-0")]


@pytest.mark.parametrize("bad_body", ["reject", "retry"])
async def test_body_that_can_not_be_read_is_rejected_or_fails(
    groups: Groups, topic: str, group: str, bad_body: Any
) -> None:
    await groups.put(topic, b'{"sku": 5}', ids="id-%d")
    consumer = Consumer(groups.address, group=group)

    @consumer.handler(topic, body=Item, bad_body=bad_body)
    async def handle(item: Item) -> None:
        raise AssertionError("it must not be called")

    async with consuming(consumer):
        await groups.until(lambda: bool(groups.nacks))
    (nack,) = groups.nacks[0].nacks
    assert nack.reject is (bad_body == "reject")
    assert (nack.error.type, nack.error.message) == ("BadBody", "the body can't be read: sku is a number, not a text")


def test_bad_body_is_one_of_two_words() -> None:
    with pytest.raises(InvalidArgument, match="bad_body: 'drop' is neither 'reject' nor 'retry'"):
        Consumer(group="billing").handler("orders", body=Item, bad_body="drop")  # type: ignore[arg-type]


async def test_leased_messages_are_read_too(groups: Groups, topic: str, group: str) -> None:
    await groups.put(topic, b'{"sku": "s", "price": 1}', ids="id-%d")
    async with AsyncReceiver(groups.address, topic, group=group) as receiver:
        (message,) = await receiver.receive(wait="30s")
    assert message.json(Item).sku == "s"
    assert message.json() == {"sku": "s", "price": 1}


def test_pydantic_is_needed_by_its_own_models_only() -> None:
    code = """
import sys
sys.modules["pydantic"] = None
from dataclasses import dataclass
from duetime import Message
from duetime.client.bodies import decoder
@dataclass
class Order: number: int
message = Message("orders", Order(5))
print(decoder(Order)(message.body, "application/json"), Message("orders", {"a": 1}).body)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("Order(number=5) b'{\"a\":1}'\n", "")
