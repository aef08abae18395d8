"""Read access to an object's bytes. Only compiled twins use it, so it has no Python beside it."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint8_t


cdef class Buffer:
    """The bytes of an object, for as long as this one lives."""

    def __cinit__(self, held):
        PyObject_GetBuffer(held, &self.view, PyBUF_SIMPLE)
        self.at = <const uint8_t *>self.view.buf

    def __dealloc__(self):
        PyBuffer_Release(&self.view)
