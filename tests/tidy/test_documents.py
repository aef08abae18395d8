"""The documents name every setting, metric, error, call and limit that there is."""

import inspect
import re
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from duetime_console.settings import Settings
from duetime_core import errors
from duetime_core.errors import DueTimeError
from duetime_format import limits
from duetime_webhooks.settings import WebhookSettings

from deploy.site.documents import rows
from tests.tidy.sources import PACKAGES, PROJECT, content, files

# Bytes that DueTime itself adds; nobody meets them.
NOT_LIMITS = {"DEFERRAL_BYTES_MAX"}

NODES = sorted(entry_points(group="duetime.nodes"), key=lambda entry: entry.name)
PROTOS = sorted((PROJECT / "proto" / "duetime" / "v1").glob("*.proto"))


def document(name: str) -> str:
    path = PROJECT / name
    assert path.is_file(), f"{name} is missing"
    return content(path)


def missing(words: set[str], text: str) -> list[str]:
    """The words that a text does not have as whole words."""
    return sorted(word for word in words if not re.search(rf"(?<![\w]){re.escape(word)}(?![\w])", text))


@pytest.mark.parametrize("entry", NODES, ids=lambda entry: entry.name)
def test_readme_of_a_service_lists_its_settings(entry: object) -> None:
    node = entry.load()  # type: ignore[attr-defined]
    settings = node.settings_class
    prefix = settings.model_config["env_prefix"]
    variables = {(prefix + name).upper() for name in settings.model_fields}
    folder = Path(inspect.getfile(node)).parents[1]
    readme = document(str((folder / "README.md").relative_to(PROJECT)))
    assert missing(variables, readme) == []


@pytest.mark.parametrize("entry", NODES, ids=lambda entry: entry.name)
def test_readme_of_a_service_states_the_numbers_of_its_defaults(entry: object) -> None:
    node = entry.load()  # type: ignore[attr-defined]
    fields = node.settings_class.model_fields
    stated: dict[str, str] = {}
    for cells in rows((Path(inspect.getfile(node)).parents[1] / "README.md").read_text()):
        names = cells[0].split(", ")
        if len(cells) == 4 and set(names) <= set(fields):
            stated |= dict(zip(names, cells[2].split(", "), strict=False))
    numbers = {name: str(field.default) for name, field in fields.items() if type(field.default) in (int, float)}
    assert len(numbers) > 5
    assert {name: stated.get(name) for name in numbers} == numbers


def test_readme_of_the_console_lists_its_settings() -> None:
    variables = {f"DUETIME_CONSOLE_{name.upper()}" for name in Settings.model_fields}
    assert missing(variables, document("console/README.md")) == []


def test_readme_of_the_webhook_worker_lists_its_settings() -> None:
    variables = {f"DUETIME_WEBHOOKS_{name.upper()}" for name in WebhookSettings.model_fields}
    assert missing(variables, document("services/webhooks/README.md")) == []


def test_all_services_are_checked() -> None:
    assert [entry.name for entry in NODES] == ["gateway", "retry", "scheduler", "store"]


def test_operations_page_lists_every_metric() -> None:
    literal = re.compile(
        r'"(duetime_(?:store|gateway|scheduler|retry|webhooks|console|metadata|audit|build|calls?|gc)(?:_[a-z0-9_]+)?)"'
    )
    names = {
        name.removesuffix("_total")
        for path in files("core", "shard", "services", "console")
        for name in literal.findall(content(path))
        if name not in PACKAGES
    }
    assert names
    text = document("docs/operations.md")
    found = {name: re.search(rf"(?<!\w){name}(_total)?(?!\w)", text) for name in names}
    assert sorted(name for name, match in found.items() if not match) == []


def test_protocol_page_lists_the_reason_of_every_error() -> None:
    def below(kind: type[DueTimeError]) -> Iterator[type[DueTimeError]]:
        yield kind
        for child in kind.__subclasses__():
            yield from below(child)

    literal = re.compile(r'\breason="([A-Z][A-Z0-9_]+)"')
    reasons = {kind.reason for kind in below(DueTimeError) if kind is not errors.StartupError}
    reasons |= {reason for path in files("core", "shard", "services") for reason in literal.findall(content(path))}
    assert missing(reasons, document("docs/protocol.md")) == []


@pytest.mark.parametrize("proto", PROTOS, ids=lambda path: path.stem)
def test_protocol_page_names_every_call(proto: Path) -> None:
    calls = set(re.findall(r"^\s*rpc (\w+)\(", proto.read_text(), re.MULTILINE))
    assert missing(calls, document("docs/protocol.md")) == []


def test_limits_page_names_every_limit() -> None:
    names = {name for name in vars(limits) if name.endswith(("_MAX", "_MIN"))} - NOT_LIMITS
    for entry in NODES:
        names |= {name for name in entry.load().settings_class.model_fields if name.endswith(("_max", "_max_bytes"))}
    for settings in (Settings, WebhookSettings):
        names |= {name for name in settings.model_fields if name.endswith("_max")}
    assert missing(names, document("docs/limits.md")) == []


def test_admission_page_names_reasons_limits_and_modules_that_exist() -> None:
    page = document("docs/admission.md")
    reasons = set(re.findall(r"\b[A-Z]+_[A-Z_]+[A-Z]\b", page)) - set(re.findall(r"`([A-Z_]+)`", page))
    assert reasons
    assert missing(reasons, document("docs/protocol.md")) == []
    assert missing(set(re.findall(r"`([A-Z_]+|[a-z]+_[a-z_]+)`", page)), document("docs/limits.md")) == []
    folders = {"core": "core/duetime_core", "format": "format/duetime_format"}
    folders |= {"gateway": "services/producer_gw/duetime_gateway", "store": "services/store/duetime_store"}
    modules = re.findall(r"`(core|format|gateway|store)/([a-z_/]+)`", page)
    paths = [PROJECT / folders[room] / name for room, name in modules]
    assert [path for path in paths if not (path.is_dir() or path.with_suffix(".py").is_file())] == []


def test_limits_page_names_metrics_that_exist() -> None:
    metrics = set(re.findall(r"`(duetime_[a-z_]+)`", document("docs/limits.md")))
    assert metrics
    assert missing(metrics, document("docs/operations.md")) == []
