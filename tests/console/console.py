"""A console in the test's own loop, and a client that requests pages as a browser does."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from duetime_console.running import Console
from duetime_console.settings import Settings
from duetime_core.clock import Clock

SECRET = "a secret of the tests that is long enough"


class Browser:
    """Keeps cookies, and sends each form with the proof that the page before had in it."""

    def __init__(self, client: httpx2.AsyncClient, console: Console) -> None:
        self.client = client
        self.console = console

    async def get(self, path: str, **options: Any) -> httpx2.Response:
        return await self.client.get(path, **options)

    async def post(self, path: str, fields: dict[str, str] | None = None, *, page: str = "/sign-in") -> httpx2.Response:
        """`page`: where the form stands."""
        shown = await self.client.get(page, follow_redirects=True)
        found = re.search(r'X-CSRF-Token": "([^"]+)"', shown.text)
        assert found, "the page has no proof"
        return await self.client.post(path, data={"csrf": found[1], **(fields or {})})


@asynccontextmanager
async def running(server: str, clock: Clock | None = None, **settings: Any) -> AsyncIterator[Browser]:
    """A console of the cluster at `server`; `clock`: None is the system's."""
    values = {"server": server, "port": 0, "secret": SECRET, **settings}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        console = Console(Settings(**values), listener, clock)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(console.serve())
            await console.started()
            address = f"http://127.0.0.1:{listener.getsockname()[1]}"
            try:
                async with httpx2.AsyncClient(base_url=address, timeout=60) as client:
                    yield Browser(client, console)
            finally:
                console.stop()
