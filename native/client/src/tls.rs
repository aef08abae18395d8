//! TLS of a client: the trusted CAs, and its own certificate.
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{AlertDescription, CertificateError, ClientConfig, Error, InvalidMessage, RootCertStore};
use std::sync::Arc;

/// Trusted CAs; certificate and key, if the client has them: as PEM.
pub type Pems = (Vec<u8>, Option<(Vec<u8>, Vec<u8>)>);

pub const ALPN: &[u8] = b"h2";

pub fn config_of((ca, own): &Pems) -> Result<Arc<ClientConfig>, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let mut roots = RootCertStore::empty();
    for one in CertificateDer::pem_slice_iter(ca) {
        roots.add(one.map_err(|e| text(&e))?).map_err(|e| text(&e))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS12, &rustls::version::TLS13])
        .map_err(|e| text(&e))?
        .with_root_certificates(roots);
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some((cert, key)) => {
            let chain: Vec<_> = CertificateDer::pem_slice_iter(cert).collect::<Result<_, _>>().map_err(|e| text(&e))?;
            let key = PrivateKeyDer::from_pem_slice(key).map_err(|e| text(&e))?;
            builder.with_client_auth_cert(chain, key).map_err(|e| text(&e))?
        }
    };
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(Arc::new(config))
}

/// The reason for a failed handshake, in the words of gRPC that the SDK knows.
pub fn reason(error: &std::io::Error) -> String {
    let found = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    match found {
        Some(Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        )) => format!("Hostname Verification Check failed: {error}"),
        Some(Error::InvalidCertificate(_)) => format!("CERTIFICATE_VERIFY_FAILED: {error}"),
        Some(Error::InvalidMessage(InvalidMessage::InvalidContentType)) => format!("WRONG_VERSION_NUMBER: {error}"),
        Some(Error::AlertReceived(AlertDescription::NoApplicationProtocol)) | Some(Error::NoApplicationProtocol) => {
            format!("the server does not speak HTTP/2: {error}")
        }
        _ => error.to_string(),
    }
}
