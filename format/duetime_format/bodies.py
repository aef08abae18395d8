"""Decompresses bodies that a broker's client has compressed: the one place for that. Pure.

    sysFlag | bit 0: compressed | bits 8-10: the algorithm; 0 and 3: zlib, 1: LZ4's frames, 2: ZSTD

Nothing here compresses: DueTime stores bodies as received. LZ4 and ZSTD need packages that are loaded with the first
such body. The client alone does not install them.

Source: RocketMQ 5.3.3 MessageSysFlag, CompressionType, ZlibCompressor, Lz4Compressor, ZstdCompressor.
"""

import sys
import zlib
from collections.abc import Callable
from importlib import import_module
from typing import Any

from duetime_format.layout import SYS_COMPRESSED

_SHIFT, _MASK = 8, 7
# Windows of more than 8 MiB are for levels that no client of a broker has; each body would take that memory at once.
_WINDOW_LOG_MAX = 23
# Part of Python from 3.14 on.
_ZSTD = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
# Returns at most the given number of bytes; raises ValueError, with a clause, for bytes that are not in its format.
_Unpack = Callable[[bytes, int], bytes]


class UnpackError(Exception):
    """A body stays as it is; `text` is the reason, a lower-case clause."""

    def __init__(self, text: str, *, is_damaged: bool = False) -> None:
        """`is_damaged`: it does not match its record. Otherwise it is too large, or compressed by an unknown
        algorithm."""
        super().__init__(text)
        self.text = text
        self.is_damaged = is_damaged


def unpacked(body: bytes, sys_flag: int, bytes_max: int) -> bytes:
    """A stored body as its sender sent it; uses memory for at most `bytes_max` bytes.

    Raises:
        UnpackError: it can't be decompressed.
    """
    if not sys_flag & SYS_COMPRESSED:
        return body
    algorithm = sys_flag >> _SHIFT & _MASK
    unpack = _UNPACKERS.get(algorithm)
    if unpack is None:
        raise UnpackError(f"the body is compressed by unknown algorithm {algorithm}")
    try:
        found = unpack(body, bytes_max + 1)
    except ValueError as error:
        raise UnpackError(f"the compressed body is damaged: {error}", is_damaged=True) from error
    if len(found) > bytes_max:
        raise UnpackError(f"the compressed body has more than {bytes_max} bytes")
    return found


def inflated(body: bytes, bytes_max: int, *, any_head: bool = False) -> bytes:
    """Decompresses zlib data, or with `any_head` also gzip: at most `bytes_max` bytes. Raises: ValueError: not in that
    format."""
    inflater = zlib.decompressobj(wbits=47 if any_head else zlib.MAX_WBITS)
    try:
        found = inflater.decompress(body, bytes_max)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    return _whole(found, bytes_max, has_ended=inflater.eof)


def _by_lz4(body: bytes, bytes_max: int) -> bytes:
    frames = _package("lz4.frame", "LZ4", "lz4")
    reader = frames.LZ4FrameDecompressor()
    try:
        found: bytes = reader.decompress(body, max_length=bytes_max)
    except RuntimeError as error:
        raise ValueError(str(error)) from error
    return _whole(found, bytes_max, has_ended=reader.eof)


def _by_zstd(body: bytes, bytes_max: int) -> bytes:
    zstd = _package(_ZSTD, "ZSTD", "backports.zstd")
    reader = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _WINDOW_LOG_MAX})
    try:
        found: bytes = reader.decompress(body, max_length=bytes_max)
    except zstd.ZstdError as error:
        raise ValueError(str(error)) from error
    return _whole(found, bytes_max, has_ended=reader.eof)


def _package(module: str, algorithm: str, package: str) -> Any:
    """Raises: UnpackError."""
    try:
        return import_module(module)
    except ImportError as error:
        text = f"the body is compressed by {algorithm}, which needs the package {package}: install duetime[unpack]"
        raise UnpackError(text) from error


def _whole(found: bytes, bytes_max: int, *, has_ended: bool) -> bytes:
    if not has_ended and len(found) < bytes_max:
        raise ValueError("it is cut short")
    return found


_UNPACKERS: dict[int, _Unpack] = {0: inflated, 1: _by_lz4, 2: _by_zstd, 3: inflated}
