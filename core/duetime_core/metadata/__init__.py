"""State shared by several processes: topics and routes, groups, members, lane leases, the published offset table,
analysis reports, and the audit log."""

from duetime_core.metadata.audit import AuditFilter, AuditPage, AuditPlace, AuditRow, AuditTable
from duetime_core.metadata.database import ANY_FAULT, OUTAGES, Database
from duetime_core.metadata.groups import GroupTable
from duetime_core.metadata.models import (
    AuditModel,
    BacklogReportModel,
    DelayOffsetModel,
    GatewayModel,
    GroupModel,
    LaneLeaseModel,
    MetadataBase,
    ProducerGroupModel,
    QuotaModel,
    SchedulerModel,
    TopicModel,
    TopicQueueModel,
    table_of,
)
from duetime_core.metadata.reports import JobReport, JobReportTable, ShardMoment
from duetime_core.metadata.schema import current_revision, head_revision, upgrade
from duetime_core.metadata.topics import (
    DatabaseTopic,
    OwnerUsage,
    find_topics,
    generation_of,
    holdings,
    make_topics,
    raise_generation,
)
from duetime_core.metadata.trail import Trail

__all__ = [
    "ANY_FAULT",
    "OUTAGES",
    "AuditFilter",
    "AuditModel",
    "AuditPage",
    "AuditPlace",
    "AuditRow",
    "AuditTable",
    "BacklogReportModel",
    "MetadataBase",
    "Database",
    "DelayOffsetModel",
    "GatewayModel",
    "GroupModel",
    "GroupTable",
    "OwnerUsage",
    "LaneLeaseModel",
    "ProducerGroupModel",
    "QuotaModel",
    "JobReport",
    "JobReportTable",
    "SchedulerModel",
    "ShardMoment",
    "DatabaseTopic",
    "TopicModel",
    "TopicQueueModel",
    "Trail",
    "current_revision",
    "find_topics",
    "generation_of",
    "holdings",
    "head_revision",
    "make_topics",
    "raise_generation",
    "table_of",
    "upgrade",
]
