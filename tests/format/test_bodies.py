"""Bodies that a broker's client has compressed."""

import os
import sys
import tracemalloc
import zlib

import lz4.frame
import pytest
from duetime_format.bodies import UnpackError, unpacked

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

ZLIB, OLD_ZLIB, LZ4, ZSTD = 0x301, 0x001, 0x101, 0x201
MIB = 1024 * 1024


def streamed(body: bytes) -> bytes:
    """As RocketMQ's clients pack by ZSTD: the frame does not say how long its content is."""
    packer = zstd.ZstdCompressor()
    return packer.compress(body) + packer.flush()


PACKED = {ZLIB: zlib.compress, OLD_ZLIB: zlib.compress, LZ4: lz4.frame.compress, ZSTD: streamed}
ALL = pytest.mark.parametrize("sys_flag", PACKED, ids=hex)


@ALL
@pytest.mark.parametrize("body", [b"", b"x", b"long" * 100_000, os.urandom(4 * MIB)], ids=len)
def test_body_equals_the_senders(sys_flag: int, body: bytes) -> None:
    assert unpacked(PACKED[sys_flag](body), sys_flag, 4 * MIB) == body


def test_a_body_that_is_not_compressed_stays() -> None:
    assert unpacked(b"body", 0x300, 1) == b"body"


@ALL
def test_the_most_bytes_are_given_and_one_more_is_not(sys_flag: int) -> None:
    assert len(unpacked(PACKED[sys_flag](bytes(MIB)), sys_flag, MIB)) == MIB
    with pytest.raises(UnpackError, match=f"more than {MIB - 1} bytes") as caught:
        unpacked(PACKED[sys_flag](bytes(MIB)), sys_flag, MIB - 1)
    assert not caught.value.is_damaged


@ALL
@pytest.mark.parametrize("cut", [1, 3, 10])
def test_one_that_is_cut_short_or_nonsense_is_damaged(sys_flag: int, cut: int) -> None:
    for body in (PACKED[sys_flag](b"long" * 1_000)[:-cut], b"nonsense" * 9, b""):
        with pytest.raises(UnpackError, match="is damaged") as caught:
            unpacked(body, sys_flag, MIB)
        assert caught.value.is_damaged


@ALL
def test_a_bomb_takes_no_more_memory_than_it_may(sys_flag: int) -> None:
    bomb = PACKED[sys_flag](bytes(256 * MIB))
    assert len(bomb) < 2 * MIB
    tracemalloc.start()
    try:
        with pytest.raises(UnpackError, match="more than"):
            unpacked(bomb, sys_flag, MIB)
        assert tracemalloc.get_traced_memory()[1] < 24 * MIB
    finally:
        tracemalloc.stop()


def test_windows_of_rare_levels_are_not_made() -> None:
    packer = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 27})
    with pytest.raises(UnpackError, match="too much memory"):
        unpacked(packer.compress(b"body") + packer.flush(), ZSTD, MIB)


@pytest.mark.parametrize(("sys_flag", "module"), [(LZ4, "lz4.frame"), (ZSTD, zstd.__name__)])
def test_a_package_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, sys_flag: int, module: str) -> None:
    # As if it were not installed.
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UnpackError, match=r"duetime\[unpack\]"):
        unpacked(PACKED[sys_flag](b"body"), sys_flag, MIB)
