//! A connection, driven by the thread whose call uses it.
use crate::tls;
use crate::wire::{self, Failure};
use bytes::Bytes;
use h2::client::{Connection, SendRequest};
use http::header::{CONTENT_TYPE, TE, USER_AGENT};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderValue, Method, Request, Uri, Version};
use pyo3::{PyErr, Python};
use rustls::pki_types::ServerName;
use rustls::ClientConfig;
use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};
use std::future::Future;
use std::io;
use std::net::{Shutdown, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsRawFd, RawFd};
use std::pin::{pin, Pin};
use std::sync::atomic::{AtomicBool, AtomicI16, AtomicUsize, Ordering::Relaxed};
use std::sync::{mpsc, Arc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::client::TlsStream;
use tokio_rustls::TlsConnector;

/// Python's signals may arrive just before a wait: it looks for them after each slice.
const SLICE: Duration = Duration::from_millis(200);
/// The kernel's own probes of an idle connection: the thread of a client looks at none between two calls.
const PROBE_AFTER: Duration = Duration::from_secs(20);
const PROBE_EVERY: Duration = Duration::from_secs(5);
const PROBES: u32 = 4;
const WINDOW_BYTES: u32 = 1 << 20;
const FRAME_HEAD_BYTES: usize = 9;
const HEADER_BYTES_MAX: u32 = 16 * 1024;
const AGENT: &str = concat!("duetime-wire/", env!("CARGO_PKG_VERSION"));

/// The reason why a call ended without an answer.
pub enum Halt {
    Failed(Failure),
    /// A signal handler of Python raised.
    Interrupted(PyErr),
}

impl From<Failure> for Halt {
    fn from(failure: Failure) -> Self {
        Halt::Failed(failure)
    }
}

/// The server's host and port.
pub struct Address {
    host: String,
    port: u16,
    authority: Authority,
}

impl Address {
    /// `host`: a name or an address; IPv6 in brackets.
    pub fn new(host: &str, port: u16) -> Result<Self, String> {
        let authority = Authority::try_from(format!("{host}:{port}")).map_err(|error| error.to_string())?;
        Ok(Address { host: host.trim_start_matches('[').trim_end_matches(']').to_owned(), port, authority })
    }

    /// A request with gRPC's own headers. `method`: `/package.Service/Method`.
    pub fn request(&self, method: &str, timeout: Duration) -> Result<Request<()>, String> {
        let mut parts = http::uri::Parts::default();
        // Servers of gRPC ignore the scheme.
        parts.scheme = Some(Scheme::HTTP);
        parts.authority = Some(self.authority.clone());
        parts.path_and_query = Some(PathAndQuery::try_from(method).map_err(|error| error.to_string())?);
        let mut request = Request::new(());
        *request.method_mut() = Method::POST;
        *request.version_mut() = Version::HTTP_2;
        *request.uri_mut() = Uri::from_parts(parts).map_err(|error| error.to_string())?;
        let headers = request.headers_mut();
        headers.insert(TE, HeaderValue::from_static("trailers"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
        headers.insert("grpc-timeout", wire::timeout_value(timeout));
        Ok(request)
    }

    /// All addresses. Names are resolved by another thread: the system's resolver knows no deadline.
    fn resolve(&self, deadline: Instant) -> Result<Vec<SocketAddr>, Halt> {
        if let Ok(ip) = self.host.parse() {
            return Ok(vec![SocketAddr::new(ip, self.port)]);
        }
        let (sender, receiver) = mpsc::channel();
        let name = (self.host.clone(), self.port);
        let resolving = move || drop(sender.send(name.to_socket_addrs().map(Vec::from_iter)));
        let spawned = std::thread::Builder::new().name("duetime-wire".into()).spawn(resolving);
        spawned.map_err(|error| unavailable(format!("cannot start a thread: {error}")))?;
        loop {
            let left = left(deadline)?;
            match receiver.recv_timeout(left.min(SLICE)) {
                Ok(Ok(found)) if !found.is_empty() => return Ok(found),
                Ok(Err(error)) => return Err(unavailable(format!("DNS resolution failed for {}: {error}", self.host))),
                Err(mpsc::RecvTimeoutError::Timeout) => check_signals()?,
                _ => return Err(unavailable(format!("DNS resolution failed for {}", self.host))),
            }
        }
    }
}

/// Opens connections.
#[derive(Clone, Copy)]
pub struct Opener<'a> {
    pub address: &'a Address,
    pub tls: Option<&'a Arc<ClientConfig>>,
}

impl Opener<'_> {
    /// A new connection, to the first address that accepts one. Each address has its part of the time left.
    pub fn open(&self, deadline: Instant) -> Result<Link, Halt> {
        let addresses = self.address.resolve(deadline)?;
        let mut reasons = Vec::new();
        for (number, address) in addresses.iter().enumerate() {
            let share = left(deadline)? / (addresses.len() - number) as u32;
            match self.connect(*address, Instant::now() + share) {
                Ok(link) => return Ok(link),
                Err(Halt::Failed(failure)) => reasons.push(format!("{address}: {}", failure.text)),
                Err(interrupted) => return Err(interrupted),
            }
        }
        Err(unavailable(format!("failed to connect: {}", reasons.join("; "))))
    }

    fn connect(&self, address: SocketAddr, deadline: Instant) -> Result<Link, Halt> {
        let broken = |error: io::Error| unavailable(error.to_string());
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP)).map_err(broken)?;
        socket.set_nonblocking(true).map_err(broken)?;
        socket.set_tcp_nodelay(true).map_err(broken)?;
        let probes = TcpKeepalive::new().with_time(PROBE_AFTER).with_interval(PROBE_EVERY).with_retries(PROBES);
        socket.set_tcp_keepalive(&probes).map_err(broken)?;
        let waiter = Waiter::new(socket.as_raw_fd());
        match socket.connect(&address.into()) {
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {
                waiter.notes.interest.store(libc::POLLOUT, Relaxed);
                while !waiter.wait(deadline)? {}
            }
            started => started.map_err(broken)?,
        }
        if let Some(error) = socket.take_error().map_err(broken)? {
            return Err(broken(error));
        }
        let plain = Plain { socket, notes: waiter.notes.clone() };
        let stream = match self.tls {
            None => Stream::Plain(plain),
            Some(config) => Stream::Tls(Box::new(self.secure(config, plain, &waiter, deadline)?)),
        };
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(WINDOW_BYTES).initial_connection_window_size(WINDOW_BYTES);
        builder.max_header_list_size(HEADER_BYTES_MAX).enable_push(false);
        let mut shaking = pin!(builder.handshake(stream));
        let (send, connection) = waiter
            .block(deadline, |context| shaking.as_mut().poll(context))?
            .map_err(|error| unavailable(error.to_string()))?;
        Ok(Link { send, connection, waiter, process: std::process::id() })
    }

    fn secure(
        &self,
        config: &Arc<ClientConfig>,
        plain: Plain,
        waiter: &Waiter,
        deadline: Instant,
    ) -> Result<TlsStream<Plain>, Halt> {
        let name = ServerName::try_from(self.address.host.clone()).map_err(|error| unavailable(error.to_string()))?;
        let mut shaking = TlsConnector::from(config.clone()).connect(name, plain);
        let stream = waiter
            .block(deadline, |context| Pin::new(&mut shaking).poll(context))?
            .map_err(|error| unavailable(tls::reason(&error)))?;
        if stream.get_ref().1.alpn_protocol() != Some(tls::ALPN) {
            return Err(unavailable("the server does not speak HTTP/2".to_owned()));
        }
        Ok(stream)
    }
}

/// One HTTP/2 connection.
pub struct Link {
    pub send: SendRequest<Bytes>,
    connection: Connection<Stream, Bytes>,
    waiter: Waiter,
    process: u32,
}

impl Link {
    pub fn is_of_this_process(&self) -> bool {
        self.process == std::process::id()
    }

    /// Whether the server has neither closed the connection nor asked to leave it, as far as it is known here.
    pub fn is_open(&mut self) -> bool {
        let waker = Waker::noop();
        let mut context = Context::from_waker(waker);
        Pin::new(&mut self.connection).poll(&mut context).is_pending()
            && !matches!(self.send.poll_ready(&mut context), Poll::Ready(Err(_)))
    }

    /// Whether the server has not even sent the head of a frame.
    pub fn is_silent(&self) -> bool {
        self.waiter.notes.received.load(Relaxed) < FRAME_HEAD_BYTES
    }

    /// Drives the connection until a call on it has ended.
    pub fn block<T>(
        &mut self,
        deadline: Instant,
        exchange: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Halt> {
        let mut exchange = pin!(exchange);
        let mut end = None;
        let connection = &mut self.connection;
        let found = self.waiter.block(deadline, |context| {
            // A request is queued before the connection writes, and an answer is read before the call takes it.
            let mut found = exchange.as_mut().poll(context);
            if end.is_none() {
                if let Poll::Ready(ended) = Pin::new(&mut *connection).poll(context) {
                    end = Some(ended);
                }
                if found.is_pending() {
                    found = exchange.as_mut().poll(context);
                }
            }
            match (&found, &end) {
                (Poll::Pending, Some(Ok(()))) => Poll::Ready(Err(Failure::new(wire::UNAVAILABLE, "Socket closed"))),
                (Poll::Pending, Some(Err(error))) => Poll::Ready(Err(Failure::of_h2(error))),
                _ => found,
            }
        });
        Ok(found??)
    }

    /// Disconnects, also where a forked child still has the socket.
    pub fn shut_down(self) {
        if self.is_of_this_process() {
            let socket = unsafe { std::os::fd::BorrowedFd::borrow_raw(self.waiter.fd) };
            let _ = socket2::SockRef::from(&socket).shutdown(Shutdown::Both);
        }
    }
}

/// Blocks the thread until a socket is ready.
struct Waiter {
    fd: RawFd,
    notes: Arc<Notes>,
    woken: Arc<Woken>,
    waker: Waker,
}

/// The notes of a socket for the thread that waits for it.
#[derive(Default)]
struct Notes {
    /// Events for which its users wait.
    interest: AtomicI16,
    /// Bytes.
    received: AtomicUsize,
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Relaxed);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.store(true, Relaxed);
    }
}

impl Waiter {
    fn new(fd: RawFd) -> Self {
        let woken = Arc::new(Woken::default());
        Waiter { fd, notes: Arc::default(), waker: Waker::from(woken.clone()), woken }
    }

    /// Polls until there is a result.
    fn block<T>(&self, deadline: Instant, mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Result<T, Halt> {
        let mut context = Context::from_waker(&self.waker);
        loop {
            self.woken.0.store(false, Relaxed);
            self.notes.interest.store(0, Relaxed);
            if let Poll::Ready(found) = poll(&mut context) {
                return Ok(found);
            }
            if !self.woken.0.load(Relaxed) {
                self.wait(deadline)?;
            }
        }
    }

    /// Whether an awaited event came. False: a signal came, or the slice has passed.
    fn wait(&self, deadline: Instant) -> Result<bool, Halt> {
        let left = left(deadline)?.min(SLICE);
        let mut asked = libc::pollfd { fd: self.fd, events: self.notes.interest.load(Relaxed), revents: 0 };
        // Rounded up: no spinning in the last millisecond.
        let timeout_ms = left.as_millis() as libc::c_int + 1;
        let count = unsafe { libc::poll(&mut asked, 1, timeout_ms) };
        if count > 0 {
            return Ok(true);
        }
        if count < 0 {
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(unavailable(error.to_string()));
            }
        }
        check_signals()?;
        Ok(false)
    }
}

fn check_signals() -> Result<(), Halt> {
    // None: the interpreter has ended, and the process is about to. Daemon threads must not return to it.
    let checked = Python::try_attach(|py| py.check_signals());
    checked
        .unwrap_or_else(|| loop {
            std::thread::park()
        })
        .map_err(Halt::Interrupted)
}

/// The time until a deadline.
fn left(deadline: Instant) -> Result<Duration, Halt> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(Failure::new(wire::DEADLINE_EXCEEDED, "Deadline Exceeded").into());
    }
    Ok(left)
}

fn unavailable(text: String) -> Halt {
    Failure::new(wire::UNAVAILABLE, text).into()
}

/// A socket that does not block.
pub struct Plain {
    socket: Socket,
    notes: Arc<Notes>,
}

impl Plain {
    fn noting<T>(&self, event: i16, mut attempt: impl FnMut(&Socket) -> io::Result<T>) -> Poll<io::Result<T>> {
        loop {
            match attempt(&self.socket) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.notes.interest.fetch_or(event, Relaxed);
                    return Poll::Pending;
                }
                done => return Poll::Ready(done),
            }
        }
    }
}

impl AsyncRead for Plain {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let read = self.noting(libc::POLLIN, |socket| {
            // Safety: only initialized bytes are written.
            socket.recv(unsafe { buffer.unfilled_mut() })
        });
        read.map_ok(|size| {
            self.notes.received.fetch_add(size, Relaxed);
            // Safety: the kernel has written them.
            unsafe { buffer.assume_init(size) };
            buffer.advance(size);
        })
    }
}

impl AsyncWrite for Plain {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        self.noting(libc::POLLOUT, |socket| socket.send_with_flags(data, libc::MSG_NOSIGNAL))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.noting(libc::POLLOUT, |socket| socket.send_vectored_with_flags(parts, libc::MSG_NOSIGNAL))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.socket.shutdown(Shutdown::Write))
    }
}

/// Plain text or TLS.
enum Stream {
    Plain(Plain),
    Tls(Box<TlsStream<Plain>>),
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(plain) => Pin::new(plain).poll_read(context, buffer),
            Stream::Tls(tls) => Pin::new(tls).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(plain) => Pin::new(plain).poll_write(context, data),
            Stream::Tls(tls) => Pin::new(tls).poll_write(context, data),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(plain) => Pin::new(plain).poll_write_vectored(context, parts),
            Stream::Tls(tls) => Pin::new(tls).poll_write_vectored(context, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(plain) => Pin::new(plain).poll_flush(context),
            Stream::Tls(tls) => Pin::new(tls).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(plain) => Pin::new(plain).poll_shutdown(context),
            Stream::Tls(tls) => Pin::new(tls).poll_shutdown(context),
        }
    }
}
