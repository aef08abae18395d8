"""The reference of the contract, from the comments of `proto/`: a page for each file."""

import re
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from google.protobuf import descriptor_pb2 as descriptors
from grpc_tools import protoc

from deploy.site.documents import PROJECT

PROTO = PROJECT / "proto"
PACKAGE = ".duetime.v1."
_F = descriptors.FieldDescriptorProto
_REPEATED = _F.LABEL_REPEATED
# Numbers of fields in descriptor.proto, which form paths within a file.
_MESSAGES, _ENUMS, _SERVICES = 4, 5, 6
_FIELDS, _NESTED, _NESTED_ENUMS, _METHODS, _VALUES = 2, 3, 4, 2, 2

TITLES = {
    "gateway": "Gateway: the calls of clients",
    "store": "Store",
    "scheduler": "Scheduler",
    "retry": "Retry",
    "externalscaler": "KEDA's external scaler",
}
Place = tuple[int, ...]


@cache
def files() -> dict[str, descriptors.FileDescriptorProto]:
    """Every file of the contract, by its name, with its comments."""
    sources = sorted((PROTO / "duetime" / "v1").glob("*.proto"))
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "all"
        options = [f"-I{PROTO}", "--include_source_info", f"--descriptor_set_out={out}"]
        if protoc.main(["protoc", *options, *map(str, sources)]) != 0:
            raise ValueError("protoc rejects the contract")
        found = descriptors.FileDescriptorSet.FromString(out.read_bytes())
    return {Path(each.name).stem: each for each in found.file}


@cache
def _homes() -> dict[str, str]:
    """The page of each message and enumeration, by its full name."""
    homes: dict[str, str] = {}
    for name, each in files().items():
        for message in each.message_type:
            homes |= dict.fromkeys(_names(f"{PACKAGE}{message.name}", message), name)
        homes |= {f"{PACKAGE}{enum.name}": name for enum in each.enum_type}
    return homes


def _names(full: str, message: descriptors.DescriptorProto) -> Iterator[str]:
    yield full
    yield from (f"{full}.{enum.name}" for enum in message.enum_type)
    for nested in message.nested_type:
        yield from _names(f"{full}.{nested.name}", nested)


def title(name: str) -> str:
    return TITLES.get(name, f"Messages of {name}.proto")


def page(name: str) -> str:
    """One file: its services with their calls, then its messages and enumerations."""
    return "\n\n".join(part for part in _Page(name, files()[name]).parts() if part) + "\n"


class _Page:
    def __init__(self, name: str, file: descriptors.FileDescriptorProto) -> None:
        self._name = name
        self._file = file
        self._comments = {
            tuple(place.path): f"{place.leading_comments}\n{place.trailing_comments}"
            for place in file.source_code_info.location
        }

    def parts(self) -> Iterator[str]:
        yield f"# {title(self._name)}"
        yield f"`proto/{self._file.name}`, package `{self._file.package}`."
        for number, service in enumerate(self._file.service):
            yield self._text((_SERVICES, number))
            for nth, method in enumerate(service.method):
                yield f"## {method.name}"
                yield f"`/{self._file.package}.{service.name}/{method.name}`"
                yield f"{self._way(method)}"
                yield self._text((_SERVICES, number, _METHODS, nth))
        for number, message in enumerate(self._file.message_type):
            yield from self._message(message, message.name, (_MESSAGES, number))
        for number, enum in enumerate(self._file.enum_type):
            yield from self._enum(enum, enum.name, (_ENUMS, number))

    def _way(self, method: descriptors.MethodDescriptorProto) -> str:
        takes = f"{'a stream of ' if method.client_streaming else ''}{self._link(method.input_type)}"
        gives = f"{'a stream of ' if method.server_streaming else ''}{self._link(method.output_type)}"
        return f"Takes {takes}, returns {gives}."

    def _message(self, message: descriptors.DescriptorProto, name: str, place: Place) -> Iterator[str]:
        if message.options.map_entry:
            return
        yield f"## {name}"
        yield self._text(place)
        yield (
            "\n".join(
                self._field(message, field, (*place, _FIELDS, number)) for number, field in enumerate(message.field)
            )
            or "No fields."
        )
        for number, nested in enumerate(message.nested_type):
            yield from self._message(nested, f"{name}.{nested.name}", (*place, _NESTED, number))
        for number, enum in enumerate(message.enum_type):
            yield from self._enum(enum, f"{name}.{enum.name}", (*place, _NESTED_ENUMS, number))

    def _enum(self, enum: descriptors.EnumDescriptorProto, name: str, place: Place) -> Iterator[str]:
        yield f"## {name}"
        yield self._text(place)
        yield "\n".join(
            f"- `{value.name}` = {value.number}{self._after((*place, _VALUES, number))}"
            for number, value in enumerate(enum.value)
        )

    def _field(self, message: descriptors.DescriptorProto, field: _F, place: Place) -> str:
        maps = {f".{nested.name}": nested for nested in message.nested_type if nested.options.map_entry}
        entry = next((nested for end, nested in maps.items() if field.type_name.endswith(end)), None)
        if entry:
            kind = f"map of {self._kind(entry.field[0])} to {self._kind(entry.field[1])}"
        else:
            kind = f"{'repeated ' if field.label == _REPEATED else ''}{self._kind(field)}"
        if field.HasField("oneof_index") and not field.proto3_optional:
            kind += f", one of {message.oneof_decl[field.oneof_index].name}"
        optional = ", optional" if field.proto3_optional else ""
        return f"- `{field.name}` = {field.number}: {kind}{optional}{self._after(place)}"

    def _kind(self, field: _F) -> str:
        return self._link(field.type_name) if field.type_name else _F.Type.Name(field.type)[5:].lower()

    def _link(self, full: str) -> str:
        name = full.removeprefix(PACKAGE)
        home = _homes().get(full)
        return f"[{name}]({home}.md#{re.sub(r'[^a-z0-9_-]', '', name.lower())})" if home else f"`{name.strip('.')}`"

    def _after(self, place: Place) -> str:
        text = self._text(place)
        return f". {text}" if text else ""

    def _text(self, place: Place) -> str:
        """The comment at a path, as Markdown that shows it unchanged."""
        lines = [line.removeprefix(" ").rstrip() for line in self._comments.get(place, "").strip("\n").split("\n")]
        return escaped(" ".join(line for line in lines if line))


def escaped(text: str) -> str:
    """Plain text in Markdown; text within backticks is unchanged."""
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([\\\[\]*_<|])", r"\\\1", part) for part in parts)
