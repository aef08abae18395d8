"""A cluster with traffic, a console of it, and a browser: shared by the tests of a file."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
from duetime_core.testing import Cluster
from playwright.async_api import Browser as Chromium

from tests.console.browser import chromium
from tests.console.console import Browser, running
from tests.console.traffic import Traffic


@dataclass
class Shown:
    """A cluster of two shards as its console shows it."""

    cluster: Cluster
    traffic: Traffic
    browser: Browser

    @property
    def address(self) -> str:
        """Of the console: `http://127.0.0.1:PORT`."""
        return str(self.browser.client.base_url).rstrip("/")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shown(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shown]:
    """Filled by `Traffic.fill`; tests change only their own objects. The clock is stopped."""
    directory: Path = tmp_path_factory.mktemp("cluster")
    async with (
        Cluster(directory, shards=2, gateway_settings={"secrets_key": "A" * 43 + "="}) as cluster,
        Traffic(cluster.address) as traffic,
    ):
        await traffic.fill()
        async with running(cluster.address, cluster.clock) as browser:
            yield Shown(cluster, traffic, browser)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def desk() -> AsyncIterator[Chromium]:
    """A browser that all tests of a file share; each opens tabs of its own."""
    async with chromium() as browser:
        yield browser
