"""Writes a shard's own table of offsets; its format and its readers are re-exported from duetime_shard.kept."""

from pathlib import Path

from duetime_shard.kept import OFFSETS_FILE, KeptTable, apply, load

from duetime_store.files import configs
from duetime_store.files.disk import Disk

__all__ = ["OFFSETS_FILE", "KeptTable", "apply", "load", "write"]


def write(disk: Disk, directory: Path, kept: KeptTable) -> None:
    """Replaces the file in `config/`; durable on return. Raises: OSError."""
    content = {"position": kept.position, "contents": list(kept.contents), "table": kept.table}
    configs.write(disk, directory, OFFSETS_FILE, content)
