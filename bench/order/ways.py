"""The store's order of messages due at any time, and alternatives with the same calls.

All keep (due, entry, topic, key) and can be rebuilt from the log, so no call has to be durable: a checkpoint writes the
state for the next start.
"""

import importlib
import sqlite3
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from struct import Struct
from typing import Any

import numpy as np
import numpy.typing as npt
from duetime_format.lanes import LanePlace
from duetime_store.files.disk import Disk
from duetime_store.lanes.order.order import LaneOrder
from duetime_store.lanes.order.rows import START, OrderRows
from duetime_store.lanes.order.topics import TopicNumbers

Ints = npt.NDArray[np.int64]
ROW = np.dtype([("due", "i8"), ("entry", "i8"), ("topic", "u4"), ("key", "u4")])
_KEY = Struct(">qq")
_VALUE = Struct(">II")


class Way(ABC):
    """Entries arrive in ascending numbers, in batches; the first ones in order are taken repeatedly."""

    title = ""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def add(self, dues: Ints, first: int) -> None: ...

    @abstractmethod
    def take(self, count: int) -> Ints:
        """Removes and returns the next entries."""

    @abstractmethod
    def count_before(self, due: int) -> int:
        """The exact number of pending entries due before this time."""

    @abstractmethod
    def checkpoint(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


class Runs(Way):
    """The store's structure: a memtable and sorted runs."""

    title = "sorted runs"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._executor = ThreadPoolExecutor(2)
        self._topics = TopicNumbers(Disk(), folder / "timers" / "topics")
        self.order = LaneOrder(Disk(), folder / "timers" / "0", self._topics, self._executor)
        self.order.open(0, 1 << 60, 1 << 60)
        self._end = self.order.covered[1]
        self._place = START

    def add(self, dues: Ints, first: int) -> None:
        count = len(dues)
        zeros = np.zeros(count, np.uint32)
        self.order.add(OrderRows(dues, np.arange(first, first + count), zeros, zeros))
        self._end = first + count

    def take(self, count: int) -> Ints:
        rows = self.order.head(self._place, count)
        if rows.size:
            self._place = rows.last
            self.order.advance(self._place)
        return rows.entries

    def count_before(self, due: int) -> int:
        return self.order.count_to(LanePlace(due, -1))

    def checkpoint(self) -> None:
        saving = self.order.capture(self._end, self._end)
        while not saving.is_ready:
            assert self.order.flushing is not None
            self.order.flushing.result()
            self.order.tend()
        self.order.write(saving)
        self.order.saved(saving)

    def close(self) -> None:
        self.order.close()
        self._executor.shutdown()


class Buckets(Way):
    """A file for each minute, appended to; read and sorted when its minute is near."""

    title = "a file a minute"
    _BUCKET_MS = 60_000

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        folder.mkdir(exist_ok=True)
        self._files: dict[int, Any] = {}
        self._counts: dict[int, int] = {}
        for path in folder.iterdir():
            self._counts[int(path.name)] = path.stat().st_size // ROW.itemsize
        self._near = np.empty(0, ROW)
        self._near_bucket = -1

    def add(self, dues: Ints, first: int) -> None:
        rows = np.zeros(len(dues), ROW)
        rows["due"], rows["entry"] = dues, np.arange(first, first + len(dues))
        buckets = dues // self._BUCKET_MS
        order = np.argsort(buckets, kind="stable")
        rows, buckets = rows[order], buckets[order]
        starts = np.flatnonzero(np.diff(buckets, prepend=-1))
        for start, stop in zip(starts.tolist(), [*starts.tolist()[1:], len(rows)], strict=True):
            bucket, part = int(buckets[start]), rows[start:stop]
            if bucket <= self._near_bucket:
                self._near = np.sort(np.concatenate([self._near, part]), order=("due", "entry"))
            else:
                if bucket not in self._files:
                    self._files[bucket] = (self.folder / str(bucket)).open("ab")
                self._files[bucket].write(part.tobytes())
            self._counts[bucket] = self._counts.get(bucket, 0) + len(part)

    def take(self, count: int) -> Ints:
        if not len(self._near) and self._counts:
            self._load(min(self._counts))
        taken, self._near = self._near[:count], self._near[count:]
        return taken["entry"].copy()

    def _load(self, bucket: int) -> None:
        file = self._files.pop(bucket, None)
        if file:
            file.close()
        rows = np.fromfile(self.folder / str(bucket), ROW)
        self._near, self._near_bucket = rows[np.lexsort((rows["entry"], rows["due"]))], bucket
        (self.folder / str(bucket)).unlink()
        del self._counts[bucket]

    def count_before(self, due: int) -> int:
        """Reads the last minute to count it."""
        bucket = due // self._BUCKET_MS
        count = int(np.count_nonzero(self._near["due"] < due))
        count += sum(size for other, size in self._counts.items() if other < bucket)
        if bucket in self._counts:
            self._flush()
            count += int(np.count_nonzero(np.fromfile(self.folder / str(bucket), ROW)["due"] < due))
        return count

    def _flush(self) -> None:
        for file in self._files.values():
            file.flush()

    def checkpoint(self) -> None:
        for file in self._files.values():
            file.flush()
            Disk().datasync(file.fileno())

    def close(self) -> None:
        for file in self._files.values():
            file.close()


class Sqlite(Way):
    """A table WITHOUT ROWID of the standard library's SQLite."""

    title = "SQLite"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        folder.mkdir(exist_ok=True)
        self._db = sqlite3.connect(folder / "order", isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = OFF")
        self._db.execute("PRAGMA cache_size = -32000")
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS rows (due INTEGER, entry INTEGER, topic INTEGER, key INTEGER,"
            " PRIMARY KEY (due, entry)) WITHOUT ROWID"
        )
        self._db.execute("BEGIN")

    def add(self, dues: Ints, first: int) -> None:
        entries = range(first, first + len(dues))
        zeros = [0] * len(dues)
        rows = zip(dues.tolist(), entries, zeros, zeros, strict=True)
        self._db.executemany("INSERT INTO rows VALUES (?, ?, ?, ?)", rows)

    def take(self, count: int) -> Ints:
        rows = self._db.execute("SELECT due, entry FROM rows ORDER BY due, entry LIMIT ?", (count,)).fetchall()
        if rows:
            self._db.execute("DELETE FROM rows WHERE (due, entry) <= (?, ?)", rows[-1])
        return np.array([entry for _, entry in rows], np.int64)

    def count_before(self, due: int) -> int:
        return int(self._db.execute("SELECT count(*) FROM rows WHERE due < ?", (due,)).fetchone()[0])

    def checkpoint(self) -> None:
        self._db.execute("COMMIT")
        self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._db.execute("BEGIN")

    def close(self) -> None:
        self._db.close()


class Lmdb(Way):
    """A B-tree in a memory map: `pip install lmdb`."""

    title = "LMDB"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        lmdb: Any = importlib.import_module("lmdb")
        self._env = lmdb.open(str(folder), map_size=1 << 36, sync=False, writemap=True)
        self._txn = self._env.begin(write=True)

    def add(self, dues: Ints, first: int) -> None:
        value = _VALUE.pack(0, 0)
        with self._txn.cursor() as cursor:
            cursor.putmulti([(_KEY.pack(due, first + n), value) for n, due in enumerate(dues.tolist())])

    def take(self, count: int) -> Ints:
        taken: list[int] = []
        with self._txn.cursor() as cursor:
            cursor.first()
            while len(taken) < count and (key := cursor.key()):
                taken.append(_KEY.unpack(key)[1])
                cursor.delete()
        return np.array(taken, np.int64)

    def count_before(self, due: int) -> int:
        count = 0
        with self._txn.cursor() as cursor:
            for key in cursor.iternext(keys=True, values=False):
                if _KEY.unpack(key)[0] >= due:
                    break
                count += 1
        return count

    def checkpoint(self) -> None:
        self._txn.commit()
        self._env.sync(True)
        self._txn = self._env.begin(write=True)

    def close(self) -> None:
        self._txn.abort()
        self._env.close()


WAYS: dict[str, type[Way]] = {"runs": Runs, "buckets": Buckets, "sqlite": Sqlite, "lmdb": Lmdb}
