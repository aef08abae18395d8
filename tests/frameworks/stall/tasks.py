"""The tasks of the tests' Django app, found by their module's name."""

from duetime.django import app

packed: list[str] = []


@app.task
def pack(name: str) -> None:
    packed.append(name)


@app.task
async def pack_async(name: str) -> None:
    packed.append(name)
