//! TLS of a listener, with the certificate that is current at each handshake, and the identity of the peer.
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use std::sync::{Arc, Mutex};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// Certificate chain, key and trusted CAs, as PEM.
type Pems = (Vec<u8>, Vec<u8>, Vec<u8>);

pub struct Tls {
    /// Returns the PEMs if they have changed since its last call.
    changed: Py<PyAny>,
    /// Whether clients must have a certificate.
    asked: bool,
    config: Mutex<Arc<ServerConfig>>,
}

impl Tls {
    pub fn new(py: Python<'_>, changed: Py<PyAny>, asked: bool) -> PyResult<Self> {
        let pems: Pems = changed.bind(py).call0()?.extract()?;
        let config = config_of(&pems, asked).map_err(PyValueError::new_err)?;
        Ok(Tls { changed, asked, config: Mutex::new(config) })
    }

    /// The configuration for a handshake. Takes the GIL. An error leaves the previous one in use.
    pub fn current(&self) -> (Arc<ServerConfig>, Option<String>) {
        let found = Python::attach(|py| -> PyResult<Option<Pems>> { self.changed.bind(py).call0()?.extract() });
        let mut config = self.config.lock().unwrap();
        let fault = match found {
            Ok(None) => None,
            Ok(Some(pems)) => match config_of(&pems, self.asked) {
                Ok(made) => {
                    *config = made;
                    None
                }
                Err(text) => Some(text),
            },
            Err(error) => Some(error.to_string()),
        };
        (config.clone(), fault)
    }
}

fn config_of((cert, key, ca): &Pems, asked: bool) -> Result<Arc<ServerConfig>, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let chain: Vec<_> = CertificateDer::pem_slice_iter(cert).collect::<Result<_, _>>().map_err(|e| text(&e))?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|e| text(&e))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS12, &rustls::version::TLS13])
        .map_err(|e| text(&e))?;
    let builder = if asked {
        let mut roots = RootCertStore::empty();
        for one in CertificateDer::pem_slice_iter(ca) {
            roots.add(one.map_err(|e| text(&e))?).map_err(|e| text(&e))?;
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
        builder.with_client_cert_verifier(verifier.map_err(|e| text(&e))?)
    } else {
        builder.with_no_client_auth()
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|e| text(&e))?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    // A resumed session would skip the check of the client's certificate.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// The names in a client's certificate.
#[derive(Default)]
pub struct Identity {
    pub uris: Vec<String>,
    pub dns_names: Vec<String>,
}

impl Identity {
    /// TLS has verified the certificate already.
    pub fn of(certificate: &CertificateDer<'_>) -> Self {
        let mut found = Identity::default();
        let Ok((_, parsed)) = X509Certificate::from_der(certificate) else { return found };
        let Ok(Some(names)) = parsed.subject_alternative_name() else { return found };
        for name in &names.value.general_names {
            match name {
                GeneralName::URI(uri) => found.uris.push((*uri).to_owned()),
                GeneralName::DNSName(name) => found.dns_names.push((*name).to_owned()),
                _ => {}
            }
        }
        found
    }
}
