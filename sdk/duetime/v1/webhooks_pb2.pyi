from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Webhook(_message.Message):
    __slots__ = ("name", "topic", "group", "url", "concurrency", "timeout_ms", "paused", "pause_reason", "created_at_ms", "old_secret_ends_at_ms", "worker_seen_at_ms", "delivered_at_ms", "failed_at_ms", "failure", "test")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    PAUSE_REASON_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    OLD_SECRET_ENDS_AT_MS_FIELD_NUMBER: _ClassVar[int]
    WORKER_SEEN_AT_MS_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    FAILED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    TEST_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic: str
    group: str
    url: str
    concurrency: int
    timeout_ms: int
    paused: bool
    pause_reason: str
    created_at_ms: int
    old_secret_ends_at_ms: int
    worker_seen_at_ms: int
    delivered_at_ms: int
    failed_at_ms: int
    failure: str
    test: WebhookTest
    def __init__(self, name: _Optional[str] = ..., topic: _Optional[str] = ..., group: _Optional[str] = ..., url: _Optional[str] = ..., concurrency: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., paused: bool = ..., pause_reason: _Optional[str] = ..., created_at_ms: _Optional[int] = ..., old_secret_ends_at_ms: _Optional[int] = ..., worker_seen_at_ms: _Optional[int] = ..., delivered_at_ms: _Optional[int] = ..., failed_at_ms: _Optional[int] = ..., failure: _Optional[str] = ..., test: _Optional[_Union[WebhookTest, _Mapping]] = ...) -> None: ...

class WebhookTest(_message.Message):
    __slots__ = ("number", "done", "status", "error", "took_ms")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TOOK_MS_FIELD_NUMBER: _ClassVar[int]
    number: int
    done: bool
    status: int
    error: str
    took_ms: int
    def __init__(self, number: _Optional[int] = ..., done: bool = ..., status: _Optional[int] = ..., error: _Optional[str] = ..., took_ms: _Optional[int] = ...) -> None: ...

class CreateWebhookRequest(_message.Message):
    __slots__ = ("webhook",)
    WEBHOOK_FIELD_NUMBER: _ClassVar[int]
    webhook: Webhook
    def __init__(self, webhook: _Optional[_Union[Webhook, _Mapping]] = ...) -> None: ...

class WebhookSecret(_message.Message):
    __slots__ = ("webhook", "secret")
    WEBHOOK_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    webhook: Webhook
    secret: str
    def __init__(self, webhook: _Optional[_Union[Webhook, _Mapping]] = ..., secret: _Optional[str] = ...) -> None: ...

class WebhookRef(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class UpdateWebhookRequest(_message.Message):
    __slots__ = ("name", "url", "concurrency", "timeout_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    url: str
    concurrency: int
    timeout_ms: int
    def __init__(self, name: _Optional[str] = ..., url: _Optional[str] = ..., concurrency: _Optional[int] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class ListWebhooksRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ListWebhooksResponse(_message.Message):
    __slots__ = ("webhooks",)
    WEBHOOKS_FIELD_NUMBER: _ClassVar[int]
    webhooks: _containers.RepeatedCompositeFieldContainer[Webhook]
    def __init__(self, webhooks: _Optional[_Iterable[_Union[Webhook, _Mapping]]] = ...) -> None: ...

class RotateWebhookSecretRequest(_message.Message):
    __slots__ = ("name", "old_valid_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OLD_VALID_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    old_valid_ms: int
    def __init__(self, name: _Optional[str] = ..., old_valid_ms: _Optional[int] = ...) -> None: ...

class DeleteWebhookResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
