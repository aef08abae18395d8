//! gRPC on HTTP/2: message prefixes, compression, metadata, timeouts and statuses.
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use base64::Engine;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue};
use std::io::Read;

pub const OK: u32 = 0;
pub const CANCELLED: u32 = 1;
pub const RESOURCE_EXHAUSTED: u32 = 8;
pub const UNIMPLEMENTED: u32 = 12;
pub const INTERNAL: u32 = 13;
const PREFIX_BYTES: usize = 5;

/// Binary metadata is sent without padding and accepted with or without.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_encode_padding(false).with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// A status that ends a call before or beside its handler.
#[derive(Clone, Debug)]
pub struct Failure {
    pub code: u32,
    pub text: String,
}

impl Failure {
    pub fn new(code: u32, text: impl Into<String>) -> Self {
        Failure { code, text: text.into() }
    }
}

#[derive(Clone, Copy, PartialEq)]
pub enum Encoding {
    Identity,
    Gzip,
    Deflate,
}

impl Encoding {
    pub fn of(headers: &HeaderMap) -> Result<Self, Failure> {
        match headers.get("grpc-encoding").map(HeaderValue::as_bytes) {
            None | Some(b"identity") => Ok(Encoding::Identity),
            Some(b"gzip") => Ok(Encoding::Gzip),
            Some(b"deflate") => Ok(Encoding::Deflate),
            Some(other) => {
                let name = String::from_utf8_lossy(other);
                Err(Failure::new(UNIMPLEMENTED, format!("Compression algorithm '{name}' is not supported.")))
            }
        }
    }
}

/// One message as it arrived.
pub struct Framed {
    pub compressed: bool,
    pub data: Bytes,
}

/// Collects the bytes of a request's stream, and cuts them into messages.
pub struct Assembler {
    /// The last frame, if all before it are cut; a message within one frame is not copied.
    frame: Bytes,
    /// Otherwise all bytes.
    buffer: BytesMut,
    bytes_max: usize,
}

impl Assembler {
    pub fn new(bytes_max: usize) -> Self {
        Assembler { frame: Bytes::new(), buffer: BytesMut::new(), bytes_max }
    }

    /// Bytes that are not cut yet.
    pub fn held(&self) -> usize {
        self.frame.len() + self.buffer.len()
    }

    /// Adds received bytes.
    pub fn push(&mut self, data: Bytes) {
        if self.held() == 0 {
            self.frame = data;
            return;
        }
        self.buffer.extend_from_slice(&std::mem::take(&mut self.frame));
        self.buffer.extend_from_slice(&data);
    }

    /// The next message; None: it is incomplete.
    pub fn cut(&mut self) -> Result<Option<Framed>, Failure> {
        let is_framed = self.buffer.is_empty();
        let held = if is_framed { &self.frame[..] } else { &self.buffer[..] };
        let Some((compressed, size)) = self.prefix(held)? else { return Ok(None) };
        if held.len() < PREFIX_BYTES + size {
            return Ok(None);
        }
        let data = if is_framed {
            self.frame.advance(PREFIX_BYTES);
            self.frame.split_to(size)
        } else {
            self.buffer.advance(PREFIX_BYTES);
            self.buffer.split_to(size).freeze()
        };
        Ok(Some(Framed { compressed, data }))
    }

    fn prefix(&self, data: &[u8]) -> Result<Option<(bool, usize)>, Failure> {
        if data.len() < PREFIX_BYTES {
            return Ok(None);
        }
        let size = u32::from_be_bytes([data[1], data[2], data[3], data[4]]) as usize;
        if data[0] > 1 {
            return Err(Failure::new(INTERNAL, format!("invalid flag {} before a message", data[0])));
        }
        if size > self.bytes_max {
            return Err(too_large(size, self.bytes_max));
        }
        Ok(Some((data[0] == 1, size)))
    }
}

fn too_large(size: usize, bytes_max: usize) -> Failure {
    Failure::new(RESOURCE_EXHAUSTED, format!("Received message larger than max ({size} vs. {bytes_max})"))
}

/// The content of a compressed message of at most `bytes_max` bytes.
pub fn expand(encoding: Encoding, data: &[u8], bytes_max: usize) -> Result<Bytes, Failure> {
    let mut found = Vec::new();
    let most = bytes_max as u64 + 1;
    let read = match encoding {
        Encoding::Identity => return Err(Failure::new(INTERNAL, "a compressed message without grpc-encoding")),
        Encoding::Gzip => flate2::read::GzDecoder::new(data).take(most).read_to_end(&mut found),
        Encoding::Deflate => flate2::read::ZlibDecoder::new(data).take(most).read_to_end(&mut found),
    };
    match read {
        Err(error) => Err(Failure::new(INTERNAL, format!("cannot decompress a message: {error}"))),
        Ok(size) if size > bytes_max => Err(too_large(size, bytes_max)),
        Ok(_) => Ok(found.into()),
    }
}

/// A message with its prefix.
pub fn frame(data: &[u8]) -> Bytes {
    let mut framed = BytesMut::with_capacity(PREFIX_BYTES + data.len());
    framed.put_u8(0);
    framed.put_u32(data.len() as u32);
    framed.put_slice(data);
    framed.freeze()
}

/// Seconds of a `grpc-timeout`; None: there is none, or it is invalid.
pub fn timeout_s(headers: &HeaderMap) -> Option<f64> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 {
        return None;
    }
    let count: u32 = digits.parse().ok()?;
    let unit_s = match unit {
        "H" => 3600.0,
        "M" => 60.0,
        "S" => 1.0,
        "m" => 1e-3,
        "u" => 1e-6,
        "n" => 1e-9,
        _ => return None,
    };
    Some(f64::from(count) * unit_s)
}

/// Whether a header belongs to gRPC itself, not to the metadata of a call.
pub fn is_reserved(name: &str) -> bool {
    matches!(name, "content-type" | "te" | "grpc-timeout" | "grpc-encoding" | "grpc-accept-encoding" | "content-length")
}

/// Bytes of a list of headers as HTTP/2 counts them.
pub fn list_bytes(path: &str, headers: &HeaderMap) -> usize {
    path.len() + headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 32).sum::<usize>()
}

pub fn decode_binary(value: &[u8]) -> Option<Vec<u8>> {
    BASE64.decode(value).ok()
}

/// Adds a pair of metadata; false: it is not valid.
pub fn add(headers: &mut HeaderMap, name: &str, value: &[u8]) -> bool {
    let Ok(name) = HeaderName::from_bytes(name.as_bytes()) else { return false };
    let made = if name.as_str().ends_with("-bin") {
        HeaderValue::from_str(&BASE64.encode(value)).ok()
    } else {
        HeaderValue::from_bytes(value).ok()
    };
    let Some(made) = made else { return false };
    headers.append(name, made);
    true
}

/// Adds a status to trailers.
pub fn add_status(trailers: &mut HeaderMap, code: u32, text: &str) {
    trailers.insert("grpc-status", if code == OK { HeaderValue::from_static("0") } else { HeaderValue::from(code) });
    if !text.is_empty() {
        if let Ok(value) = HeaderValue::from_str(&percent_encoded(text)) {
            trailers.insert("grpc-message", value);
        }
    }
}

pub fn status(failure: &Failure) -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(2);
    add_status(&mut trailers, failure.code, &failure.text);
    if failure.code == UNIMPLEMENTED {
        trailers.insert("grpc-accept-encoding", HeaderValue::from_static("identity,deflate,gzip"));
    }
    trailers
}

fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if (b' '..=b'~').contains(&byte) && byte != b'%' {
            encoded.push(byte as char);
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}
