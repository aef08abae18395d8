"""Writes index files from the records of a log, from its beginning."""

from datetime import UTC, datetime
from pathlib import Path

from duetime_format.errors import DamagedBytes
from duetime_format.keys import Rows

from duetime_store.files.disk import Disk
from duetime_store.finding.index import BROKERS, IndexFile, IndexWriter, Shape


class IndexFiles:
    """Index files, one after the other."""

    def __init__(self, disk: Disk, folder: Path, shape: Shape) -> None:
        self.shape = shape
        self._disk = disk
        self._folder = folder
        self._writer: IndexWriter | None = None
        disk.make_directory(folder)

    def add(self, rows: Rows) -> None:
        while len(rows):
            writer = self._writer
            if writer is None or not writer.room:
                writer = self._roll(int(rows["stored_at_ms"][0]))
            room = writer.room
            writer.append(rows[:room])
            rows = rows[room:]

    def _roll(self, at_ms: int) -> IndexWriter:
        """Names the next file by an ascending time."""
        before = self._writer
        name = int(datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y%m%d%H%M%S%f")[:17])
        if before is not None:
            self._finish(before)
            name = max(name, int(before.path.name) + 1)
        path = self._folder / f"{name:017d}"
        self._writer = IndexWriter.create(self._disk, path, self.shape, before.header if before else None)
        return self._writer

    def _finish(self, writer: IndexWriter) -> None:
        writer.write_slots()
        writer.sync()
        writer.close()

    def close(self) -> int:
        """The store time of the last record."""
        if self._writer is None:
            return 0
        self._finish(self._writer)
        return self._writer.header.end_at_ms


def shape_of(path: Path) -> Shape:
    """The shape of an existing index file; a broker's default if that is unreadable."""
    try:
        file = IndexFile(path)
    except (OSError, DamagedBytes):
        return BROKERS
    file.close()
    return file.shape
