//! The two ways between Python's event loop and the front's thread: events of calls, and commands for them. Each side
//! wakes the other once for a batch.
use crate::call::Inbox;
use crate::tls::Identity;
use bytes::Bytes;
use http::HeaderMap;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Calls handed to Python that it has not taken yet.
pub const HANDED_MAX: usize = 64;

/// A place among the calls handed to Python; given back when it takes the call.
pub type Place = OwnedSemaphorePermit;

#[derive(Clone, Copy)]
pub struct Limits {
    pub connections_max: usize,
    pub streams_max: u32,
    pub metadata_bytes_max: usize,
    pub message_bytes_max: usize,
}

/// One connection's peer.
pub struct Peer {
    /// As gRPC names it: `ipv4:127.0.0.1:5000`.
    pub name: String,
    pub tls: bool,
    pub identity: Option<Identity>,
    /// The same for Python, made by the first call.
    pub python: PyOnceLock<Py<PyAny>>,
}

impl Peer {
    pub fn new(address: SocketAddr, tls: bool, identity: Option<Identity>) -> Self {
        let name = match address.ip().to_canonical() {
            std::net::IpAddr::V4(ip) => format!("ipv4:{ip}:{}", address.port()),
            std::net::IpAddr::V6(ip) => format!("ipv6:%5B{ip}%5D:{}", address.port()),
        };
        Peer { name, tls, identity, python: PyOnceLock::new() }
    }
}

pub enum Event {
    Call {
        number: u64,
        peer: Arc<Peer>,
        path: String,
        headers: HeaderMap,
        messages: Vec<Bytes>,
        ended: bool,
        place: Place,
    },
    Message {
        number: u64,
        data: Bytes,
    },
    /// The client sends no further requests.
    End {
        number: u64,
    },
    /// HTTP/2 has accepted an answer, as reported on request.
    Taken {
        number: u64,
    },
    /// The call has ended without an answer of Python.
    Lost {
        number: u64,
        code: u32,
        text: String,
    },
    /// The changed certificate cannot be used.
    Fault {
        text: String,
    },
}

pub enum Command {
    Begin(HeaderMap),
    /// A framed answer, and whether to report that it was taken.
    Message(Bytes, bool),
    /// The handler waits for the next request, and has taken so many.
    Read(u64),
    /// The handler has taken so many more bytes of requests, and so many requests.
    Release(usize, u64),
    /// `cut`: answers that were not taken are dropped, with the stream.
    Finish {
        trailers: HeaderMap,
        code: u32,
        cut: bool,
    },
}

#[derive(Clone, Copy, PartialEq)]
pub enum Phase {
    Serving,
    /// Accepts no connections and no calls.
    Draining,
    /// Connections end once their answers are written.
    Closing,
}

/// Aborts the process if the loop that owns it panics: a front that is deaf would look alive. A panic of a connection
/// or a call ends only that.
pub struct Vital;

impl Drop for Vital {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

/// For metrics.
#[derive(Default)]
pub struct Figures {
    /// Connections with a call that waits for Python to take those before it.
    pub waiting: AtomicUsize,
    /// Connections of which nothing is read, because their clients read nothing.
    pub unread: AtomicUsize,
    /// Bytes of answers that no socket has taken.
    pub held: AtomicUsize,
    /// Calls rejected for them.
    pub refused: AtomicUsize,
}

/// The part that both threads use.
pub struct Shared {
    events: Mutex<Vec<Event>>,
    commands: Mutex<Vec<(u64, Command)>>,
    pub wake_front: Notify,
    pub figures: Figures,
    wake_python: OwnedFd,
}

impl Shared {
    pub fn new() -> std::io::Result<Self> {
        // SAFETY: a new descriptor, which nothing else owns.
        let wake_python = unsafe {
            let fd = libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC);
            if fd < 0 {
                return Err(std::io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        Ok(Shared {
            events: Mutex::default(),
            commands: Mutex::default(),
            wake_front: Notify::new(),
            figures: Figures::default(),
            wake_python,
        })
    }

    pub fn fd(&self) -> RawFd {
        self.wake_python.as_raw_fd()
    }

    pub fn post(&self, event: Event) {
        let mut events = self.events.lock().unwrap();
        let was_empty = events.is_empty();
        events.push(event);
        // Python's thread may run at once in place of this one, and would wait for the lock.
        drop(events);
        if was_empty {
            let one: u64 = 1;
            // SAFETY: writes eight bytes of a local variable to a descriptor of our own.
            unsafe { libc::write(self.fd(), (&raw const one).cast(), 8) };
        }
    }

    /// All events so far, and resets the descriptor.
    pub fn take(&self) -> Vec<Event> {
        let mut count: u64 = 0;
        // SAFETY: reads eight bytes into a local variable from a descriptor of our own.
        unsafe { libc::read(self.fd(), (&raw mut count).cast(), 8) };
        std::mem::take(&mut *self.events.lock().unwrap())
    }

    /// Adds a command; the front gets it with the next `flush`.
    pub fn put(&self, number: u64, command: Command) {
        self.commands.lock().unwrap().push((number, command));
    }
}

/// The state of the front's thread.
pub struct Hub {
    pub shared: Arc<Shared>,
    pub limits: Limits,
    pub phase: tokio::sync::watch::Receiver<Phase>,
    pub connections: Cell<usize>,
    /// Notified when a connection has ended.
    pub ended: Notify,
    /// Waiting connections get them in turn.
    pub places: Arc<Semaphore>,
    inboxes: RefCell<HashMap<u64, Rc<Inbox>>>,
    numbers: Cell<u64>,
}

impl Hub {
    pub fn new(shared: Arc<Shared>, limits: Limits, phase: tokio::sync::watch::Receiver<Phase>) -> Self {
        Hub {
            shared,
            limits,
            phase,
            connections: Cell::new(0),
            ended: Notify::new(),
            places: Arc::new(Semaphore::new(HANDED_MAX)),
            inboxes: RefCell::default(),
            numbers: Cell::new(0),
        }
    }

    pub fn post(&self, event: Event) {
        self.shared.post(event);
    }

    /// Registers a call.
    pub fn open(&self) -> (u64, Rc<Inbox>) {
        let number = self.numbers.get() + 1;
        self.numbers.set(number);
        let inbox = Rc::new(Inbox::default());
        self.inboxes.borrow_mut().insert(number, inbox.clone());
        (number, inbox)
    }

    pub fn close(&self, number: u64) {
        self.inboxes.borrow_mut().remove(&number);
    }

    /// Passes commands to their calls; those of ended calls are dropped.
    pub fn pass(&self) {
        let commands = std::mem::take(&mut *self.shared.commands.lock().unwrap());
        let inboxes = self.inboxes.borrow();
        for (number, command) in commands {
            if let Some(inbox) = inboxes.get(&number) {
                inbox.put(command);
            }
        }
    }
}
