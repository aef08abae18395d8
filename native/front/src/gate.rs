//! The bytes that a connection holds: of requests that it reads ahead, and of answers that its client has not read.
use crate::hub::{Figures, Shared};
use crate::wire::{self, Failure};
use bytes::{Buf, Bytes};
use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::Arc;
use std::task::{ready, Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes read from a client that reads no answers. More would become calls whose statuses nobody takes.
const UNANSWERED_BYTES_MAX: usize = 64 * 1024;
/// Bytes read at once: HTTP/2 keeps the calls in them until they are accepted.
const BURST_BYTES_MAX: usize = 64 * 1024;
/// Bytes of answers in the front above which calls of a connection with more than a little are rejected, the little,
/// and the limit of one connection.
const HELD_BYTES_MAX: usize = 96 * 1024 * 1024;
const HELD_BYTES_LITTLE: usize = 256 * 1024;
const HELD_BYTES_SHARE: usize = 32 * 1024 * 1024;

/// One connection's state, shared by its stream and its calls.
pub struct Gate {
    /// A call waits to be handed to Python: no more is read.
    waits: Cell<bool>,
    /// The socket takes no more answers.
    is_full: Cell<bool>,
    /// Bytes read since then.
    unanswered: Cell<usize>,
    /// HTTP/2 may have further calls: those come before more is read.
    has_calls: Cell<bool>,
    /// Bytes read at once.
    burst: Cell<usize>,
    /// Reading was denied until the socket takes answers.
    denied: Cell<bool>,
    /// Reading was held back since the last ping.
    held_back: Cell<bool>,
    /// Bytes of answers in HTTP/2's buffers or before.
    held: Cell<usize>,
    /// Running calls.
    calls: Cell<usize>,
    shared: Arc<Shared>,
}

impl Gate {
    pub fn new(shared: Arc<Shared>) -> Self {
        Gate {
            waits: Cell::new(false),
            is_full: Cell::new(false),
            unanswered: Cell::new(0),
            has_calls: Cell::new(false),
            burst: Cell::new(0),
            denied: Cell::new(false),
            held_back: Cell::new(false),
            held: Cell::new(0),
            calls: Cell::new(0),
            shared,
        }
    }

    fn figures(&self) -> &Figures {
        &self.shared.figures
    }

    /// `waits`: a call waits to be handed to Python.
    pub fn wait(&self, waits: bool) {
        if self.waits.replace(waits) != waits {
            count(&self.figures().waiting, waits);
        }
    }

    /// A call was accepted.
    pub fn note_call(&self) {
        self.has_calls.set(true);
    }

    /// Whether reading was held back since the last question.
    pub fn take_held_back(&self) -> bool {
        self.held_back.replace(false)
    }

    /// Whether no call runs and no answer is unread.
    pub fn is_idle(&self) -> bool {
        self.calls.get() == 0 && self.held.get() == 0
    }

    /// Rejects a further call if its answers have no room.
    pub fn check(&self) -> Result<(), Failure> {
        let held = self.held.get();
        if held <= HELD_BYTES_LITTLE
            || (held <= HELD_BYTES_SHARE && self.figures().held.load(Relaxed) <= HELD_BYTES_MAX)
        {
            return Ok(());
        }
        self.figures().refused.fetch_add(1, Relaxed);
        let text = format!("{held} bytes of answers on this connection are unread");
        Err(Failure::new(wire::RESOURCE_EXHAUSTED, text))
    }

    fn is_shut(&self) -> bool {
        if self.is_full.get() && self.unanswered.get() >= UNANSWERED_BYTES_MAX {
            self.deny(true);
        }
        self.denied.get() || self.waits.get()
    }

    fn deny(&self, denied: bool) {
        if self.denied.replace(denied) != denied {
            count(&self.figures().unread, denied);
        }
    }

    /// Notes the outcome of a write; a wait for the socket holds reading back.
    fn note<T>(&self, cx: &Context<'_>, written: &Poll<T>) {
        self.is_full.set(written.is_pending());
        if written.is_ready() {
            self.unanswered.set(0);
            if self.denied.get() {
                self.deny(false);
                cx.waker().wake_by_ref();
            }
        }
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.wait(false);
        self.deny(false);
    }
}

fn count(figure: &AtomicUsize, more: bool) {
    if more {
        figure.fetch_add(1, Relaxed);
    } else {
        figure.fetch_sub(1, Relaxed);
    }
}

/// A connection's stream behind its gate.
pub struct Gated<S> {
    pub stream: S,
    pub gate: Rc<Gate>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Gated<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.gate.is_shut() {
            self.gate.held_back.set(true);
            return Poll::Pending;
        }
        if self.gate.has_calls.replace(false) || self.gate.burst.get() >= BURST_BYTES_MAX {
            self.gate.burst.set(0);
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if read.is_pending() {
            self.gate.burst.set(0);
        }
        ready!(read)?;
        let size = buf.filled().len() - before;
        self.gate.burst.set(self.gate.burst.get() + size);
        if self.gate.is_full.get() {
            self.gate.unanswered.set(self.gate.unanswered.get() + size);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Gated<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, data);
        self.gate.note(cx, &written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.gate.note(cx, &written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        if flushed.is_pending() {
            self.gate.note(cx, &flushed);
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// A running call, counted until it ends.
pub struct Running(Rc<Gate>);

impl Running {
    pub fn new(gate: Rc<Gate>) -> Self {
        gate.calls.set(gate.calls.get() + 1);
        Running(gate)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.calls.set(self.0.calls.get() - 1);
    }
}

/// A part of an answer, counted until HTTP/2 has written or dropped it.
pub struct Answer {
    data: Bytes,
    size: usize,
    gate: Rc<Gate>,
}

impl Answer {
    pub fn new(data: Bytes, gate: Rc<Gate>) -> Self {
        let size = data.len();
        gate.held.set(gate.held.get() + size);
        gate.figures().held.fetch_add(size, Relaxed);
        Answer { data, size, gate }
    }

    pub fn split_to(&mut self, size: usize) -> Self {
        self.size -= size;
        Answer { data: self.data.split_to(size), size, gate: self.gate.clone() }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        let gate = &self.gate;
        gate.held.set(gate.held.get() - self.size);
        gate.figures().held.fetch_sub(self.size, Relaxed);
    }
}

impl Buf for Answer {
    fn remaining(&self) -> usize {
        self.data.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.data
    }

    fn advance(&mut self, count: usize) {
        self.data.advance(count);
    }
}
