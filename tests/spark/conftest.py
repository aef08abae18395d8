"""One Spark session for all tests: it takes seconds to start."""

from collections.abc import Iterator

import pytest
from duetime_spark.session import start
from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = start("local[2]", {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g"})
    yield session
    session.stop()
