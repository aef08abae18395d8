"""Valid names, and topics reserved for DueTime itself."""

import pytest
from duetime_format.names import dlq_topic, is_name, is_system_topic, retry_topic


@pytest.mark.parametrize("name", ["orders", "A-b_9", "%RETRY%g", "a|b", "0"])
def test_name_of_rocketmqs_characters_is_valid(name: str) -> None:
    assert is_name(name)


@pytest.mark.parametrize("name", ["", "a b", "a.b", "ä", "a/b", "a\n", "\u0661"])
def test_other_names_are_refused(name: str) -> None:
    assert not is_name(name)


@pytest.mark.parametrize(
    "topic",
    [
        "SCHEDULE_TOPIC_XXXX",
        "DT_QUARANTINE",
        "DT_CANCELLED",
        "DT_CHECKS",
        "DT_PLANS",
        "TBW102",
        "rmq_sys_wheel_timer",
        "DT_x",
        "%RETRY%g",
        "%DLQ%g",
    ],
)
def test_system_topics_are_known(topic: str) -> None:
    assert is_system_topic(topic)


@pytest.mark.parametrize("topic", ["orders", "schedule_topic_xxxx", "RETRY", "xDT_", "dt_x"])
def test_other_topics_are_the_users(topic: str) -> None:
    assert not is_system_topic(topic)


def test_group_topics() -> None:
    assert (retry_topic("g"), dlq_topic("g")) == ("%RETRY%g", "%DLQ%g")
