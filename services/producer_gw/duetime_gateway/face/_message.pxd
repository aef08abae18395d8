# What the packer (_packing.pyx) knows of a request: wire keys, and what it notes of each message and part.
from libc.stdint cimport int32_t, int64_t, uint8_t

from duetime_gateway.face._wire cimport Text

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
    RETRY = 0x10
    # Of a SendBatchRequest, beside MESSAGES.
    BATCH_TOPIC = 0x12
    BATCH_QUEUE = 0x18
    BATCH_SHARDING_KEY = 0x22
    # Of a PrepareRequest.
    HALF_GROUP = 0x0A
    HALF_MESSAGES = 0x12
    HALF_IMMUNITY = 0x18
    # Properties of one message that are compared with each other; requests with more are left to the encoder.
    NAMES_MAX = 32
    # Where a generated id's counter lies in it.
    ID_SIZE = 32
    COUNTER_DIGITS = 12
    # The last digits of such an id, which do not choose a shard.
    BLOCK_DIGITS = 2
    # Bits of the fields of which one says when the message is due.
    DUE_FIELDS = (1 << 8) | (1 << 9) | (1 << 10)
    # The most that a result takes beside its id: six numbers of ten bytes with their keys, and three lengths; that of a
    # half message, beside its id twice: five numbers, of which three are in decimal digits.
    RESULT_SIZE_MAX = 128
    ID_SIZE_MAX = 255
    # Size of the table that finds equal ids, and how far from its slot an id may stand in it: only ids chosen to
    # collide stand further.
    ID_SLOTS_MAX = 8192
    PROBES_MAX = 64


cdef enum Due:
    BY_LEVEL, AFTER, AT


cdef struct Message_:
    # Where it lies in the request; keys and properties are read from there again when they are written.
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
    # Of one with a due time of its own: what was asked for, and the lane, which is 0 for all others.
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
    # Of its records, when results are written.
    Py_ssize_t next


cdef inline Py_ssize_t block_size(Text message_id) noexcept nogil:
    # As route._block_of: how much of an id chooses the shard.
    return message_id.size - BLOCK_DIGITS if message_id.size == ID_SIZE else message_id.size
