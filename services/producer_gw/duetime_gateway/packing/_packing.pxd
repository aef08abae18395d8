# The packer's classes, shared with packers of other requests.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from duetime_gateway.packing._message cimport Group, Message_
from duetime_gateway.packing._wire cimport Text


cdef class Way:
    cdef object route
    cdef bytes topic_field, shards
    cdef list turns
    cdef tuple holders
    cdef dict store_hosts, timers
    cdef int queue_count
    cdef int32_t ready_shard, ready_timers
    # The topic's limit; 0: none of its own.
    cdef int64_t max_delay_ms

    cdef int32_t choose(self, Text sharding_key, Text message_id)
    cdef int32_t shard(self, int32_t queue) noexcept


cdef class PlainRequest:
    cdef readonly int count
    cdef readonly bint is_half
    cdef bytes _data, _made_ids, _born_host
    cdef int64_t _arrived_at_ms
    cdef Message_ *_messages
    cdef Group *_groups
    cdef int _group_count
    cdef list _hosts, _ways
    # Whether it is a batch, and whether the batch sets a queue for all messages.
    cdef bint _is_batch, _has_queue
    # Fields other than messages seen so far in this walk.
    cdef uint32_t _fields_seen
    cdef Text _topic, _sharding_key
    cdef int32_t _queue
    # Group and immunity of half messages, and their shared properties.
    cdef Text _group
    cdef int32_t _immunity_s
    cdef bytes _half
    cdef uint8_t _messages_key

    cdef bint read(
        self, bytes data, dict routes, object levels, Py_ssize_t body_bytes_min, object half_of
    ) except -1
    cdef int make_room(self, Py_ssize_t count) except -1
    cdef bint read_field(self, const uint8_t **at, const uint8_t *end) noexcept
    cdef bint find_half(self, object half_of) except -1
    cdef bint join_batch(self, Message_ *m) except -1
    cdef bint are_distinct(self) noexcept
    cdef Py_ssize_t _count_messages(self, const uint8_t *at, const uint8_t *end) noexcept
    cdef bint read_message(
        self, Message_ *m, Text message, dict levels, int32_t highest, Py_ssize_t body_bytes_min
    ) except -1
    cdef bint read_delay(self, Message_ *m, uint64_t delay_ms, dict levels) except -1
    cdef bint may_wait(self, Message_ *m, object levels) except -1
    cdef bint read_property(self, Message_ *m, Text entry, Text *names, int name_count) except -1
    cdef bint find_way(self, int index, dict routes) except -1
    cdef bint settle(self, object ids, Py_ssize_t host_size) except -1
    cdef bint choose_queue(self, int index, Way way) except -1
    cdef int make_ids(self, object ids) except -1
    cdef bint join_group(self, Message_ *m, Way way) except -1
    cdef uint8_t *write_record(
        self, uint8_t *to, Message_ *m, bytes born_host, bytes store_host, int64_t arrived_at_ms
    )
    cdef uint8_t *write_properties(self, uint8_t *to, Message_ *m) noexcept
    cdef uint8_t *write_all(self, uint8_t *to, Message_ *m, uint8_t wanted) noexcept
    cdef int check_answers(self, list answers) except -1
