"""What several processes share: topics and routes, groups, members, lane leases, the published offset table."""

from duetime_core.metadata.database import Database
from duetime_core.metadata.groups import Groups
from duetime_core.metadata.models import (
    Base,
    DelayOffsetModel,
    GroupModel,
    LaneLeaseModel,
    SchedulerModel,
    TopicModel,
    TopicQueueModel,
)
from duetime_core.metadata.schema import current_revision, head_revision, upgrade

__all__ = [
    "Base",
    "Database",
    "DelayOffsetModel",
    "GroupModel",
    "Groups",
    "LaneLeaseModel",
    "SchedulerModel",
    "TopicModel",
    "TopicQueueModel",
    "current_revision",
    "head_revision",
    "upgrade",
]
