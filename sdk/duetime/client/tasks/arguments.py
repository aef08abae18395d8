"""The arguments of a task: bound to its signature, as JSON in a message, and back.

The body is an object with a value for each argument by its name, so that any language can send it:

    send_mail.send(42, kind="late")         {"order_id":42,"kind":"late"}

Values are checked against the annotations by the rules of bodies (`decoding.py`), before a send and before a run.
Pydantic, if it is installed, takes the types that those rules do not know.
"""

import inspect
import json
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from duetime.client.bodies import encoded, parsed
from duetime.client.callables import is_asynchronous
from duetime.client.decoding import Convert, TypeMismatch, decoder_for
from duetime.client.errors import InvalidArgument
from duetime.client.plain import adapter, faults_of
from duetime.client.tasks.context import (
    Context,
    Dependency,
    Occurrence,
    Provider,
    current,
    current_if_any,
    needs_loop,
    occurrence,
    occurrence_if_any,
)
from duetime.client.tasks.fidelity import change


class TaskSignature:
    """The parameters of a function: those that messages have, and those that are injected. `is_scheduled`: its messages
    come from a schedule, without arguments.

    Raises:
        InvalidArgument: a parameter has no name of its own, JSON can't hold its type, its dependency needs an event
            loop and the function has none, or a schedule would have to give it.
    """

    def __init__(self, function: Callable[..., Any], *, is_scheduled: bool = False) -> None:
        self._name = getattr(function, "__qualname__", type(function).__qualname__)
        signature, hints = inspect.signature(function), self._hints(function)
        self.injected: dict[str, Dependency] = {}
        self._converts: dict[str, Convert] = {}
        self._dumps: dict[str, Callable[[Any], Any]] = {}
        # Pydantic's types by parameter.
        self._types: dict[str, Any] = {}
        self._needed: set[str] = set()
        if next(iter(signature.parameters), "") in ("self", "cls"):
            raise self._rejected("is a method, and a message has no object: make it a function")
        for name, parameter in signature.parameters.items():
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise self._rejected(f"{parameter} has no name in a message: name each argument")
            if isinstance(parameter.default, Dependency):
                self._check_provider(function, parameter.default)
                self.injected[name] = parameter.default
            elif (provider := _provider(name, hints.get(name, Any), is_scheduled)) is not None:
                self.injected[name] = Dependency(provider)
            elif is_scheduled and parameter.default is parameter.empty:
                raise self._rejected(f"a schedule does not give {name!r}: give it a default")
            else:
                self._add(name, hints.get(name, Any), is_needed=parameter.default is parameter.empty)
        sent = [one for name, one in signature.parameters.items() if name in self._converts]
        # Parameters with one of JSON's own types: their values need no conversion.
        self._plain = {name: hint for name in self._converts if (hint := hints.get(name)) in (int, str, bool)}
        self._sent = signature.replace(parameters=sent, return_annotation=signature.empty)
        self._text = f"{self._name.rpartition('.')[2]}{self._sent}"

    def bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by name, without those that are injected. Raises: TypeError: the function does not take
        them."""
        try:
            return self._sent.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise TypeError(f"{self._text}: {error}") from None

    def encoded(self, named: Mapping[str, Any]) -> dict[str, Any]:
        """The body of a message with these arguments. Raises: InvalidArgument: one has no form in JSON."""
        try:
            return {name: self._dumps[name](value) if name in self._dumps else value for name, value in named.items()}
        except ValueError as error:
            raise InvalidArgument.of("arguments", f"{error}: {self._text}") from None

    def key(self, name: str, *, is_needed: bool) -> str:
        """The parameter whose value is the sharding key; without a name the first one, if it is needed.

        Raises:
            InvalidArgument: messages have no such parameter, or none at all.
        """
        found = name or (next(iter(self._sent.parameters), None) if is_needed else "")
        if found is None:
            raise self._rejected("per_key takes a sharding key, and it has no parameter")
        if found and found not in self._sent.parameters:
            raise self._rejected(f"the sharding key {found!r} is none of its parameters: {self._sent}")
        return found

    def key_text(self, name: str, named: Mapping[str, Any]) -> str:
        """The sharding key of a call: an argument as text, or as JSON if it is no text; empty for None. Raises: as
        `encoded`."""
        value = named[name] if name in named else self._sent.parameters[name].default
        body, _ = encoded({name: self.encoded({name: value})[name]})
        found = json.loads(body)[name]
        if found is None or isinstance(found, str):
            return found or ""
        return json.dumps(found, ensure_ascii=False, separators=(",", ":"), sort_keys=True)

    def check(self, body: bytes, named: Mapping[str, Any]) -> None:
        """Raises: InvalidArgument: an argument does not fit its annotation, or would arrive as another value."""
        try:
            received = self._converted(json.loads(body))
        except TypeMismatch as error:
            raise InvalidArgument.of("arguments", f"{error}: {self._text}") from None
        for name, value in received.items():
            if changed := change(self._validated(name, named[name]), value, name):
                raise InvalidArgument.of("arguments", f"{changed}: {self._text}")

    def decoded(self, body: bytes, content_type: str) -> dict[str, Any]:
        """The arguments in a message, by name.

        Raises:
            BadBody: the body is not JSON.
            TypeMismatch: the function does not take these arguments.
        """
        try:
            return self._converted(parsed(body, content_type))
        except TypeMismatch as error:
            raise TypeMismatch(f"{self._text} does not take these arguments: {error}") from None

    def _converted(self, named: Any) -> dict[str, Any]:
        converts = self._converts
        if type(named) is not dict:
            raise TypeMismatch("the body is not an object")
        if named.keys() != converts.keys():
            self._check_names(named)
        plain = self._plain
        for name, value in named.items():
            if type(value) is not plain.get(name):
                named[name] = converts[name](value, name)
        return named

    def _check_names(self, named: dict[str, Any]) -> None:
        if not self._needed <= named.keys():
            raise TypeMismatch(
                f"{', '.join(name for name in self._converts if name in self._needed - named.keys())} is missing"
            )
        if not named.keys() <= self._converts.keys():
            raise TypeMismatch(f"{', '.join(sorted(named.keys() - self._converts.keys()))} is unknown")

    def _validated(self, name: str, value: Any) -> Any:
        """An argument as its type leaves it: validators of pydantic's types may change it, for instance strip it."""
        types = self._types.get(name)
        try:
            return value if types is None else types.validate_python(value)
        except ValueError:
            return value

    def _add(self, name: str, kind: Any, *, is_needed: bool) -> None:
        if is_needed:
            self._needed.add(name)
        try:
            self._converts[name] = decoder_for(kind)
        except InvalidArgument as error:
            text = f"{name}: {error.violations[0].description}"
            if isinstance(kind, type) and issubclass(kind, Enum):
                raise self._rejected(text) from None
            try:
                self._types[name] = adapter(kind)
                self._converts[name] = partial(_validated_json, adapter(kind))
                self._dumps[name] = partial(adapter(kind).dump_python, mode="json")
            except ImportError:
                raise self._rejected(f"{text}, without duetime[pydantic]") from None
            except Exception as unknown:
                raise self._rejected(f"{text}: {str(unknown).partition(chr(10))[0]}") from unknown

    def _check_provider(self, function: Callable[..., Any], dependency: Dependency) -> None:
        provider = getattr(dependency.provider, "__qualname__", repr(dependency.provider))
        if needs_loop(dependency.provider) and not is_asynchronous(function):
            raise self._rejected(f"{provider} is asynchronous: make the task an `async def`")
        try:
            inspect.signature(dependency.provider).bind()
        except TypeError as error:
            raise self._rejected(f"{provider} needs an argument: {error}") from None
        except ValueError:
            pass  # some C code has no signature

    def _hints(self, function: Callable[..., Any]) -> dict[str, Any]:
        source: Any = function
        while isinstance(source, partial):
            source = source.func
        try:
            return get_type_hints(source if inspect.isroutine(source) else source.__call__, include_extras=True)
        except NameError as error:
            raise self._rejected(f"an annotation is unknown: {error}") from None

    def _rejected(self, text: str) -> InvalidArgument:
        return InvalidArgument.of("task", f"{self._name}: {text}")


def _provider(name: str, hint: Any, is_scheduled: bool) -> Provider | None:
    """The provider of a parameter that is injected because of its type, or of its name; None: a message has it."""
    kinds = set(get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,))
    is_optional = NoneType in kinds
    kinds -= {NoneType}
    if kinds == {Context}:
        return current_if_any if is_optional else current
    if is_scheduled and (kinds == {Occurrence} or (name == "occurrence" and hint is Any)):
        return occurrence_if_any if is_optional else occurrence
    return None


def _validated_json(types: Any, value: Any, place: str) -> Any:
    try:
        return types.validate_json(json.dumps(value))
    except ValueError as error:
        raise TypeMismatch(f"{place}: {faults_of(error)}") from None
