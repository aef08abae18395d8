"""Settings: environment and flags, all faults in one line."""

from pathlib import Path

import pytest
from duetime_core.errors import StartupError
from duetime_core.node.settings import NodeSettings, StoreClientSettings, parse_stores
from duetime_format.levels import DEFAULT_DELAY_LEVELS
from pydantic import Field, ValidationError
from pydantic_settings import SettingsConfigDict


class SampleSettings(NodeSettings):
    """A process with one setting that must be given and one that need not."""

    model_config = SettingsConfigDict(env_prefix="DUETIME_SAMPLE_")

    folder: Path = Field(description="where it lies")
    count: int = Field(3, ge=1, description="how many")


class SampleClientSettings(StoreClientSettings):
    model_config = SettingsConfigDict(env_prefix="DUETIME_SAMPLE_")


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DUETIME_DELAY_LEVELS", "DUETIME_LOG_LEVEL", "DUETIME_LOG_FORMAT"):
        monkeypatch.delenv(name, raising=False)


def test_defaults_apply_without_settings() -> None:
    settings = SampleSettings.read(["--folder", "/x"])
    assert (settings.folder, settings.count, settings.host, settings.port) == (Path("/x"), 3, "127.0.0.1", 0)
    assert str(settings.levels) == DEFAULT_DELAY_LEVELS


def test_environment_is_read_and_flags_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUETIME_SAMPLE_FOLDER", "/e")
    monkeypatch.setenv("DUETIME_SAMPLE_COUNT", "5")
    monkeypatch.setenv("DUETIME_SAMPLE_METRICS_PORT", "-1")
    settings = SampleSettings.read(["--count", "6"])
    assert (settings.folder, settings.count, settings.metrics_port) == (Path("/e"), 6, -1)


def test_shared_variables_reach_each_process_and_its_own_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUETIME_DELAY_LEVELS", "1s 2s")
    monkeypatch.setenv("DUETIME_LOG_LEVEL", "DEBUG")
    monkeypatch.setenv("DUETIME_LOG_FORMAT", "json")
    settings = SampleSettings.read(["--folder", "/x"])
    assert (settings.levels.names, settings.log_level, settings.log_format) == (("1s", "2s"), "DEBUG", "json")
    monkeypatch.setenv("DUETIME_SAMPLE_DELAY_LEVELS", "3s")
    assert SampleSettings.read(["--folder", "/x"]).levels.names == ("3s",)


def test_all_faults_are_reported_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUETIME_SAMPLE_PORT", "70000")
    monkeypatch.setenv("DUETIME_SAMPLE_COUNT", "none")
    monkeypatch.setenv("DUETIME_SAMPLE_DELAY_LEVELS", "1s 1s")
    monkeypatch.setenv("DUETIME_SAMPLE_FOLDR", "/typo")
    with pytest.raises(StartupError) as caught:
        SampleSettings.read([])
    text = caught.value.text
    assert "\n" not in text
    for sentence in (
        "DUETIME_SAMPLE_FOLDR is not a setting of this process",
        "DUETIME_SAMPLE_FOLDER (or --folder): is missing",
        "DUETIME_SAMPLE_PORT = '70000': is above 65535",
        "DUETIME_SAMPLE_COUNT = 'none': is not a whole number",
        "DUETIME_SAMPLE_DELAY_LEVELS = '1s 1s': delay levels '1s 1s' hold one delay twice",
    ):
        assert sentence in text


def test_unknown_variable_alone_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUETIME_SAMPLE_FOLDR", "/typo")
    with pytest.raises(StartupError, match="DUETIME_SAMPLE_FOLDR is not a setting of this process"):
        SampleSettings.read(["--folder", "/x"])


def test_misspelt_shared_variable_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUETIME_DELAY_LEVEL", "1s")
    with pytest.raises(StartupError, match="DUETIME_DELAY_LEVEL is not a setting of this process"):
        SampleSettings.read(["--folder", "/x"])


def test_fault_of_a_shared_variable_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUETIME_DELAY_LEVELS", "soon")
    monkeypatch.setenv("DUETIME_LOG_LEVEL", "LOUD")
    with pytest.raises(StartupError) as caught:
        SampleSettings.read(["--folder", "/x"])
    assert "'soon'" in caught.value.text
    assert "'LOUD'" in caught.value.text


def test_settings_do_not_change() -> None:
    settings = SampleSettings.read(["--folder", "/x"])
    with pytest.raises(ValidationError):
        settings.port = 1  # type: ignore[misc]


def test_stores_are_read_by_shard() -> None:
    assert parse_stores("0=localhost:1, 2=[::1]:3") == {0: "localhost:1", 2: "[::1]:3"}
    settings = SampleClientSettings.read(["--database-url", "sqlite://", "--stores", "0=h:1,1=h:2"])
    assert settings.store_addresses == {0: "h:1", 1: "h:2"}
    assert parse_stores("0=10.0.0.1:1|b:1,1=h:2") == {0: "10.0.0.1:1|b:1", 1: "h:2"}
    with pytest.raises(ValueError, match="has the same address twice"):
        parse_stores("0=a:1|b:1|a:1")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "store '' is not SHARD=HOST:PORT"),
        ("h:1", "store 'h:1' is not SHARD=HOST:PORT"),
        ("x=h:1", "store 'x=h:1' is not SHARD=HOST:PORT"),
        ("0=h", "store '0=h' is not SHARD=HOST:PORT"),
        ("0=h:x", "store '0=h:x' is not SHARD=HOST:PORT"),
        ("0=h:1,0=h:2", "shard 0 is named twice"),
    ],
)
def test_faulty_stores_are_refused(text: str, sentence: str) -> None:
    with pytest.raises(StartupError) as caught:
        SampleClientSettings.read(["--database-url", "sqlite://", "--stores", text])
    assert sentence in caught.value.text
