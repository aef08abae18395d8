# The packer's view of a request (_packing.pyx): wire keys, and its notes on each message and part.
from libc.stdint cimport int32_t, int64_t, uint8_t

from duetime_gateway.packing._wire cimport Text

cdef enum:
    # Wire keys: field number << 3 | wire type.
    TOPIC = 0x0A
    BODY = 0x12
    PROPERTY = 0x1A
    TAGS = 0x22
    KEY = 0x2A
    SHARDING_KEY = 0x32
    QUEUE = 0x38
    DELAY_LEVEL = 0x40
    DELAY_MS = 0x48
    DELIVER_AT_MS = 0x50
    ID = 0x5A
    BORN_AT_MS = 0x60
    FLAG = 0x68
    MESSAGES = 0x0A
    # Fields of a SendBatchRequest, beside MESSAGES.
    BATCH_TOPIC = 0x12
    BATCH_QUEUE = 0x18
    BATCH_SHARDING_KEY = 0x22
    # Fields of a PrepareRequest.
    HALF_GROUP = 0x0A
    HALF_MESSAGES = 0x12
    HALF_IMMUNITY = 0x18
    # Most properties of one message that are compared with each other; requests with more are left to the encoder.
    NAMES_MAX = 32
    # Size of a generated id, and digits of the counter at its end.
    ID_SIZE = 32
    COUNTER_DIGITS = 12
    # Last digits of such an id, without influence on the shard.
    BLOCK_DIGITS = 2
    # Bits of the fields that set the due time; at most one may be set.
    DUE_FIELDS = (1 << 8) | (1 << 9) | (1 << 10)
    # Most bytes of a result beside its id: six numbers of ten bytes with their keys, and three lengths. A half message
    # has, beside its id twice, five numbers, three of them in decimal digits.
    RESULT_SIZE_MAX = 128
    ID_SIZE_MAX = 255
    # Size of the table that finds equal ids, and the longest probe: only ids chosen to collide need more.
    ID_SLOTS_MAX = 8192
    PROBES_MAX = 64


cdef enum Due:
    BY_LEVEL, AFTER, AT


cdef struct Message_:
    # Position in the request; keys and properties are read again when written.
    const uint8_t *start
    const uint8_t *end
    Text topic
    Text body
    Text tags
    Text sharding_key
    Text id
    int64_t born_at_ms
    int32_t flag
    int32_t queue
    int32_t level
    # Due time of its own: its kind, the requested value, and the lane; the lane of all others is 0.
    Due due
    int64_t asked_ms
    int32_t lane
    # Bytes of all keys with a blank between two; of all properties with their two separators each.
    Py_ssize_t keys_size
    Py_ssize_t properties_size
    Py_ssize_t encoded_size
    Py_ssize_t record_size
    int group
    int way
    bint has_queue


cdef struct Group:
    int32_t shard
    Py_ssize_t size
    Py_ssize_t count
    # Index of the next record, when results are written.
    Py_ssize_t next


cdef inline Py_ssize_t block_size(Text message_id) noexcept nogil:
    # Like route._block_of: length of the part of an id that selects the shard.
    return message_id.size - BLOCK_DIGITS if message_id.size == ID_SIZE else message_id.size
