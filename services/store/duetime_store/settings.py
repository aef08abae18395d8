"""Settings of the store process."""

from pathlib import Path
from typing import Any, Literal, Self

from duetime_core.node.settings import NodeSettings, parse_stores, transaction_timeout_of_all
from duetime_format.lanes import TIMER_LANES_MAX
from duetime_format.levels import DELAY_MS_MAX
from duetime_format.limits import QUEUES_MAX_DEFAULT, TOPICS_MAX_DEFAULT
from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

MIB = 1024 * 1024
# Maximum that the table of open transactions can count.
CHECKS_COUNTED_MAX = 4_095
# Counts of copies that can found a group.
FOUNDING_COUNTS = (3, 5)
# The settings from which a place among all copies follows.
ORDINAL_DEFAULTS = {"ordinal": -1, "copies_count": 3, "copies_group": 0}


class StoreSettings(NodeSettings):
    """One shard's settings."""

    model_config = SettingsConfigDict(env_prefix="DUETIME_STORE_")

    data_dir: Path = Field(description="the shard's directory, RocketMQ's storePathRootDir")
    lock_wait_ms: int = Field(
        10_000, ge=0, description="maximum wait of a start for another process that holds data_dir"
    )
    shard: int = Field(0, ge=0, le=65_535, description="the shard's number")
    flush_mode: Literal["sync", "async"] = Field(
        "sync", description="sync: flushed before the answer; async: written before, flushed within flush_interval_ms"
    )
    flush_interval_ms: int = Field(500, ge=1, le=60_000, description="flush period of the async mode")
    segment_bytes: int = Field(
        1024 * MIB, ge=MIB, le=1024 * MIB, description="commit log file size; existing files keep theirs"
    )
    queue_file_units: int = Field(
        300_000, ge=100, le=10_000_000, description="units in a consume queue file; existing files keep theirs"
    )
    advertise_host: str = Field("127.0.0.1", description="IP address in records as store host")
    advertise_port: int = Field(
        0,
        ge=0,
        le=65_535,
        description="port in records as store host; 0: the one advertised before, at first the listening port",
    )
    accept_delay_levels: bool = Field(
        False, description="start with another level table than the data's; pending messages keep their due times"
    )
    accept_missing_segments: bool = Field(
        False,
        description="start despite missing files of the commit log: their content is lost, the rest is served",
    )
    timer_lanes: int = Field(
        1,
        ge=1,
        le=TIMER_LANES_MAX,
        description="lanes for new messages for any time; lanes that hold messages stay",
    )
    checkpoint_ms: int = Field(10_000, ge=100, le=600_000, description="maximum time between checkpoints")
    checkpoint_bytes: int = Field(64 * MIB, ge=MIB, description="maximum log bytes between checkpoints")
    recent_ids_count: int = Field(
        1_000_000,
        ge=0,
        le=10_000_000,
        description="maximum message ids remembered, to recognize repeated sends; 24 bytes of memory each; 0: none",
    )
    recent_ids_ms: int = Field(
        600_000,
        ge=1_000,
        le=86_400_000,
        description="time for which a message id is remembered, if there are not too many",
    )
    index: bool = Field(True, description="build index files, to find messages by key and id")
    index_slots: int = Field(
        5_000_000, ge=1_000, le=100_000_000, description="hash slots of an index file; existing files keep theirs"
    )
    index_entries: int = Field(
        20_000_000, ge=20_000, le=100_000_000, description="entries of an index file; existing files keep theirs"
    )
    waiting_bytes_max: int = Field(
        64 * MIB, ge=MIB, description="maximum bytes waiting for a flush, and again for those held until due"
    )
    reserve_bytes: int = Field(64 * MIB, ge=0, description="disk space kept for restores on a full disk")
    disk_used_max: float = Field(
        0.90,
        gt=0,
        le=1,
        description="disk use (as df counts) above which sends are rejected with DISK_FULL; 1: no limit",
    )
    flush_stall_ms: int = Field(
        5_000, ge=100, description="time of a write or flush after which sends are rejected with FLUSH_STALLED"
    )
    retention_ms: int = Field(
        72 * 3_600_000, ge=1_000, description="age at which a full log file is deleted; pending messages are kept"
    )
    retention_bytes: int = Field(
        0,
        ge=0,
        description="maximum log bytes: beyond, the oldest file is deleted at any age, read or not; 0: no limit",
    )
    retention_hours: frozenset[int] = Field(
        frozenset(), description="UTC hours in which files are deleted by age, such as [4]; none: at any hour"
    )
    retention_check_ms: int = Field(10_000, ge=10, description="how often log files are checked for retention")
    disk_clean: float = Field(
        0.75,
        gt=0,
        le=1,
        description="disk use above which expired files are deleted outside retention_hours too, once all "
        "groups have read them",
    )
    disk_force: float = Field(
        1,
        gt=0,
        le=1,
        description="disk use above which the oldest file is deleted at any age, read or not (broker: 0.85); 1: never",
    )
    leases_max: int = Field(
        1_000_000,
        ge=1,
        description="maximum messages of all groups leased or waiting for redelivery, half of them of one caller and "
        "a quarter of one group; each takes 110 bytes of memory if a Receive leases 32, 640 if it leases one",
    )
    priority_wait_ms: int = Field(
        10_000,
        ge=0,
        le=86_400_000,
        description="time for which higher priorities may pass over a queue; then one of each eight messages comes "
        "from it until it is empty",
    )
    queue_files_max: int = Field(
        0,
        ge=0,
        description="maximum open files of queues; 0: two fifths of the descriptors that the process "
        "may have, 4,096 at most",
    )
    topics_max: int = Field(
        TOPICS_MAX_DEFAULT, ge=100, description="maximum topics of the shard; beyond, new ones are rejected"
    )
    queues_max: int = Field(
        QUEUES_MAX_DEFAULT,
        ge=100,
        description="maximum queues of all topics; beyond, new ones are rejected. Retries and dead letters of groups "
        "have a tenth more of both",
    )
    groups_max: int = Field(10_000, ge=1, description="maximum groups that receive")
    group_queues_max: int = Field(
        100_000, ge=1, description="maximum queues in which groups keep offsets, over all groups"
    )
    lite_topics_max: int = Field(
        100_000, ge=1, description="maximum lite topics, of some 300 bytes of memory each, and 8 for each message"
    )
    lite_places_max: int = Field(
        200_000, ge=1, description="maximum lite topics in which groups keep offsets, over all groups"
    )
    lite_keep_ms: int = Field(
        72 * 3_600_000,
        ge=1_000,
        description="time after the last message and the last receive of a lite topic until it is forgotten, with the "
        "groups' offsets in it",
    )
    transaction_timeout_ms: int = Field(  # type: ignore[assignment] # the text is read as all defaults are
        default_factory=transaction_timeout_of_all,
        ge=1,
        le=DELAY_MS_MAX,
        description="time from a prepare to the first check of an open transaction; "
        "DUETIME_TRANSACTION_TIMEOUT_MS sets it for all stores",
    )
    transaction_check_interval_ms: int = Field(
        30_000, ge=100, le=DELAY_MS_MAX, description="time from a check to the next one"
    )
    transaction_checks_max: int = Field(
        15, ge=1, le=CHECKS_COUNTED_MAX, description="heard checks after which an open transaction is given up"
    )
    transaction_keep_ms: int = Field(
        72 * 3_600_000, ge=1_000, le=DELAY_MS_MAX, description="age at which an open transaction is given up"
    )
    transactions_max: int = Field(
        1_000_000, ge=1, le=100_000_000, description="maximum open transactions, of 36 bytes of memory each"
    )
    export_bytes_per_s: int = Field(
        100_000_000, ge=0, description="maximum bytes per second that all exports together read; 0: no limit"
    )
    exports_max: int = Field(32, ge=1, description="maximum concurrent exports")
    subscriptions_max: int = Field(
        4_096, ge=1, description="maximum concurrent subscriptions, which also count as calls"
    )
    calls_in_flight_max: int = Field(8_192, ge=1, description="maximum concurrent calls, including long polls")
    copies: str = Field(
        "",
        description="experimental: the copies that found a shard's group, three or five, with the addresses for each "
        "other: 1=HOST:PORT,2=HOST:PORT,3=HOST:PORT; later its log has the members; with ordinal: HOST-*:PORT; empty: "
        "one copy, without a group",
    )
    copy_number: int = Field(0, ge=0, le=65_535, description="the number of this process's copy among `copies`")
    copies_join: bool = Field(
        False,
        description="for a new copy on an empty directory: take that of another one of `copies`, which name this copy "
        "too, once `duetime store members add` has added this copy",
    )
    copies_rejoin: bool = Field(
        False,
        description="if the directory is empty and the group has begun: replace the copy with this one's address, "
        "under a new number, which counts before copy_number at later starts. Only if no other process can have the "
        "address",
    )
    copies_take_bytes_per_s: int = Field(
        100 * MIB, ge=MIB, description="maximum bytes a second that a copy reads from another one's directory"
    )
    copies_group: int = Field(
        0, ge=0, le=2**63 - 1, description="the number of the group, chosen once: no other group may have it"
    )
    ordinal: int = Field(
        -1,
        ge=-1,
        description="with copies: the number of this process, from 0, among those of all shards, such as a pod's. It "
        "sets shard, copy_number, the * in copies, and adds the shard to copies_group; -1: set them yourself",
    )
    copies_count: int = Field(3, description="with ordinal: copies of each shard, 3 or 5")
    copies_election_ms: int = Field(
        1_000, ge=100, le=60_000, description="shortest time without a leader after which a copy asks to lead"
    )

    @model_validator(mode="before")
    @classmethod
    def _take_ordinal(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Replaces the settings that follow from `ordinal`: shard n // 3 for three copies of each shard."""
        try:
            ordinal, count, group = (int(values.get(name, default)) for name, default in ORDINAL_DEFAULTS.items())
        except ValueError:
            # Reported by its own field.
            return values
        if ordinal < 0:
            return values
        if given := [name for name in ("shard", "copy_number") if name in values]:
            raise ValueError(f"{' and '.join(given)} cannot be set with ordinal: it gives them")
        template = str(values.get("copies", ""))
        if count not in FOUNDING_COUNTS:
            raise ValueError(f"copies_count must be three or five, not {count}")
        if template.count("*") != 1:
            raise ValueError(f"copies {template!r} must be HOST-*:PORT with ordinal, such as duetime-store-*:9831")
        shard, place = divmod(ordinal, count)
        copies = (f"{number + 1}={template.replace('*', str(shard * count + number))}" for number in range(count))
        own = {"shard": shard, "copy_number": place + 1, "copies": ",".join(copies)}
        return {**values, **own, "copies_group": group and group + shard}

    @model_validator(mode="after")
    def _is_whole_group(self) -> Self:
        if not self.copies:
            return self
        try:
            members = self.members
        except ValueError as error:
            raise ValueError(f"copies {self.copies!r} are not 1=HOST:PORT,2=HOST:PORT,3=HOST:PORT") from error
        if len(set(members.values())) != len(members) or 0 in members:
            raise ValueError(f"copies must have numbers from 1 and an address each: {self.copies!r}")
        if self.copy_number not in members:
            raise ValueError(f"copy_number {self.copy_number} is none of copies: {sorted(members)}")
        if not self.copies_group:
            raise ValueError("copies_group must be set with copies: a random number, the same for all of them")
        if self.flush_mode != "sync":
            raise ValueError("flush_mode must be sync with copies: an acknowledgement is a flush")
        if self.copies_rejoin and self.copies_join:
            raise ValueError("copies_rejoin is for copies that found a group: copies_join cannot be set with it")
        if not self.port:
            raise ValueError("port must be set with copies: it is opened only while this copy leads")
        return self

    @property
    def members(self) -> dict[int, str]:
        """The addresses of the shard's copies by number; empty: it has one copy."""
        return parse_stores(self.copies) if self.copies else {}
