"""Store directories of a real RocketMQ 5.5.1, imported: each line of their manifests against the shard's messages."""

from pathlib import Path

import pytest
from duetime_format.columns import RecordRun
from duetime_format.properties import value_of
from duetime_shard.disk import LocalFiles
from duetime_shard.files import LogFiles
from duetime_shard.walk import scan_runs

from tests.format import golden55


@pytest.fixture(params=golden55.NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def root(name: str, tmp_path: Path) -> Path:
    return golden55.unpack(name, tmp_path)


def test_log_has_every_message_of_the_manifest(name: str, root: Path) -> None:
    log = LogFiles(LocalFiles(root))
    runs = [item for item in scan_runs(log, log.min_position) if isinstance(item, RecordRun)]
    log.close()
    ids = {value_of(run.properties(index), b"UNIQ_KEY").decode() for run in runs for index in range(run.count)}
    lines = [line for line in golden55.manifest(name) if line["kind"] not in ("topic", "offset", "end")]
    assert {line["id"] for line in lines if line["id"]} <= ids
