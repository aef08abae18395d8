//! gRPC on HTTP/2: metadata, timeouts and statuses.
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use base64::Engine;
use h2::Reason;
use http::{HeaderMap, HeaderName, HeaderValue};
use std::time::Duration;

pub const OK: u32 = 0;
pub const CANCELLED: u32 = 1;
pub const UNKNOWN: u32 = 2;
pub const DEADLINE_EXCEEDED: u32 = 4;
pub const PERMISSION_DENIED: u32 = 7;
pub const RESOURCE_EXHAUSTED: u32 = 8;
pub const UNIMPLEMENTED: u32 = 12;
pub const INTERNAL: u32 = 13;
pub const UNAVAILABLE: u32 = 14;
pub const UNAUTHENTICATED: u32 = 16;
pub const PREFIX_BYTES: usize = 5;

/// Binary metadata is sent without padding and accepted with or without.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_encode_padding(false).with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The status of a failed call.
#[derive(Debug)]
pub struct Failure {
    pub code: u32,
    pub text: String,
    pub trailers: HeaderMap,
}

impl Failure {
    pub fn new(code: u32, text: impl Into<String>) -> Self {
        Failure { code, text: text.into(), trailers: HeaderMap::new() }
    }

    /// The status in trailers, or in the headers of an answer without any; None: there is none.
    pub fn of(trailers: &HeaderMap) -> Option<Result<(), Failure>> {
        let code = trailers.get("grpc-status")?;
        let code = code.to_str().ok().and_then(|text| text.parse().ok()).filter(|code| *code <= UNAUTHENTICATED);
        let code = code.unwrap_or(UNKNOWN);
        if code == OK {
            return Some(Ok(()));
        }
        let text = trailers.get("grpc-message").map(|value| percent_decoded(value.as_bytes())).unwrap_or_default();
        Some(Err(Failure { code, text, trailers: trailers.clone() }))
    }

    /// The status of an answer that is not gRPC's.
    pub fn of_http(status: http::StatusCode) -> Self {
        let code = match status.as_u16() {
            400 => INTERNAL,
            401 => UNAUTHENTICATED,
            403 => PERMISSION_DENIED,
            404 => UNIMPLEMENTED,
            429 | 502 | 503 | 504 => UNAVAILABLE,
            _ => UNKNOWN,
        };
        Failure::new(code, format!("Received http2 header with status: {}", status.as_u16()))
    }

    /// The status of a stream or connection that broke.
    pub fn of_h2(error: &h2::Error) -> Self {
        let Some(reason) = error.reason().filter(|_| error.is_reset()) else {
            return Failure::new(UNAVAILABLE, format!("the connection broke: {error}"));
        };
        let code = match reason {
            Reason::REFUSED_STREAM => UNAVAILABLE,
            Reason::CANCEL => CANCELLED,
            Reason::ENHANCE_YOUR_CALM => RESOURCE_EXHAUSTED,
            Reason::INADEQUATE_SECURITY => PERMISSION_DENIED,
            _ => INTERNAL,
        };
        Failure::new(code, format!("Received RST_STREAM with error code {}", u32::from(reason)))
    }
}

/// The value of `grpc-timeout`: at most eight digits, rounded up.
pub fn timeout_value(timeout: Duration) -> HeaderValue {
    let units = [("u", 1_000), ("m", 1_000_000), ("S", 1_000_000_000)];
    let nanos = timeout.as_nanos();
    let fitting = units.iter().map(|(unit, each)| (unit, nanos.div_ceil(*each))).find(|(_, n)| *n < 100_000_000);
    let text = fitting.map_or_else(|| "99999999S".to_owned(), |(unit, count)| format!("{count}{unit}"));
    let mut value = HeaderValue::from_str(&text).expect("digits");
    // A value that differs in each call would displace the others from the connection's table.
    value.set_sensitive(true);
    value
}

/// Adds a pair of metadata; false: it is not valid.
pub fn add(headers: &mut HeaderMap, name: &str, value: &[u8]) -> bool {
    let Ok(name) = HeaderName::from_lowercase(name.as_bytes()) else { return false };
    let made = if name.as_str().ends_with("-bin") {
        HeaderValue::from_str(&BASE64.encode(value)).ok()
    } else {
        HeaderValue::from_bytes(value).ok()
    };
    let Some(made) = made else { return false };
    if is_reserved(name.as_str()) {
        return false;
    }
    headers.append(name, made);
    true
}

/// The metadata in trailers. Several binary values may be joined by commas.
pub fn metadata_of(trailers: &HeaderMap) -> Vec<(&str, Vec<u8>)> {
    let mut pairs = Vec::new();
    for (name, value) in trailers {
        let name = name.as_str();
        if is_reserved(name) {
            continue;
        }
        if name.ends_with("-bin") {
            let parts = value.as_bytes().split(|byte| *byte == b',');
            pairs.extend(parts.filter_map(|part| BASE64.decode(part.trim_ascii()).ok()).map(|data| (name, data)));
        } else {
            pairs.push((name, value.as_bytes().to_vec()));
        }
    }
    pairs
}

/// Whether a header belongs to gRPC itself, not to the metadata of a call.
fn is_reserved(name: &str) -> bool {
    matches!(name, "content-type" | "te" | "grpc-timeout" | "grpc-encoding" | "grpc-status" | "grpc-message")
}

fn percent_decoded(text: &[u8]) -> String {
    let mut decoded = Vec::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        let pair = text.get(at + 1..at + 3).filter(|_| text[at] == b'%');
        let byte =
            pair.and_then(|pair| std::str::from_utf8(pair).ok()).and_then(|hex| u8::from_str_radix(hex, 16).ok());
        decoded.push(byte.unwrap_or(text[at]));
        at += if byte.is_some() { 3 } else { 1 };
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_have_at_most_eight_digits() {
        let shown = |timeout| timeout_value(timeout).to_str().unwrap().to_owned();
        assert_eq!(shown(Duration::from_nanos(1)), "1u");
        assert_eq!(shown(Duration::from_secs(5)), "5000000u");
        assert_eq!(shown(Duration::from_secs(100)), "100000m");
        assert_eq!(shown(Duration::from_secs(1_000_000)), "1000000S");
        assert_eq!(shown(Duration::from_secs(u64::MAX)), "99999999S");
    }

    #[test]
    fn texts_are_decoded_as_far_as_they_are_encoded() {
        assert_eq!(percent_decoded(b"50%25 of %C3%A4, %zz, %2"), "50% of \u{e4}, %zz, %2");
    }
}
