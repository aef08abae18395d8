"""The place of a task's files, and errors without them."""

import pickle
from pathlib import Path

import pytest
from duetime_core.errors import Unavailable
from duetime_spark.shards.files import open_source


def test_a_directory_that_a_worker_does_not_have_is_an_error(tmp_path: Path) -> None:
    """It would read as if retention had taken everything."""
    root = tmp_path / "store"
    root.mkdir()
    (files,) = open_source(str(root))
    sent = pickle.dumps(files)
    assert pickle.loads(sent).name == str(root)
    root.rename(tmp_path / "elsewhere")
    with pytest.raises(Unavailable, match="does not exist where a task runs"):
        pickle.loads(sent)


def test_a_directory_is_the_same_for_workers_in_other_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert [files.name for files in open_source("store")] == [str(tmp_path / "store")]
