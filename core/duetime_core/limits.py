"""Limits of the cluster: equal on every node, part of the contract, each with its name."""

BODY_BYTES_MAX = 4 * 1024 * 1024
PROPERTIES_BYTES_MAX = 32_767
TOPIC_CHARS_MAX = 127
GROUP_CHARS_MAX = 120
ID_CHARS_MAX = 255
QUEUE_COUNT_MAX = 1_024
SEND_COUNT_MAX = 4_096
PULL_COUNT_DEFAULT = 32
PULL_COUNT_MAX = 1_024
PULL_BYTES_DEFAULT = 4 * 1024 * 1024
PULL_BYTES_MAX = 16 * 1024 * 1024
QUERY_COUNT_DEFAULT = 32
QUERY_COUNT_MAX = 64
PULL_DUE_COUNT_MAX = 4_096
WAIT_MS_MAX = 30_000
# How long before their due time entries are given out, and restored records are taken and held.
AHEAD_MS_MAX = 100
# One gRPC message, either way: a Send of 32 MiB and its envelope fit.
REQUEST_BYTES_MAX = 32 * 1024 * 1024
GRPC_MESSAGE_BYTES_MAX = REQUEST_BYTES_MAX + 1024 * 1024
# What DueTime itself adds to a message's properties: __CRC32#.
CHECKSUM_BYTES = 21
# And to a delayed message's on its way: DELAY, REAL_TOPIC, REAL_QID, DT_ENTRY, __CRC32#.
DEFERRAL_BYTES_MAX = 320
ATTEMPTS_DEFAULT = 16
ATTEMPTS_MAX = 1_000
