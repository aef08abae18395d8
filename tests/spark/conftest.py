"""One Spark session for all tests: it takes seconds to start."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from duetime_spark.session import start
from pyspark.sql import SparkSession

# A cold JVM compiles for seconds on an idle machine, and for minutes on a busy one.
TIMEOUT_S = 1_800


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    if "libasan" in os.environ.get("LD_PRELOAD", ""):
        pytest.skip("Java hangs under AddressSanitizer")
    session = start("local[2]", {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g"}, is_brief=True)
    yield session
    session.stop()
