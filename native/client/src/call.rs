//! One unary call.
use crate::link::{Halt, Link, Opener};
use crate::wire::{self, Failure, PREFIX_BYTES};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use h2::client::SendRequest;
use http::header::CONTENT_TYPE;
use http::{Request, StatusCode};
use std::time::Instant;

/// Makes a call and returns its answer. `link` is the connection of the last call, and then that for the next one. A
/// call that ends without a status leaves none: its connection may be broken without a sign.
pub fn run(
    link: &mut Option<Link>,
    opener: Opener<'_>,
    request: Request<()>,
    data: &[u8],
    deadline: Instant,
    bytes_max: usize,
) -> Result<Bytes, Halt> {
    let open = link.take().and_then(|mut used| used.is_open().then_some(used));
    let mut used = match open {
        Some(open) => open,
        None => opener.open(deadline)?,
    };
    let mut is_answered = false;
    let exchanged = exchange(used.send.clone(), request, frame(data), bytes_max, &mut is_answered);
    let mut found = used.block(deadline, exchanged);
    if is_answered {
        *link = Some(used);
    } else if let Err(Halt::Failed(failure)) = &mut found {
        if failure.code == wire::UNAVAILABLE && opener.tls.is_none() && used.is_silent() {
            // A server with TLS closes connections without it. The SDK knows gRPC's words for it.
            failure.text.push_str("; last error: UNAVAILABLE");
        }
    }
    found
}

/// A message with its prefix.
fn frame(data: &[u8]) -> Bytes {
    let mut framed = BytesMut::with_capacity(PREFIX_BYTES + data.len());
    framed.put_u8(0);
    framed.put_u32(data.len() as u32);
    framed.put_slice(data);
    framed.freeze()
}

/// Sends the request and returns the answer. `is_answered`: set when its status has come.
async fn exchange(
    send: SendRequest<Bytes>,
    request: Request<()>,
    framed: Bytes,
    bytes_max: usize,
    is_answered: &mut bool,
) -> Result<Bytes, Failure> {
    let of_h2 = |error: h2::Error| Failure::of_h2(&error);
    let mut send = send.ready().await.map_err(of_h2)?;
    let (response, mut stream) = send.send_request(request, false).map_err(of_h2)?;
    // The server may reject a request before it has all of it; its status says why.
    let _ = stream.send_data(framed, true);
    let (head, mut body) = response.await.map_err(of_h2)?.into_parts();
    if head.status != StatusCode::OK {
        return Err(Failure::of_http(head.status));
    }
    if let Some(status) = Failure::of(&head.headers) {
        *is_answered = true;
        status?;
        return Err(Failure::new(wire::INTERNAL, "the answer has no message"));
    }
    let kind = head.headers.get(CONTENT_TYPE).map_or(&b""[..], |value| value.as_bytes());
    if !kind.starts_with(b"application/grpc") {
        return Err(Failure::new(wire::UNKNOWN, format!("invalid content-type: {}", String::from_utf8_lossy(kind))));
    }
    let mut received = BytesMut::new();
    while let Some(part) = body.data().await {
        let part = part.map_err(of_h2)?;
        let _ = body.flow_control().release_capacity(part.len());
        received.extend_from_slice(&part);
        check(&received, bytes_max)?;
    }
    let trailers = body.trailers().await.map_err(of_h2)?.unwrap_or_default();
    let Some(status) = Failure::of(&trailers) else {
        return Err(Failure::new(wire::INTERNAL, "the answer has no status"));
    };
    *is_answered = true;
    status?;
    match check(&received, bytes_max)? {
        Some(size) if received.len() == PREFIX_BYTES + size => {
            received.advance(PREFIX_BYTES);
            Ok(received.freeze())
        }
        _ => Err(Failure::new(wire::INTERNAL, "the answer has no message")),
    }
}

/// Returns the size of the message that begins with these bytes, if they show it.
fn check(received: &[u8], bytes_max: usize) -> Result<Option<usize>, Failure> {
    let Some((prefix, rest)) = received.split_first_chunk::<PREFIX_BYTES>() else { return Ok(None) };
    let size = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
    if prefix[0] != 0 {
        return Err(Failure::new(wire::INTERNAL, "the answer is compressed, which was not offered"));
    }
    if size > bytes_max {
        let text = format!("Received message larger than max ({size} vs. {bytes_max})");
        return Err(Failure::new(wire::RESOURCE_EXHAUSTED, text));
    }
    if rest.len() > size {
        return Err(Failure::new(wire::INTERNAL, "the answer has more than one message"));
    }
    Ok(Some(size))
}
