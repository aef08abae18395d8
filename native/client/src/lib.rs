//! Blocking unary gRPC calls in the calling thread, with the GIL released: no other thread, no event loop.
mod call;
mod link;
mod tls;
mod wire;

use link::{Address, Halt, Link};
use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};
use rustls::ClientConfig;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use wire::Failure;

create_exception!(duetime_wire, Failed, PyException, "A call failed: its arguments are code, text and metadata.");

#[derive(FromPyObject)]
enum Value {
    Text(String),
    Binary(Vec<u8>),
}

/// The connection that waits for the next call.
#[derive(Default)]
struct Idle {
    link: Option<Link>,
    closed: bool,
}

#[pyclass(frozen)]
struct Channel {
    address: Address,
    tls: Option<Arc<ClientConfig>>,
    message_bytes_max: usize,
    /// Locked only while the GIL is held: a fork in Python never copies it locked.
    idle: Mutex<Idle>,
}

#[pymethods]
impl Channel {
    #[new]
    #[pyo3(signature = (host, port, *, pems = None, message_bytes_max))]
    fn new(host: &str, port: u16, pems: Option<tls::Pems>, message_bytes_max: usize) -> PyResult<Self> {
        let address = Address::new(host, port).map_err(PyValueError::new_err)?;
        let tls = pems.map(|pems| tls::config_of(&pems)).transpose().map_err(PyValueError::new_err)?;
        Ok(Channel { address, tls, message_bytes_max, idle: Mutex::default() })
    }

    fn call<'py>(
        &self,
        py: Python<'py>,
        method: &str,
        request: &[u8],
        timeout_s: f64,
        metadata: Vec<(String, Value)>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let timeout =
            Duration::try_from_secs_f64(timeout_s).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let deadline = Instant::now().checked_add(timeout).ok_or_else(|| PyValueError::new_err("timeout too long"))?;
        if request.len() > self.message_bytes_max {
            let text = format!("Sent message larger than max ({} vs. {})", request.len(), self.message_bytes_max);
            return Err(failed(py, Failure::new(wire::RESOURCE_EXHAUSTED, text)));
        }
        let mut asked = self.address.request(method, timeout).map_err(PyValueError::new_err)?;
        for (name, value) in &metadata {
            let bytes = match value {
                Value::Text(text) => text.as_bytes(),
                Value::Binary(bytes) => bytes,
            };
            if !wire::add(asked.headers_mut(), name, bytes) {
                return Err(failed(py, Failure::new(wire::INTERNAL, "Invalid metadata")));
            }
        }
        let mut taken = self.take()?;
        let (found, left) = py.detach(|| {
            let found = call::run(&mut taken, self.opener(), asked, request, deadline, self.message_bytes_max);
            (found, taken)
        });
        self.keep(left);
        match found {
            Ok(answer) => Ok(PyBytes::new(py, &answer)),
            Err(Halt::Failed(failure)) => Err(failed(py, failure)),
            Err(Halt::Interrupted(error)) => Err(error),
        }
    }

    /// Disconnects. Calls in progress end first.
    fn close(&self) {
        let mut idle = self.idle.lock().unwrap();
        idle.closed = true;
        if let Some(link) = idle.link.take() {
            link.shut_down();
        }
    }
}

impl Channel {
    fn opener(&self) -> link::Opener<'_> {
        link::Opener { address: &self.address, tls: self.tls.as_ref() }
    }

    /// The idle connection for one call. A forked child leaves its parent's alone.
    fn take(&self) -> PyResult<Option<Link>> {
        let mut idle = self.idle.lock().unwrap();
        if idle.closed {
            return Err(PyValueError::new_err("the channel is closed"));
        }
        Ok(idle.link.take().filter(Link::is_of_this_process))
    }

    /// Keeps the connection of an ended call for the next one; a second one of two that met is closed.
    fn keep(&self, left: Option<Link>) {
        let Some(link) = left else { return };
        let mut idle = self.idle.lock().unwrap();
        if idle.closed || idle.link.is_some() {
            link.shut_down();
        } else {
            idle.link = Some(link);
        }
    }
}

fn failed(py: Python<'_>, failure: Failure) -> PyErr {
    let pairs = PyList::empty(py);
    for (name, value) in wire::metadata_of(&failure.trailers) {
        let value = if name.ends_with("-bin") {
            PyBytes::new(py, &value).into_any()
        } else {
            PyString::new(py, &String::from_utf8_lossy(&value)).into_any()
        };
        if let Err(error) = pairs.append((name, value)) {
            return error;
        }
    }
    Failed::new_err((failure.code, failure.text, pairs.unbind()))
}

#[pymodule]
fn duetime_wire(module: &Bound<'_, PyModule>) -> PyResult<()> {
    // Raised by changes that older callers do not fit, as in duetime_format/compiled.py.
    module.add("INTERFACE", 1)?;
    module.add("Failed", module.py().get_type::<Failed>())?;
    module.add_class::<Channel>()
}
