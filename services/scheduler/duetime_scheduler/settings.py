"""Settings of the scheduler process."""

from typing import Self

from duetime_core.node.settings import StoreClientSettings
from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict


class SchedulerSettings(StoreClientSettings):
    """One scheduler's settings."""

    model_config = SettingsConfigDict(env_prefix="DUETIME_SCHEDULER_")

    member_id: str = Field("", max_length=255, description="this scheduler's unique name; empty: host-pid-random")
    lease_ms: int = Field(3_000, ge=300, le=600_000, description="silence after which another scheduler counts as dead")
    tick_ms: int = Field(500, ge=50, le=60_000, description="period of heartbeats and of assigning the lanes")
    unasked_ms: int = Field(
        1_000,
        ge=100,
        le=600_000,
        description="idle time before an unowned due lane is served without a lease",
    )
    publish_ms: int = Field(10_000, ge=100, le=3_600_000, description="period of publishing the delay offset table")

    stuck_ms: int = Field(
        60_000,
        ge=1_000,
        le=3_600_000,
        description="time without progress after which an overdue lane makes liveness NOT_SERVING",
    )

    @model_validator(mode="after")
    def _lease_outlives_ticks(self) -> Self:
        if self.lease_ms < 3 * self.tick_ms:
            raise ValueError(f"lease_ms {self.lease_ms} is below three ticks of {self.tick_ms} ms")
        return self
