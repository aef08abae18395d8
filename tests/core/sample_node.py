"""A process for the tests of `duetime_core.node.life`: a node that does nothing, run by the real `main`."""

import asyncio
import threading
from threading import Event

from duetime_core.clock import Clock
from duetime_core.errors import StartupError
from duetime_core.node.life import main
from duetime_core.node.settings import NodeSettings
from duetime_core.rpc.probes import Health, ProbePages
from duetime_core.rpc.serving import Server
from prometheus_client import CollectorRegistry
from pydantic import Field
from pydantic_settings import SettingsConfigDict


class SampleSettings(NodeSettings):
    model_config = SettingsConfigDict(env_prefix="DUETIME_SAMPLE_")

    fail: str = Field("", description="how it ends by itself: start, loop or return; or stuck")


class SampleNode:
    """Serves health; fails as told."""

    settings_class = SampleSettings

    def __init__(self, settings: SampleSettings, clock: Clock) -> None:
        self._settings = settings
        self.registry = CollectorRegistry()
        self._server = Server(["sample"], 1, stuck=self._stuck)

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def health(self) -> Health:
        return self._server.health

    async def start(self) -> None:
        if self._settings.fail == "start":
            raise StartupError("the table is missing")
        if self._settings.fail == "values":
            await self._fail_with_values()
        await self._server.start(self._settings.host, self._settings.port, front=self._settings.front)

    async def _fail_with_values(self) -> None:
        """A task that nobody awaits, a callback, and itself, with a value in the texts of their exceptions."""
        # Traces show source lines: the joined value is in no line of this file.
        value = "-".join(["planted", "value"])

        async def lost() -> None:
            raise KeyError(value)

        class Passing:
            def __del__(self) -> None:
                raise KeyError(value)

        Passing()
        thread = threading.Thread(target=int, args=(value,))
        thread.start()
        thread.join()
        task = asyncio.create_task(lost())
        await asyncio.wait({task})
        del task
        asyncio.get_running_loop().call_soon(int, value)
        await asyncio.sleep(0)
        raise ValueError(value)

    async def stop(self) -> None:
        await self._server.stop(0)

    async def _stuck(self) -> str:
        return "lane 0/1 does not move" if self._settings.fail == "stuck" else ""

    async def failed(self) -> None:
        if self._settings.fail == "loop":
            raise ZeroDivisionError("a loop died")
        if self._settings.fail == "block":
            # A loop that never gives way, and a probe that does not wait for it long.
            ProbePages.ANSWER_S = 0.2
            Event().wait()
        if self._settings.fail != "return":
            await asyncio.Event().wait()


if __name__ == "__main__":
    main("sample", SampleSettings, SampleNode)
