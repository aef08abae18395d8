"""Limits of JSON over HTTP, beside those of the contract (duetime_format.limits)."""

# Of one list of messages, receipts or failures.
HTTP_BATCH_COUNT_MAX = 1_024
# Waiting calls of `receive` in one console: each holds a connection.
HTTP_RECEIVES_MAX = 1_024
# Within a request: objects and lists in each other.
HTTP_DEPTH_MAX = 64
# Within a request: values of all objects and lists together.
HTTP_VALUES_MAX = 65_536
# How long a call may take, beside what it waits.
HTTP_CALL_S_MAX = 30.0
# Of what is wrong with a request, in one answer.
HTTP_VIOLATIONS_MAX = 32
# What a caller is told to wait where the cluster does not say: Retry-After.
RETRY_AFTER_S_DEFAULT = 1.0
