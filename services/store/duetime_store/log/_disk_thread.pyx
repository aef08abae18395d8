# cython: language_level=3, boundscheck=False, wraparound=False
"""A thread that appends to files and flushes them without the GIL; see disk_thread.DiskThread.

    put ──▶ queue ──▶ thread: write, flush, or a call with the GIL ──▶ done list, descriptor readable ──▶ take

A job is owned by one of the three at a time: whoever has it may change it, and the lock passes it on.
"""

import os

from cpython.exc cimport PyErr_NoMemory
from cpython.ref cimport Py_INCREF, Py_XDECREF, PyObject
from libc.errno cimport EINTR, EIO, errno
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free

from duetime_format._buffer cimport Buffer

cdef extern from "<pthread.h>" nogil:
    ctypedef unsigned long pthread_t
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    int pthread_create(pthread_t *thread, void *attributes, void *(*start)(void *) noexcept nogil, void *argument)
    int pthread_join(pthread_t thread, void **result)
    int pthread_mutex_init(pthread_mutex_t *mutex, void *attributes)
    int pthread_mutex_lock(pthread_mutex_t *mutex)
    int pthread_mutex_unlock(pthread_mutex_t *mutex)
    int pthread_mutex_destroy(pthread_mutex_t *mutex)
    int pthread_cond_init(pthread_cond_t *condition, void *attributes)
    int pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex)
    int pthread_cond_signal(pthread_cond_t *condition)
    int pthread_cond_destroy(pthread_cond_t *condition)

cdef extern from "<signal.h>" nogil:
    ctypedef struct sigset_t:
        pass
    int SIG_SETMASK
    int sigfillset(sigset_t *signals)
    int pthread_sigmask(int how, const sigset_t *new, sigset_t *old)

cdef extern from "<sys/uio.h>" nogil:
    cdef struct iovec:
        void *iov_base
        size_t iov_len
    ssize_t pwritev(int fd, const iovec *parts, int count, int64_t at)

cdef extern from "<unistd.h>" nogil:
    int fdatasync(int fd)
    ssize_t read(int fd, void *to, size_t size)
    ssize_t write(int fd, const void *data, size_t size)

cdef extern from "<sys/eventfd.h>" nogil:
    int eventfd(unsigned int count, int flags)
    int EFD_CLOEXEC
    int EFD_NONBLOCK

# Maximum parts of one pwritev (IOV_MAX).
cdef enum:
    PARTS_MAX = 1024

# Failed steps of a job.
cdef enum:
    NONE, WRITE, FLUSH

cdef struct Job:
    Job *next
    # Owned: the caller's ticket; a callable, or the buffers to be written.
    PyObject *ticket
    PyObject *work
    # Owned: the callable's result, or its exception.
    PyObject *result
    bint is_call
    int file
    int64_t at
    iovec *parts
    int part_count
    int *flushed
    int flushed_count
    int failed
    int error

cdef struct Line:
    pthread_mutex_t lock
    pthread_cond_t filled
    Job *first
    Job *last
    Job *done
    Job *done_last
    bint stops
    int wake


cdef int _append(Job *job) noexcept nogil:
    """Writes all parts, then flushes the files. Returns the failed step."""
    cdef ssize_t written
    cdef int first = 0, count, number
    while first < job.part_count:
        count = job.part_count - first
        written = pwritev(job.file, job.parts + first, count if count < PARTS_MAX else PARTS_MAX, job.at)
        if written < 0:
            if errno == EINTR:
                continue
            job.error = errno
            return WRITE
        if written == 0:
            job.error = EIO
            return WRITE
        job.at += written
        while first < job.part_count and written >= <ssize_t>job.parts[first].iov_len:
            written -= <ssize_t>job.parts[first].iov_len
            first += 1
        if written:
            job.parts[first].iov_base = <char *>job.parts[first].iov_base + written
            job.parts[first].iov_len -= written
    for number in range(job.flushed_count):
        if fdatasync(job.flushed[number]):
            job.error = errno
            return FLUSH
    return NONE


cdef void _call(Job *job) noexcept with gil:
    try:
        result = True, (<object>job.work)()
    except BaseException as error:
        result = False, error
    Py_INCREF(result)
    job.result = <PyObject *>result


cdef void *_work(void *argument) noexcept nogil:
    """The thread: until it stops, with all jobs before that done."""
    cdef Line *line = <Line *>argument
    cdef Job *job
    cdef uint64_t one = 1
    cdef sigset_t signals
    cdef bint was_empty
    # The main thread handles signals.
    sigfillset(&signals)
    pthread_sigmask(SIG_SETMASK, &signals, NULL)
    while True:
        pthread_mutex_lock(&line.lock)
        while line.first == NULL and not line.stops:
            pthread_cond_wait(&line.filled, &line.lock)
        job = line.first
        if job != NULL:
            line.first = job.next
        pthread_mutex_unlock(&line.lock)
        if job == NULL:
            return NULL
        job.next = NULL
        if job.is_call:
            _call(job)
        else:
            job.failed = _append(job)
        pthread_mutex_lock(&line.lock)
        was_empty = line.done == NULL
        if was_empty:
            line.done = job
        else:
            line.done_last.next = job
        line.done_last = job
        pthread_mutex_unlock(&line.lock)
        if was_empty:
            write(line.wake, &one, sizeof(one))


cdef void _free(Job *job) noexcept:
    Py_XDECREF(job.ticket)
    Py_XDECREF(job.work)
    Py_XDECREF(job.result)
    free(job.parts)
    free(job.flushed)
    free(job)


cdef class Thread:
    """The thread. Its methods belong to one other thread."""

    cdef Line line
    cdef pthread_t thread
    cdef bint is_running

    def __cinit__(self):
        pthread_mutex_init(&self.line.lock, NULL)
        pthread_cond_init(&self.line.filled, NULL)
        self.line.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        if self.line.wake < 0:
            raise OSError(errno, os.strerror(errno))
        number = pthread_create(&self.thread, NULL, _work, &self.line)
        if number:
            raise OSError(number, os.strerror(number))
        self.is_running = True

    def __dealloc__(self):
        self.close()
        pthread_cond_destroy(&self.line.filled)
        pthread_mutex_destroy(&self.line.lock)

    def fileno(self):
        """Readable while `take` has results."""
        self._check()
        return self.line.wake

    def call(self, ticket, work):
        """Calls `work` with the GIL."""
        cdef Job *job = self._job(ticket, work)
        job.is_call = True
        self._put(job)

    def append(self, ticket, int file, int64_t at, list buffers, list flushed):
        """Writes buffers one after the other from `at` on, then flushes the files `flushed`."""
        cdef list held = [Buffer(data) for data in buffers]
        cdef Job *job = self._job(ticket, held)
        cdef Buffer one
        cdef int number
        job.file, job.at = file, at
        job.parts = <iovec *>calloc(len(held) + 1, sizeof(iovec))
        job.flushed = <int *>calloc(len(flushed) + 1, sizeof(int))
        if job.parts == NULL or job.flushed == NULL:
            _free(job)
            raise MemoryError
        for one in held:
            if one.view.len:
                job.parts[job.part_count].iov_base = <void *>one.at
                job.parts[job.part_count].iov_len = one.view.len
                job.part_count += 1
        for number in flushed:
            job.flushed[job.flushed_count] = number
            job.flushed_count += 1
        self._put(job)

    cdef int _check(self) except -1:
        if not self.is_running:
            raise RuntimeError("the thread has stopped")
        return 0

    cdef Job *_job(self, ticket, work) except NULL:
        cdef Job *job
        self._check()
        job = <Job *>calloc(1, sizeof(Job))
        if job == NULL:
            PyErr_NoMemory()
        Py_INCREF(ticket)
        Py_INCREF(work)
        job.ticket, job.work = <PyObject *>ticket, <PyObject *>work
        return job

    cdef void _put(self, Job *job) noexcept:
        pthread_mutex_lock(&self.line.lock)
        if self.line.first == NULL:
            self.line.first = job
        else:
            self.line.last.next = job
        self.line.last = job
        pthread_mutex_unlock(&self.line.lock)
        # Afterwards: the thread may run at once in place of this one, and would wait for the lock.
        pthread_cond_signal(&self.line.filled)

    def take(self):
        """(ticket, failed step, error number, result) of each job done since the last call. A call's result is (whether
        it returned, value or exception)."""
        cdef uint64_t count
        cdef Job *job
        cdef Job *following
        read(self.line.wake, &count, sizeof(count))
        pthread_mutex_lock(&self.line.lock)
        job, self.line.done = self.line.done, NULL
        pthread_mutex_unlock(&self.line.lock)
        found = []
        while job != NULL:
            result = <object>job.result if job.result != NULL else None
            found.append((<object>job.ticket, job.failed, job.error, result))
            following = job.next
            _free(job)
            job = following
        return found

    def close(self):
        """Returns when all jobs are done, with the last results of `take`."""
        if not self.is_running:
            return []
        self.is_running = False
        with nogil:
            pthread_mutex_lock(&self.line.lock)
            self.line.stops = True
            pthread_cond_signal(&self.line.filled)
            pthread_mutex_unlock(&self.line.lock)
            pthread_join(self.thread, NULL)
        found = self.take()
        os.close(self.line.wake)
        return found
