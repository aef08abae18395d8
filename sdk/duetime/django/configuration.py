"""The setting `DUETIME`: a dict, whose keys are the fields of `Configuration` in capitals."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from duetime.client.consuming.consumer import Consumer, Unhandled
from duetime.client.errors import DueTimeError
from duetime.client.tasks.naming import naming
from duetime.client.tokens import TokenSource
from duetime.client.trust import Tls

SETTING = "DUETIME"


@dataclass(frozen=True)
class Configuration:
    """The arguments of the project's `App`, whose `middleware` has dotted paths of classes or objects; `console` is the
    console's URL for links of the admin."""

    name: str
    server: str | None = None
    token: TokenSource | None = None
    tls: Tls | None = None
    unhandled: Unhandled = "retry"
    named_by: str | None = None
    middleware: tuple[str, ...] = ()
    console: str | None = None

    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of `App`. Raises: ImportError: a path of `middleware` leads to nothing."""
        loaded = [import_string(path) for path in self.middleware]
        own = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "console"}
        return own | {"middleware": [one() if isinstance(one, type) else one for one in loaded]}


_KEYS = {one.name.upper(): one.name for one in fields(Configuration)}


def configuration() -> Configuration:
    """The project's configuration.

    Raises:
        ImproperlyConfigured: the setting has faults; all of them are in the text.
    """
    given, faults = _read()
    if faults:
        raise ImproperlyConfigured("; ".join(faults))
    return Configuration(**given)


def faults() -> list[str]:
    """The faults of the setting, a sentence each."""
    return _read()[1]


def _read() -> tuple[dict[str, Any], list[str]]:
    """The values by field, and the faults."""
    found = getattr(settings, SETTING, None)
    if not isinstance(found, Mapping):
        text = "is missing" if found is None else f"is {type(found).__name__}, not a dict"
        return {}, [f'{SETTING} {text}: {SETTING} = {{"NAME": "shop"}}']
    given = {_KEYS[key]: value for key, value in found.items() if key in _KEYS}
    return given, [*_faults_of_keys(found), *_faults_of_values(given)]


def _faults_of_keys(found: Mapping[Any, Any]) -> Iterator[str]:
    for key in found:
        if key not in _KEYS:
            near = get_close_matches(str(key).upper(), _KEYS, 1)
            meant = f"; did you mean {near[0]}?" if near else f"; known: {', '.join(_KEYS)}"
            yield f"{SETTING} has the unknown key {key!r}{meant}"


def _faults_of_values(given: Mapping[str, Any]) -> Iterator[str]:
    if "name" not in given:
        yield f"{SETTING} has no NAME: the consumer group of the workers, and the topic of tasks without one"
        return
    middleware = given.get("middleware", ())
    if not isinstance(middleware, list | tuple) or not all(isinstance(path, str) for path in middleware):
        yield f"{SETTING}['MIDDLEWARE'] is not a list of dotted paths"
        return
    console = given.get("console")
    if console is not None and not (isinstance(console, str) and console.startswith(("http://", "https://"))):
        yield f"{SETTING}['CONSOLE'] is {console!r}, not a URL such as https://console.example.com"
    try:
        # A consumer takes the arguments of the app, has the rules, and connects only when it runs.
        arguments = Configuration(**given).arguments()
        naming(arguments.pop("named_by"))
        Consumer(group=arguments.pop("name"), **arguments)
    except ImportError as error:
        yield f"{SETTING}['MIDDLEWARE']: {error}"
    except (DueTimeError, TypeError) as error:
        yield f"{SETTING}: {error}"
