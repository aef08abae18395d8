"""Limits of the cluster: equal on every node, part of the contract, each with its name."""

BODY_BYTES_MAX = 4 * 1024 * 1024
PROPERTIES_BYTES_MAX = 32_767
TOPIC_CHARS_MAX = 127
GROUP_CHARS_MAX = 120
GROUPS_MAX = 10_000
# Limits of deliveries to one group: of all its topics, and of single ones.
GROUP_LIMITS_MAX = 100
# Messages with one sharding key leased at a time.
PER_KEY_MAX = 10_000
# Parts of a group's rate for each shard, and rates in one call that lends them.
RATE_PARTS = 1_000
RATE_SHARES_MAX = 1_000
# Characters of a lite topic, and lite topics that one client may subscribe to: as RocketMQ's proxy allows.
LITE_CHARS_MAX = 64
LITE_SUBSCRIPTIONS_MAX = 2_000
# Lite topics of a page: by default, and at most.
LITE_PAGE_COUNT = 100
LITE_PAGE_COUNT_MAX = 1_000
ID_CHARS_MAX = 255
QUEUE_COUNT_MAX = 1_024
# Topics of the cluster, and of a shard.
TOPICS_MAX_DEFAULT = 100_000
QUEUES_MAX_DEFAULT = 200_000
SEND_COUNT_MAX = 4_096
# Records of a batch stored together or not at all: a batch of the largest message fits.
BATCH_BYTES_MAX = BODY_BYTES_MAX + 64 * 1024
# Topics in one PutTopics.
TOPICS_PUT_MAX = 10_000
PULL_COUNT_DEFAULT = 32
PULL_COUNT_MAX = 1_024
# Bytes of one answer: a larger one would delay all others while it is made and written.
PULL_ANSWER_BYTES_MAX = 4 * 1024 * 1024
PULL_BYTES_DEFAULT = PULL_ANSWER_BYTES_MAX
PULL_BYTES_MAX = 16 * 1024 * 1024
# One answer of a subscription, its maximum remaining credit, and the interval at which positions past filtered messages
# are reported.
SUBSCRIPTION_COUNT_MAX = 4_096
SUBSCRIPTION_ANSWER_BYTES_MAX = 1024 * 1024
CREDIT_BYTES_MAX = 16 * 1024 * 1024
UNTOLD_MS_DEFAULT = 1_000
# Characters of a filter, its tags and its SQL each.
FILTER_CHARS_MAX = 2_048
# Words of SQL: names, values, signs, keywords and parentheses, which cost some 10 us each to parse; and comparisons,
# each costing up to a microsecond per message. IN is one comparison, BETWEEN is two.
SQL_WORDS_MAX = 512
SQL_COMPARISONS_MAX = 64
QUERY_COUNT_DEFAULT = 32
QUERY_COUNT_MAX = 64
# Pending messages: in one Cancel, in one Reschedule or Replace, and on a page of ListPending.
CANCEL_COUNT_MAX = 4_096
REPLACE_COUNT_MAX = 1_024
# The name that a caller gives to a reschedule.
REQUEST_ID_CHARS_MAX = 32
# Names of SendBack calls.
SEND_BACK_TOKEN_CHARS_MAX = 64
PENDING_COUNT_DEFAULT = 100
PENDING_COUNT_MAX = 1_000
# Schedules: an occurrence and the next one fit a batch; characters of a name, an expression and a zone; listed times;
# the shortest interval; times shown ahead.
SCHEDULE_BODY_BYTES_MAX = 256 * 1024
SCHEDULE_NAME_CHARS_MAX = 127
CRON_CHARS_MAX = 256
ZONE_CHARS_MAX = 64
SCHEDULE_TIMES_MAX = 256
SCHEDULE_EVERY_MS_MIN = 1_000
SCHEDULE_NEXT_MAX = 100
# Schedules in one PutSchedules, and its bytes.
SCHEDULES_PUT_MAX = 1_024
SCHEDULES_PUT_BYTES_MAX = 4 * 1024 * 1024
# An occurrence later than this is missed.
SCHEDULE_LATE_MS_MAX = 60_000
# Bytes of properties that an occurrence keeps free: for another planned time, or the reason of a pause.
SCHEDULE_SPARE_BYTES = 1_024
# Events on a page of the audit log.
AUDIT_COUNT_DEFAULT = 100
AUDIT_COUNT_MAX = 1_000
# Checks of open transactions per call: groups, checks taken, and checks reported.
CHECK_GROUPS_MAX = 1_024
CHECKS_TAKEN_MAX = 1_024
CHECKS_REPORTED_MAX = 4_096
PULL_DUE_COUNT_MAX = 4_096
WAIT_MS_MAX = 30_000
# Time before their due time in which entries may be given out, and restored records accepted and held.
AHEAD_MS_MAX = 100
# One gRPC message, either way: a Send of 32 MiB and its envelope fit.
REQUEST_BYTES_MAX = 32 * 1024 * 1024
GRPC_MESSAGE_BYTES_MAX = REQUEST_BYTES_MAX + 1024 * 1024
# Bytes that DueTime itself adds to a message's properties: __CRC32#.
CHECKSUM_BYTES = 21
# Bytes added to a delayed message's on its way: DELAY, REAL_TOPIC, REAL_QID, DT_ENTRY, __CRC32#.
DEFERRAL_BYTES_MAX = 320
# Bytes added to one for any time: its requested delay, DT_REQUEST, DT_UPSERT and DT_ENTRY of the one it replaces,
# TIMER_OUT_MS, REAL_TOPIC, REAL_QID, DT_ENTRY, __CRC32#.
TIMER_BYTES_MAX = 450
# Bytes added to a half message, from its prepare until the committed message leaves its lane: TRAN_MSG, PGROUP,
# __transactionId__, CHECK_IMMUNITY_TIME_IN_SECONDS, TRANSACTION_CHECK_TIMES, DT_HALF, and the bytes of any delay.
HALF_BYTES_MAX = 1_000
# Transactions: ends in one call, transactions on a page, groups of producers, maximum time without checks (as long as
# stores keep them), and characters of an id.
ENDS_COUNT_MAX = 4_096
TRANSACTIONS_PAGE_DEFAULT = 100
TRANSACTIONS_PAGE_MAX = 1_000
PRODUCER_GROUPS_MAX = 10_000
CHECK_IMMUNITY_S_MAX = 72 * 3_600
TRANSACTION_ID_CHARS_MAX = 400
# Retries counted by SendBack.
ATTEMPTS_DEFAULT = 16
ATTEMPTS_MAX = 1_000
# Deliveries counted by retry policies, including the first one.
DELIVERIES_DEFAULT = ATTEMPTS_DEFAULT + 1
BACKOFF_MS_MAX = 12 * 3_600_000
BACKOFF_FACTOR_DEFAULT = 2.0
BACKOFF_FACTOR_MAX = 10.0
BACKOFF_JITTER_DEFAULT = 0.2
BACKOFF_INTERVALS_MAX = 64
# Leases: made by one Receive, and named in one call.
RECEIVE_COUNT_DEFAULT = PULL_COUNT_DEFAULT
RECEIVE_COUNT_MAX = PULL_COUNT_MAX
RECEIPTS_MAX = 4_096
NACKS_MAX = 1_024
# Takes and acks of a ReceiveStream in progress at once.
TAKES_MAX = 64
ACKS_UNDER_WAY_MAX = 64
INVISIBLE_MS_DEFAULT = 60_000
INVISIBLE_MS_MIN = 10
INVISIBLE_MS_MAX = 12 * 3_600_000
MEMBER_CHARS_MAX = 255
# Maximum time ahead counted by ListLanes: 366 days.
LANES_AHEAD_MS_MAX = 366 * 86_400_000
# Sizes of an answered error, so that a status stays below 4 KiB of headers (duetime_core.limits.bounds): its text in
# gRPC's percent-encoding, the violations in its details, one violation's field and description, and the reason.
ERROR_TEXT_BYTES_MAX = 1_024
ERROR_VIOLATIONS_BYTES_MAX = 1_024
VIOLATION_FIELD_BYTES_MAX = 128
VIOLATION_BYTES_MAX = 640
REASON_CHARS_MAX = 64
ERROR_METADATA_BYTES_MAX = 512
# Webhooks: requests of one worker at once, the time of a request, the URL, and how long a replaced secret signs too.
WEBHOOK_CONCURRENCY_MAX = 256
WEBHOOK_TIMEOUT_MS_MIN = 1_000
WEBHOOK_TIMEOUT_MS_MAX = 60_000
WEBHOOK_URL_CHARS_MAX = 2_048
WEBHOOK_OLD_SECRET_MS_MAX = 30 * 86_400_000
