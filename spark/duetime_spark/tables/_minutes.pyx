# cython: language_level=3, boundscheck=False, wraparound=False
"""The compiled twin of pending_minutes.accumulate: one pass over rows; each changes one line of the sums."""

from libc.stdint cimport int64_t


def accumulate(
    const int64_t[::1] cells, const int64_t[::1] sizes, const int64_t[::1] dues, int64_t moment_ms, int64_t[:, ::1] sums
):
    cdef Py_ssize_t row, count = cells.shape[0]
    cdef int64_t due
    cdef int64_t *into
    if sizes.shape[0] != count or dues.shape[0] != count or sums.shape[1] != 6:
        raise ValueError("the columns have not one length")
    with nogil:
        for row in range(count):
            if not 0 <= cells[row] < sums.shape[0]:
                with gil:
                    raise ValueError("a cell is outside of the sums")
            into = &sums[cells[row], 0]
            due = dues[row]
            into[0] += 1
            into[1] += sizes[row]
            into[2] = min(into[2], due)
            if due <= moment_ms:
                into[3] += 1
                into[4] += sizes[row]
            else:
                into[5] = min(into[5], due)
