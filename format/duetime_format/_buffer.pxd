# Access to an object's bytes, for all compiled twins.
from libc.stdint cimport int64_t, uint8_t

cdef class Buffer:
    cdef Py_buffer view
    cdef const uint8_t *at


cdef class IntBuffer:
    cdef Py_buffer view
    cdef int64_t *at
    cdef int64_t count
