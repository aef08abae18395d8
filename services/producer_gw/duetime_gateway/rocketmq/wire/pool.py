"""The descriptors of RocketMQ's messages, apart from all others: its Python client registers the same names in
protobuf's own pool, and a process that has both would not start."""

from collections.abc import Iterable
from typing import Any

from google.protobuf import duration_pb2, timestamp_pb2
from google.protobuf.descriptor_pool import Default, DescriptorPool

POOL = DescriptorPool()
for _file in (duration_pb2, timestamp_pb2):
    POOL.AddSerializedFile(_file.DESCRIPTOR.serialized_pb)


def with_others(services: Iterable[str]) -> DescriptorPool:
    """The pool, which has these services of protobuf's own from now on too: reflection reads one pool."""
    for name in services:
        _add(Default().FindFileContainingSymbol(name))
    return POOL


def _add(file: Any) -> None:
    for needed in file.dependencies:
        _add(needed)
    POOL.AddSerializedFile(file.serialized_pb)
