# Results of single messages in protobuf's wire format, as written by the packer.

from libc.stdint cimport int32_t, int64_t, uint8_t

from duetime_format._bytes cimport put_decimal, put_varint
from duetime_gateway.packing._message cimport ID_SIZE_MAX, Message_, RESULT_SIZE_MAX
from duetime_gateway.packing._wire cimport _put, _put_field


cdef inline uint8_t *put_send_result(
    uint8_t *end, Message_ *m, int32_t shard, int64_t offset, int64_t due_at_ms
) noexcept nogil:
    # The fields of a SendResult.
    end[0] = 0x0A
    end = _put(put_varint(end + 1, m.id.size), m.id.at, m.id.size)
    end = _put_field(end, 0x10, shard)
    end = _put_field(end, 0x18, m.queue)
    end = _put_field(end, 0x20, offset)
    if m.level or m.due:
        end = _put_field(end, 0x28, m.level)
        end = _put_field(end, 0x30, due_at_ms)
        end = _put_field(end, 0x48, m.lane or m.level)
    return end


cdef inline uint8_t *put_result(
    uint8_t *to, Message_ *m, int32_t shard, int64_t offset, int64_t due_at_ms
) noexcept nogil:
    # One of `results`.
    cdef uint8_t result[ID_SIZE_MAX + RESULT_SIZE_MAX]
    cdef uint8_t *end = put_send_result(result, m, shard, offset, due_at_ms)
    to[0] = 0x0A
    return _put(put_varint(to + 1, end - result), result, end - result)


cdef inline uint8_t *put_range(
    uint8_t *to, int count, Message_ *m, int32_t shard, int64_t offset, int64_t due_at_ms
) noexcept nogil:
    # One of `ranges`: `count` messages, starting with `m`.
    cdef uint8_t result[ID_SIZE_MAX + RESULT_SIZE_MAX]
    cdef uint8_t head[8]
    cdef Py_ssize_t size = put_send_result(result, m, shard, offset, due_at_ms) - result
    cdef Py_ssize_t head_size
    head[0] = 0x08
    cdef uint8_t *end = put_varint(head + 1, count)
    end[0] = 0x12
    end = put_varint(end + 1, size)
    head_size = end - head
    to[0] = 0x12
    to = put_varint(to + 1, head_size + size)
    return _put(_put(to, head, head_size), result, size)


cdef inline uint8_t *put_half(
    uint8_t *to, Message_ *m, int32_t shard, int64_t offset, int64_t position, int64_t check_at_ms
) noexcept nogil:
    # A PrepareResult; names.text_of defines the transaction's id.
    cdef uint8_t name[ID_SIZE_MAX + RESULT_SIZE_MAX]
    cdef uint8_t result[2 * ID_SIZE_MAX + RESULT_SIZE_MAX]
    cdef uint8_t *end = put_decimal(name, shard)
    end = put_decimal(_put(end, b".", 1), offset)
    end = put_decimal(_put(end, b".", 1), position)
    end = _put(_put(end, b".", 1), m.id.at, m.id.size)
    cdef Py_ssize_t name_size = end - name
    end = result
    end[0] = 0x0A
    end = _put(put_varint(end + 1, m.id.size), m.id.at, m.id.size)
    end[0] = 0x12
    end = _put(put_varint(end + 1, name_size), name, name_size)
    end = _put_field(end, 0x18, shard)
    end = _put_field(end, 0x20, check_at_ms)
    to[0] = 0x0A
    return _put(put_varint(to + 1, end - result), result, end - result)
