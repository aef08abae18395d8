"""Sources of a shard's files: a directory, any file system of fsspec, a running store or gateway.

/data/store-0   file:///data/store-0     this machine
s3://bucket/store-0, memory://…          fsspec (its own packages and settings)
grpc://HOST:PORT                         a store, or a gateway and all of its shards, by their Export
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import fsspec
import grpc
from duetime.v1 import export_pb2, gateway_pb2_grpc, store_pb2_grpc
from duetime_core.errors import InvalidArgument, Unavailable, Violation
from duetime_core.node.settings import credentials_of_commands
from duetime_core.rpc.channels import make_blocking_channel
from duetime_shard.disk import IS_FOLDER, LocalFiles, ShardFiles

GRPC = "grpc://"
_OPTIONS = (("grpc.max_receive_message_length", 64 << 20),)
_CALL_S = 20.0
# Slowest allowed export: a store limits the rate of all exports together.
_SLOWEST_BYTES_PER_S = 250_000
_FILE_BYTES_MAX = 64 << 20
# Time for which a listing is reused: readers list folder after folder.
_LISTING_S = 2.0
_TRIES = 6
_PAUSE_S = 0.2
_RETRIED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)

T = TypeVar("T")


def open_source(source: str) -> list[ShardFiles]:
    """The shards of a source, in order.

    Raises:
        InvalidArgument: there is no such file system or directory.
        Unavailable: the server or one of a gateway's shards does not answer.
    """
    if source.startswith(GRPC):
        return _shards(source)
    if "://" not in source:
        return [TaskFiles(Path(source).absolute())]
    if source.startswith("file://"):
        return [TaskFiles(Path(urlsplit(source).path))]
    return [FsspecFiles(source)]


class TaskFiles(LocalFiles):
    """A directory required on every worker: a missing one would read as an empty shard."""

    def __reduce__(self) -> tuple[Any, tuple[Path]]:
        return _there, (self.root,)


def _there(root: Path) -> TaskFiles:
    """Raises: Unavailable."""
    if not root.is_dir():
        raise Unavailable(f"{root} does not exist where a task runs: mount it on all workers, or read by grpc://")
    return TaskFiles(root)


class FsspecFiles:
    """A directory on a file system of fsspec."""

    def __init__(self, url: str) -> None:
        """Raises: InvalidArgument: the file system is unknown or cannot be reached."""
        self.url = url
        try:
            self._fs, root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError, OSError) as error:
            raise InvalidArgument([Violation("path", f"{url}: {error}")]) from error
        self._root = root.rstrip("/")

    def __reduce__(self) -> tuple[type["FsspecFiles"], tuple[str]]:
        return FsspecFiles, (self.url,)

    @property
    def name(self) -> str:
        return self.url

    def listed(self, folder: str) -> list[tuple[str, int]]:
        self._fs.invalidate_cache()
        try:
            found = self._fs.ls(self._path(folder), detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(
            (str(entry["name"]).rstrip("/").rsplit("/", 1)[-1], _size(entry))
            for entry in found
            # Object stores list the folder itself among its contents.
            if str(entry["name"]).strip("/") != self._path(folder).strip("/")
        )

    def read(self, path: str, at: int, length: int) -> bytes:
        if at < 0 or length <= 0:
            return b""
        try:
            return bytes(self._fs.cat_file(self._path(path), start=at, end=at + length))
        except (FileNotFoundError, NotADirectoryError):
            return b""

    def content(self, path: str) -> bytes | None:
        try:
            return bytes(self._fs.cat_file(self._path(path)))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def exists(self, path: str) -> bool:
        return bool(self._fs.exists(self._path(path)))

    def next_data(self, path: str, at: int) -> int | None:
        """The next byte: these file systems do not report holes."""
        try:
            return at if at < self._fs.size(self._path(path)) else None
        except (FileNotFoundError, NotADirectoryError):
            return None

    def close(self) -> None:
        """The file system keeps its own connections."""

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root


def _size(entry: dict[str, Any]) -> int:
    return IS_FOLDER if entry["type"] == "directory" else int(entry["size"] or 0)


class GrpcFiles:
    """A shard of a running store or gateway, read by its Export calls."""

    def __init__(self, address: str, shard: int, is_gateway: bool) -> None:
        """`address`: HOST:PORT."""
        self.address = address
        self.shard = shard
        self.is_gateway = is_gateway
        self._channel: grpc.Channel | None = None
        self._listing: dict[str, export_pb2.StoredFile] = {}
        self._listed_at_s = float("-inf")

    def __reduce__(self) -> tuple[type["GrpcFiles"], tuple[str, int, bool]]:
        return GrpcFiles, (self.address, self.shard, self.is_gateway)

    @property
    def name(self) -> str:
        return f"{GRPC}{self.address} shard {self.shard}" if self.is_gateway else f"{GRPC}{self.address}"

    def listed(self, folder: str) -> list[tuple[str, int]]:
        prefix = f"{folder}/" if folder else ""
        found: dict[str, int] = {}
        for path, file in self._files().items():
            if path.startswith(prefix):
                name, _, rest = path[len(prefix) :].partition("/")
                found[name] = IS_FOLDER if rest else file.size
        return sorted(found.items())

    def read(self, path: str, at: int, length: int) -> bytes:
        return (self._export(path, at, length) or b"") if at >= 0 and length > 0 else b""

    def content(self, path: str) -> bytes | None:
        return self._export(path, 0, 0)

    def exists(self, path: str) -> bool:
        return any(not path or name == path or name.startswith(f"{path}/") for name in self._files())

    def next_data(self, path: str, at: int) -> int | None:
        file = self._files().get(path)
        return at if file is not None and at < file.written_bytes else None

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _files(self) -> dict[str, export_pb2.StoredFile]:
        if time.monotonic() - self._listed_at_s > _LISTING_S:
            request = export_pb2.ListFilesRequest(shard=self.shard)
            answer = self._tried(lambda stub: stub.ListFiles(request, timeout=_CALL_S))
            self._listing = {file.path: file for file in answer.files}
            self._listed_at_s = time.monotonic()
        return self._listing

    def _export(self, path: str, at: int, length: int) -> bytes | None:
        request = export_pb2.ExportRequest(path=path, offset=at, length=length, shard=self.shard)
        export_s = _CALL_S + (length or _FILE_BYTES_MAX) / _SLOWEST_BYTES_PER_S
        try:
            return self._tried(lambda stub: b"".join(chunk.data for chunk in stub.Export(request, timeout=export_s)))
        except Unavailable as error:
            if isinstance(error.__cause__, grpc.RpcError) and error.__cause__.code() == grpc.StatusCode.NOT_FOUND:
                return None
            raise

    def _tried(self, call: Callable[[Any], T]) -> T:
        for tries in range(_TRIES):
            try:
                return call(self._stub())
            except grpc.RpcError as error:
                if error.code() not in _RETRIED or tries == _TRIES - 1:
                    raise Unavailable(f"{self.name}: {error.code().name}, {error.details()}") from error
            pause(_PAUSE_S * 2**tries)
        raise AssertionError("the last try returns or raises")

    def _stub(self) -> Any:
        if self._channel is None:
            self._channel = make_blocking_channel(self.address, _OPTIONS, credentials_of_commands())
        return (gateway_pb2_grpc.GatewayStub if self.is_gateway else store_pb2_grpc.StoreStub)(self._channel)


def pause(seconds: float) -> None:
    """Waits."""
    time.sleep(seconds)  # noqa: TID251 (a task of Spark has no loop, and nothing to do meanwhile)


def _shards(source: str) -> list[ShardFiles]:
    address = source.removeprefix(GRPC).rstrip("/")
    if ":" not in address or "/" in address:
        raise InvalidArgument([Violation("endpoint", f"{source} is not grpc://HOST:PORT")])
    return list(_asked(address))


def _asked(address: str) -> Iterator[ShardFiles]:
    """The shards of a gateway, or the one of a store: stores do not implement ListShards."""
    with make_blocking_channel(address, _OPTIONS, credentials_of_commands()) as channel:
        try:
            stub = gateway_pb2_grpc.GatewayStub(channel)  # type: ignore[no-untyped-call]
            answer = stub.ListShards(export_pb2.ListShardsRequest(), timeout=_CALL_S)
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.UNIMPLEMENTED:
                yield GrpcFiles(address, 0, is_gateway=False)
                return
            raise Unavailable(f"{GRPC}{address} does not answer: {error.code().name}, {error.details()}") from error
    if answer.unreachable_shards:
        raise Unavailable(f"{GRPC}{address}: shards {list(answer.unreachable_shards)} do not answer")
    for shard in answer.shards:
        yield GrpcFiles(address, shard, is_gateway=True)
