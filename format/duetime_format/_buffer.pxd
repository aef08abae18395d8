# Read access to an object's bytes, for all compiled twins.
from libc.stdint cimport uint8_t

cdef class Buffer:
    cdef Py_buffer view
    cdef const uint8_t *at
