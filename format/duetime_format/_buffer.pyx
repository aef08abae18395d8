"""Access to an object's bytes. Only compiled twins use it, so it has no Python beside it."""

from cpython.buffer cimport PyBUF_C_CONTIGUOUS, PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint8_t


cdef class Buffer:
    """The bytes of an object, for as long as this one lives."""

    def __cinit__(self, held):
        PyObject_GetBuffer(held, &self.view, PyBUF_SIMPLE)
        self.at = <const uint8_t *>self.view.buf

    def __dealloc__(self):
        PyBuffer_Release(&self.view)


cdef class IntBuffer:
    """The i64 of an array, row by row, for as long as this one lives."""

    def __cinit__(self, array not None, bint writable=False):
        PyObject_GetBuffer(array, &self.view, PyBUF_C_CONTIGUOUS | (PyBUF_WRITABLE if writable else 0))
        if self.view.itemsize != 8:
            raise ValueError(f"items of {self.view.itemsize} bytes")
        self.at = <int64_t *>self.view.buf
        self.count = self.view.len // 8

    def __dealloc__(self):
        PyBuffer_Release(&self.view)
