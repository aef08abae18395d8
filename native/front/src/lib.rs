//! A server for gRPC over HTTP/2 on a thread of its own, which takes the GIL for TLS handshakes alone. Python's event
//! loop gets calls in batches from `take`, and answers them by commands that `flush` passes on.
mod call;
mod connection;
mod gate;
mod hub;
mod tls;
mod wire;

use http::HeaderMap;
use hub::{Command, Event, Hub, Limits, Peer, Phase, Shared, Vital};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::os::fd::RawFd;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use tls::Tls;
use tokio::sync::{mpsc, watch};

const BACKLOG: i32 = 4_096;

type Metadata = Vec<(String, Value)>;

#[derive(FromPyObject)]
enum Value {
    Text(String),
    Binary(Vec<u8>),
}

fn headers_of(metadata: Metadata, headers: &mut HeaderMap) -> PyResult<()> {
    for (name, value) in metadata {
        let bytes = match &value {
            Value::Text(text) => text.as_bytes(),
            Value::Binary(bytes) => bytes,
        };
        if !wire::add(headers, &name, bytes) {
            return Err(PyValueError::new_err(format!("invalid metadata: {name}")));
        }
    }
    Ok(())
}

type Opened = (std::net::TcpListener, Option<Arc<Tls>>);

#[pyclass(frozen)]
struct Front {
    shared: Arc<Shared>,
    phase: watch::Sender<Phase>,
    listeners: mpsc::UnboundedSender<Opened>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[pymethods]
impl Front {
    #[new]
    #[pyo3(signature = (*, connections_max, streams_max, metadata_bytes_max, message_bytes_max))]
    fn new(
        connections_max: usize,
        streams_max: u32,
        metadata_bytes_max: usize,
        message_bytes_max: usize,
    ) -> PyResult<Self> {
        let limits = Limits { connections_max, streams_max, metadata_bytes_max, message_bytes_max };
        let shared = Arc::new(Shared::new()?);
        let (phase, phases) = watch::channel(Phase::Serving);
        let (listeners, opened) = mpsc::unbounded_channel();
        let own = shared.clone();
        let thread =
            std::thread::Builder::new().name("duetime-front".into()).spawn(move || run(own, limits, phases, opened))?;
        Ok(Front { shared, phase, listeners, thread: Mutex::new(Some(thread)) })
    }

    /// Binds a port and accepts connections; returns its number.
    #[pyo3(signature = (host, port, changed = None, *, asked = false))]
    fn listen(&self, py: Python<'_>, host: &str, port: u16, changed: Option<Py<PyAny>>, asked: bool) -> PyResult<u16> {
        let tls = changed.map(|changed| Tls::new(py, changed, asked)).transpose()?.map(Arc::new);
        let listener = bind(host, port)?;
        let port = listener.local_addr()?.port();
        self.listeners.send((listener, tls)).map_err(|_| PyRuntimeError::new_err("the front is closed"))?;
        Ok(port)
    }

    /// The descriptor that is readable while there are events.
    fn fileno(&self) -> RawFd {
        self.shared.fd()
    }

    /// All events so far, as tuples.
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let found = PyList::empty(py);
        for event in self.shared.take() {
            found.append(tuple_of(py, event)?)?;
        }
        Ok(found)
    }

    fn begin(&self, number: u64, metadata: Metadata) -> PyResult<()> {
        let mut headers = HeaderMap::new();
        headers_of(metadata, &mut headers)?;
        self.shared.put(number, Command::Begin(headers));
        Ok(())
    }

    fn message(&self, number: u64, data: &[u8], report: bool) {
        self.shared.put(number, Command::Message(wire::frame(data), report));
    }

    fn finish(&self, number: u64, code: u32, text: &str, metadata: Metadata, cut: bool) -> PyResult<()> {
        let mut trailers = HeaderMap::with_capacity(1);
        headers_of(metadata, &mut trailers)?;
        wire::add_status(&mut trailers, code, text);
        self.shared.put(number, Command::Finish { trailers, code, cut });
        Ok(())
    }

    fn read(&self, number: u64, taken: u64) {
        self.shared.put(number, Command::Read(taken));
    }

    fn release(&self, number: u64, size: usize, taken: u64) {
        self.shared.put(number, Command::Release(size, taken));
    }

    /// Passes all commands on.
    fn flush(&self) {
        self.shared.wake_front.notify_one();
    }

    /// Connections with a waiting call, connections of clients that read nothing, bytes of answers, calls rejected.
    fn figures(&self) -> (usize, usize, usize, usize) {
        let figures = &self.shared.figures;
        let [waiting, unread, held, refused] =
            [&figures.waiting, &figures.unread, &figures.held, &figures.refused].map(|figure| figure.load(Relaxed));
        (waiting, unread, held, refused)
    }

    /// Closes the ports, and asks clients to leave; calls in progress continue.
    fn drain(&self) {
        self.phase.send_replace(Phase::Draining);
    }

    /// Ends connections once their answers are written, and returns when all have ended.
    fn close(&self, py: Python<'_>) {
        self.shared.wake_front.notify_one();
        self.phase.send_replace(Phase::Closing);
        let thread = self.thread.lock().unwrap().take();
        if let Some(thread) = thread {
            py.detach(|| {
                let _ = thread.join();
            });
        }
    }
}

/// All addresses of the machine include those of both families, as for gRPC.
fn bind(host: &str, port: u16) -> std::io::Result<std::net::TcpListener> {
    let address = (host, port).to_socket_addrs()?.next().ok_or(std::io::ErrorKind::AddrNotAvailable)?;
    if address.ip() == IpAddr::V4(Ipv4Addr::UNSPECIFIED) {
        if let Ok(listener) = bind_address((Ipv6Addr::UNSPECIFIED, port).into()) {
            return Ok(listener);
        }
    }
    bind_address(address)
}

fn bind_address(address: SocketAddr) -> std::io::Result<std::net::TcpListener> {
    let socket = socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM, None)?;
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

fn run(
    shared: Arc<Shared>,
    limits: Limits,
    phases: watch::Receiver<Phase>,
    mut opened: mpsc::UnboundedReceiver<Opened>,
) {
    let _vital = Vital;
    let built = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(4).build();
    let runtime = built.expect("a runtime");
    let local = tokio::task::LocalSet::new();
    let mut phase = phases.clone();
    let hub = Rc::new(Hub::new(shared.clone(), limits, phases));
    local.block_on(&runtime, async move {
        let passing = hub.clone();
        let passer = tokio::task::spawn_local(async move {
            let _vital = Vital;
            loop {
                passing.shared.wake_front.notified().await;
                passing.pass();
            }
        });
        loop {
            tokio::select! {
                _ = phase.wait_for(|phase| *phase == Phase::Closing) => break,
                Some((listener, tls)) = opened.recv() => {
                    if let Ok(listener) = tokio::net::TcpListener::from_std(listener) {
                        tokio::task::spawn_local(connection::listen(hub.clone(), listener, tls));
                    }
                }
            }
        }
        hub.pass();
        while hub.connections.get() > 0 {
            hub.ended.notified().await;
        }
        passer.abort();
    });
}

fn tuple_of<'py>(py: Python<'py>, event: Event) -> PyResult<Bound<'py, PyTuple>> {
    match event {
        Event::Call { number, peer, path, headers, messages, ended, place } => {
            drop(place);
            let metadata = metadata_of(py, &headers)?;
            let messages: Vec<_> = messages.iter().map(|data| PyBytes::new(py, data)).collect();
            let timeout = wire::timeout_s(&headers);
            let path = PyString::intern(py, &path);
            (0, number, peer_of(py, &peer)?, path, metadata, timeout, messages, ended).into_pyobject(py)
        }
        Event::Message { number, data } => (1, number, PyBytes::new(py, &data)).into_pyobject(py),
        Event::End { number } => (2, number).into_pyobject(py),
        Event::Taken { number } => (3, number).into_pyobject(py),
        Event::Lost { number, code, text } => (4, number, code, text).into_pyobject(py),
        Event::Fault { text } => (5, text).into_pyobject(py),
    }
}

fn metadata_of<'py>(py: Python<'py>, headers: &HeaderMap) -> PyResult<Bound<'py, PyTuple>> {
    let mut pairs = Vec::with_capacity(headers.len());
    for (name, value) in headers {
        if wire::is_reserved(name.as_str()) {
            continue;
        }
        let key = PyString::intern(py, name.as_str());
        if name.as_str().ends_with("-bin") {
            // Several values may be joined by commas.
            for part in value.as_bytes().split(|byte| *byte == b',') {
                if let Some(data) = wire::decode_binary(part.trim_ascii()) {
                    pairs.push((key.clone(), PyBytes::new(py, &data)).into_pyobject(py)?);
                }
            }
        } else {
            let text = String::from_utf8_lossy(value.as_bytes());
            pairs.push((key, PyString::new(py, &text)).into_pyobject(py)?);
        }
    }
    PyTuple::new(py, pairs)
}

/// Its name, and gRPC's `auth_context`.
fn peer_of(py: Python<'_>, peer: &Peer) -> PyResult<Py<PyAny>> {
    let made = peer.python.get_or_try_init(py, || -> PyResult<Py<PyAny>> {
        let auth = PyDict::new(py);
        let list = |values: &[String]| -> PyResult<Bound<'_, PyList>> {
            PyList::new(py, values.iter().map(|value| PyBytes::new(py, value.as_bytes())))
        };
        if peer.tls {
            auth.set_item("transport_security_type", list(&["ssl".to_owned()])?)?;
        }
        if let Some(identity) = &peer.identity {
            auth.set_item("x509_pem_cert", PyList::empty(py))?;
            auth.set_item("peer_uri", list(&identity.uris)?)?;
            auth.set_item("peer_dns", list(&identity.dns_names)?)?;
        }
        Ok((peer.name.as_str(), auth).into_pyobject(py)?.into_any().unbind())
    })?;
    Ok(made.clone_ref(py))
}

#[pymodule]
fn duetime_front(module: &Bound<'_, PyModule>) -> PyResult<()> {
    // Raised by changes that older callers do not fit, as in duetime_format/compiled.py.
    module.add("INTERFACE", 1)?;
    module.add_class::<Front>()
}
