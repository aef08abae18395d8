"""Permitted changes of the contract: a version's processes and clients work with those of the last one.

A version may

    add services, methods, messages, fields, enum values
    mark anything `deprecated`
    remove anything that the last version had marked so; of a field or enum value it reserves number and name

It may not

    remove anything else
    give the number or the name of a field or enum value to another one
    change a field's type, whether it is repeated, or its oneof
    change a method's messages, or whether they are streams

A removal thus takes two versions: the first marks the element and still answers it, the next removes it. Earlier
versions are stopped before an upgrade, but their numbers and names stay theirs: of them only removals are permitted.
"""

from collections.abc import Iterator
from typing import Any, TypeVar

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorSet,
    MethodDescriptorProto,
    ServiceDescriptorProto,
)

Named = TypeVar("Named", bound=Any)


# Ends of the sentences about elements whose removal was not announced.
_UNANNOUNCED = "is gone and was not deprecated"


def violations(last: FileDescriptorSet, current: FileDescriptorSet) -> list[str]:
    """Violations of the rules, a sentence each, in the order of the last version's files."""
    return list(_violations(last, current))


def conflicts(earlier: FileDescriptorSet, current: FileDescriptorSet) -> list[str]:
    """As `violations`, with a version before the last one: it may have lost elements without notice."""
    return [each for each in _violations(earlier, current) if not each.endswith(_UNANNOUNCED)]


def _violations(was: FileDescriptorSet, current: FileDescriptorSet) -> Iterator[str]:
    messages, enums, services = _messages(current), _enums(current), _services(current)
    for name, message in _messages(was).items():
        if name in messages:
            yield from _message(name, message, messages[name])
        elif not message.options.deprecated:
            yield f"message {name} {_UNANNOUNCED}"
    for name, enum in _enums(was).items():
        if name in enums:
            yield from _enum(name, enum, enums[name])
        elif not enum.options.deprecated:
            yield f"enum {name} {_UNANNOUNCED}"
    for name, service in _services(was).items():
        if name in services:
            yield from _service(name, service, services[name])
        elif not service.options.deprecated:
            yield f"service {name} {_UNANNOUNCED}"


def _message(name: str, was: DescriptorProto, now: DescriptorProto) -> Iterator[str]:
    numbers = {field.number: field for field in now.field}
    names = {field.name: field for field in now.field}
    reserved = {number for each in now.reserved_range for number in range(each.start, each.end)}
    for field in was.field:
        where = f"{name}.{field.name} = {field.number}"
        found = numbers.get(field.number)
        if found is not None and found.name != field.name:
            yield f"{where}: the number is given to {found.name}"
        elif found is not None:
            yield from _field(where, was, now, field, found)
        elif field.name in names:
            yield f"{where}: the name is given to number {names[field.name].number}"
        elif field.number not in reserved or field.name not in now.reserved_name:
            yield f"{where} is gone, and its number and name are not both reserved"
        elif not field.options.deprecated:
            yield f"{where} {_UNANNOUNCED}"


def _field(
    where: str, was: DescriptorProto, now: DescriptorProto, field: FieldDescriptorProto, found: FieldDescriptorProto
) -> Iterator[str]:
    if (field.type, field.type_name) != (found.type, found.type_name):
        yield f"{where} had type {_type(field)} and has {_type(found)}"
    if field.label != found.label:
        yield f"{where} is repeated in one version only"
    if _oneof(was, field) != _oneof(now, found):
        yield f"{where} was of oneof {_oneof(was, field) or 'none'!r} and is of {_oneof(now, found) or 'none'!r}"


def _type(field: FieldDescriptorProto) -> str:
    return field.type_name or FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()


def _oneof(message: DescriptorProto, field: FieldDescriptorProto) -> str:
    """Empty: of none. `optional` makes one of its own, which the wire does not know."""
    if not field.HasField("oneof_index") or field.proto3_optional:
        return ""
    return message.oneof_decl[field.oneof_index].name


def _enum(name: str, was: EnumDescriptorProto, now: EnumDescriptorProto) -> Iterator[str]:
    numbers = {value.number: value.name for value in now.value}
    names = {value.name: value.number for value in now.value}
    # Ranges of enums include both ends.
    reserved = {number for each in now.reserved_range for number in range(each.start, each.end + 1)}
    for value in was.value:
        where = f"{name}.{value.name} = {value.number}"
        if numbers.get(value.number, value.name) != value.name:
            yield f"{where}: the number is given to {numbers[value.number]}"
        elif value.name in names:
            if names[value.name] != value.number:
                yield f"{where}: the name is given to number {names[value.name]}"
        elif value.number not in reserved or value.name not in now.reserved_name:
            yield f"{where} is gone, and its number and name are not both reserved"
        elif not value.options.deprecated:
            yield f"{where} {_UNANNOUNCED}"


def _service(name: str, was: ServiceDescriptorProto, now: ServiceDescriptorProto) -> Iterator[str]:
    methods = {method.name: method for method in now.method}
    for method in was.method:
        where = f"method {name}.{method.name}"
        if method.name not in methods:
            if not method.options.deprecated:
                yield f"{where} {_UNANNOUNCED}"
        elif _signature(method) != _signature(methods[method.name]):
            yield f"{where} was {_signature(method)} and is {_signature(methods[method.name])}"


def _signature(method: MethodDescriptorProto) -> str:
    request = "stream " * method.client_streaming + method.input_type
    answer = "stream " * method.server_streaming + method.output_type
    return f"({request}) returns ({answer})"


def _messages(files: FileDescriptorSet) -> dict[str, DescriptorProto]:
    """By full name, nested ones too."""
    found: dict[str, DescriptorProto] = {}

    def add(prefix: str, messages: Any) -> None:
        for message in messages:
            found[f"{prefix}.{message.name}"] = message
            add(f"{prefix}.{message.name}", message.nested_type)

    for file in files.file:
        add(file.package, file.message_type)
    return found


def _enums(files: FileDescriptorSet) -> dict[str, EnumDescriptorProto]:
    found = {f"{file.package}.{enum.name}": enum for file in files.file for enum in file.enum_type}
    for name, message in _messages(files).items():
        found |= {f"{name}.{enum.name}": enum for enum in message.enum_type}
    return found


def _services(files: FileDescriptorSet) -> dict[str, ServiceDescriptorProto]:
    return {f"{file.package}.{service.name}": service for file in files.file for service in file.service}
