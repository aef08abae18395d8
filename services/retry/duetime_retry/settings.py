"""Settings of the retry process."""

from duetime_core.node.settings import StoreClientSettings
from pydantic import Field
from pydantic_settings import SettingsConfigDict


class RetrySettings(StoreClientSettings):
    """See README.md."""

    model_config = SettingsConfigDict(env_prefix="DUETIME_RETRY_")

    calls_in_flight_max: int = Field(1_024, ge=1, description="maximum concurrent calls")
