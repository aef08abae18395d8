"""Settings of the store process."""

from pathlib import Path
from typing import Literal

from duetime_core.settings import NodeSettings, transaction_timeout_of_all
from duetime_format.lanes import TIMER_LANES_MAX
from duetime_format.levels import DELAY_MS_MAX
from duetime_format.limits import QUEUES_MAX_DEFAULT, TOPICS_MAX_DEFAULT
from pydantic import Field
from pydantic_settings import SettingsConfigDict

MIB = 1024 * 1024
# Of a transaction, as the table of open ones counts.
CHECKS_COUNTED_MAX = 4_095


class StoreSettings(NodeSettings):
    """One shard's settings."""

    model_config = SettingsConfigDict(env_prefix="DUETIME_STORE_")

    data_dir: Path = Field(description="the shard's directory, RocketMQ's storePathRootDir")
    lock_wait_ms: int = Field(
        10_000, ge=0, description="how long a start waits for another process that holds data_dir"
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
    advertise_host: str = Field("127.0.0.1", description="the address that records carry as store host")
    advertise_port: int = Field(
        0,
        ge=0,
        le=65_535,
        description="the port that records carry as store host; 0: the one that the shard advertised before, at first "
        "the one that it listens on",
    )
    accept_delay_levels: bool = Field(
        False, description="start with a level table other than the data's; pending messages keep their due times"
    )
    accept_missing_segments: bool = Field(
        False,
        description="start although files of the commit log are missing: their content is lost, the rest is served",
    )
    timer_lanes: int = Field(
        1,
        ge=1,
        le=TIMER_LANES_MAX,
        description="lanes that new messages for any time are shared out to; those that hold messages stay",
    )
    checkpoint_ms: int = Field(10_000, ge=100, le=600_000, description="longest time between checkpoints")
    checkpoint_bytes: int = Field(64 * MIB, ge=MIB, description="most log bytes between checkpoints")
    recent_ids_count: int = Field(
        1_000_000,
        ge=0,
        le=10_000_000,
        description="most message ids remembered, to answer a repeated send; 24 bytes of memory each; 0: none",
    )
    recent_ids_ms: int = Field(
        600_000, ge=1_000, le=86_400_000, description="how long a message id is remembered, if there are not too many"
    )
    index: bool = Field(True, description="build index files, by which messages are found by key and id")
    index_slots: int = Field(
        5_000_000, ge=1_000, le=100_000_000, description="hash slots of an index file; existing files keep theirs"
    )
    index_entries: int = Field(
        20_000_000, ge=20_000, le=100_000_000, description="entries of an index file; existing files keep theirs"
    )
    waiting_bytes_max: int = Field(
        64 * MIB, ge=MIB, description="most bytes that wait for a flush; as many are held until due"
    )
    reserve_bytes: int = Field(
        64 * MIB, ge=0, description="room kept on the disk, in which restores go on when it is full"
    )
    disk_used_max: float = Field(
        0.90,
        gt=0,
        le=1,
        description="with more of the disk in use (as df counts), sends are refused with DISK_FULL; 1: never for this",
    )
    flush_stall_ms: int = Field(
        5_000, ge=100, description="a write or flush that takes longer: sends are refused with FLUSH_STALLED"
    )
    retention_ms: int = Field(
        72 * 3_600_000, ge=1_000, description="age at which a full log file is deleted; pending messages are kept"
    )
    retention_bytes: int = Field(
        0, ge=0, description="most bytes of log: beyond, the oldest file goes at any age, read or not; 0: no budget"
    )
    retention_hours: frozenset[int] = Field(
        frozenset(), description="UTC hours in which files are deleted by age, such as [4]; none: at any hour"
    )
    retention_check_ms: int = Field(10_000, ge=10, description="how often log files are checked for retention")
    disk_clean: float = Field(
        0.75,
        gt=0,
        le=1,
        description="disk use above which files past their age are deleted outside retention_hours too, once all "
        "groups have read them",
    )
    disk_force: float = Field(
        1,
        gt=0,
        le=1,
        description="disk use above which the oldest file is deleted at any age, read or not: a broker has 0.85; "
        "1: never",
    )
    leases_max: int = Field(
        1_000_000,
        ge=1,
        description="most messages of all groups that are leased or wait to come back, half of them of one group; "
        "each takes 110 bytes of memory where a Receive leases 32, 640 where it leases one",
    )
    queue_files_max: int = Field(
        0,
        ge=0,
        description="most files of queues that are open at a time; 0: two fifths of the descriptors that the process "
        "may have, 4,096 at most",
    )
    topics_max: int = Field(
        TOPICS_MAX_DEFAULT, ge=100, description="most topics of the shard; past it new ones are refused"
    )
    queues_max: int = Field(
        QUEUES_MAX_DEFAULT,
        ge=100,
        description="most queues of all topics; past it new ones are refused. The retries and dead letters of groups "
        "have a tenth more of both",
    )
    groups_max: int = Field(10_000, ge=1, description="most groups that receive")
    group_queues_max: int = Field(100_000, ge=1, description="most places of groups in queues, all groups together")
    transaction_timeout_ms: int = Field(  # type: ignore[assignment] # the text is read as all defaults are
        default_factory=transaction_timeout_of_all,
        ge=1,
        le=DELAY_MS_MAX,
        description="how long after its prepare the producer of a transaction that has not ended is asked first; "
        "DUETIME_TRANSACTION_TIMEOUT_MS sets it for all stores",
    )
    transaction_check_interval_ms: int = Field(
        30_000, ge=100, le=DELAY_MS_MAX, description="how long after a check the next one is due"
    )
    transaction_checks_max: int = Field(
        15, ge=1, le=CHECKS_COUNTED_MAX, description="checks that producers have heard, after which it is given up"
    )
    transaction_keep_ms: int = Field(
        72 * 3_600_000, ge=1_000, le=DELAY_MS_MAX, description="age at which an open transaction is given up"
    )
    transactions_max: int = Field(
        1_000_000, ge=1, le=100_000_000, description="most open transactions, of 36 bytes of memory each"
    )
    export_bytes_per_s: int = Field(
        100_000_000, ge=0, description="most bytes a second that all exports together read; 0: no limit"
    )
    exports_max: int = Field(32, ge=1, description="most exports at a time")
    subscriptions_max: int = Field(4_096, ge=1, description="most subscriptions at a time, which are calls in work too")
    calls_in_flight_max: int = Field(8_192, ge=1, description="most calls in work, long polls included")
