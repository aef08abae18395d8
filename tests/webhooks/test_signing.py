"""Requests are signed by Standard Webhooks, as its own library verifies them."""

import base64
import time

import pytest
from duetime_webhooks.signing import header_text, headers, signature, type_of
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

SECRET = "whsec_" + base64.b64encode(b"a" * 32).decode()
NEW = "whsec_" + base64.b64encode(b"b" * 32).decode()


def signed(secrets: list[str], body: bytes, message_id: str = "msg-1") -> dict[str, str]:
    return dict(headers(secrets, message_id, int(time.time()), body, ""))


def test_signature_of_the_specification_s_example() -> None:
    """Source: the README of Standard Webhooks' libraries."""
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    found = signature([secret], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert found == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@given(st.text(), st.text(min_size=1))
def test_the_library_of_receivers_accepts_any_text_and_id(text: str, message_id: str) -> None:
    body = text.encode("utf-8", "replace")
    message_id = message_id.encode("utf-8", "replace").decode()
    Webhook(SECRET).verify(body, signed([SECRET], body, message_id), json_parse=False)


def test_receivers_with_the_old_and_the_new_secret_accept_a_request_during_a_rotation() -> None:
    found = signed([NEW, SECRET], b"{}")
    assert len(found["webhook-signature"].split(" ")) == 2
    for secret in (NEW, SECRET):
        Webhook(secret).verify(b"{}", found)


@pytest.mark.parametrize("changed", ["webhook-id", "webhook-timestamp", "body", "secret"])
def test_a_changed_request_is_rejected(changed: str) -> None:
    found = signed([SECRET], b"{}")
    if changed in found:
        found[changed] += "1"
    with pytest.raises(WebhookVerificationError):
        Webhook(NEW if changed == "secret" else SECRET).verify(b"[]" if changed == "body" else b"{}", found)


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b'{"a": 1}', "application/json"),
        (b" [1]", "application/json"),
        (b"{not json", "text/plain; charset=utf-8"),
        (b"7", "text/plain; charset=utf-8"),
        ("grüß".encode(), "text/plain; charset=utf-8"),
        (b"", "text/plain; charset=utf-8"),
        (b"\xff\x00", "application/octet-stream"),
        (b"[" * 100_000, "text/plain; charset=utf-8"),
    ],
)
def test_content_type_follows_the_body(body: bytes, content_type: str) -> None:
    assert type_of(body) == content_type


@pytest.mark.parametrize(
    ("own", "sent"),
    [
        ("application/cloudevents+json", "application/cloudevents+json"),
        ("text/csv; header=present", "text/csv; header=present"),
        ("a/b\r\nx-admin: 1", "application/json"),
        ("json", "application/json"),
        ("a/ü", "application/json"),
        ("a/" + "b" * 300, "application/json"),
    ],
)
def test_a_message_s_own_content_type_is_sent_if_it_fits_a_header(own: str, sent: str) -> None:
    assert dict(headers([SECRET], "1", 1, b"{}", own))["content-type"] == sent


@given(st.text())
def test_no_text_ends_a_header(text: str) -> None:
    text = text.encode("utf-8", "replace").decode()
    shown = header_text(text)
    assert shown == "" or (shown.isascii() and shown.isprintable() and " " not in shown)
