"""What several processes share: topics and routes, groups, members, lane leases, the published offset table,
and what analysis found."""

from duetime_core.metadata.database import Database
from duetime_core.metadata.groups import Groups
from duetime_core.metadata.models import (
    BacklogReportModel,
    Base,
    DelayOffsetModel,
    GroupModel,
    LaneLeaseModel,
    SchedulerModel,
    TopicModel,
    TopicQueueModel,
)
from duetime_core.metadata.reports import Report, Reports, ShardMoment
from duetime_core.metadata.schema import current_revision, head_revision, upgrade

__all__ = [
    "BacklogReportModel",
    "Base",
    "Database",
    "DelayOffsetModel",
    "GroupModel",
    "Groups",
    "LaneLeaseModel",
    "Report",
    "Reports",
    "SchedulerModel",
    "ShardMoment",
    "TopicModel",
    "TopicQueueModel",
    "current_revision",
    "head_revision",
    "upgrade",
]
