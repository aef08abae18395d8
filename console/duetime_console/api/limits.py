"""Limits of JSON over HTTP, in addition to those of the contract (duetime_format.limits)."""

# Entries in one list of messages, receipts or failures.
HTTP_BATCH_COUNT_MAX = 1_024
# Waiting calls of `receive` in one console: each holds a connection.
HTTP_RECEIVES_MAX = 1_024
# Nesting of objects and lists in a request.
HTTP_DEPTH_MAX = 64
# Values in a request, including those in objects and lists.
HTTP_VALUES_MAX = 65_536
# Duration of a call, in addition to its wait.
HTTP_CALL_S_MAX = 30.0
# Violations in one answer.
HTTP_VIOLATIONS_MAX = 32
# Retry-After if the cluster sets none.
RETRY_AFTER_S_DEFAULT = 1.0
