"""Settings of the store that several processes share."""

from pathlib import Path

import pytest
from duetime_core.errors import StartupError
from duetime_store.settings import StoreSettings

FLAGS = ["--data-dir", "/x"]


def test_a_variable_without_store_sets_the_first_check_of_all_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DUETIME_TRANSACTION_TIMEOUT_MS", raising=False)
    assert StoreSettings.read(FLAGS).transaction_timeout_ms == 6_000
    monkeypatch.setenv("DUETIME_TRANSACTION_TIMEOUT_MS", "250")
    assert StoreSettings.read(FLAGS).transaction_timeout_ms == 250
    assert StoreSettings(data_dir=Path("/x")).transaction_timeout_ms == 250
    monkeypatch.setenv("DUETIME_STORE_TRANSACTION_TIMEOUT_MS", "300")
    assert StoreSettings.read(FLAGS).transaction_timeout_ms == 300


def test_an_invalid_timeout_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUETIME_TRANSACTION_TIMEOUT_MS", "soon")
    with pytest.raises(StartupError, match="'soon'"):
        StoreSettings.read(FLAGS)
    monkeypatch.setenv("DUETIME_TRANSACTION_TIMEOUT", "1")
    with pytest.raises(StartupError, match="DUETIME_TRANSACTION_TIMEOUT is not a setting of this process"):
        StoreSettings.read(FLAGS)
