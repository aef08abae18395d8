//! Listeners and their connections: limits, handshakes, keepalive, drain.
use crate::call;
use crate::gate::{Answer, Gate, Gated};
use crate::hub::{Event, Hub, Peer, Phase, Place, Vital, HANDED_MAX};
use crate::tls::{Identity, Tls};
use h2::server::Connection;
use h2::Ping;
use socket2::{SockRef, TcpKeepalive};
use std::future::{poll_fn, Future};
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

/// Bytes of a stream's requests that a client may send before the handler takes them, as in `within.Flow`.
const STREAM_WINDOW_BYTES: u32 = 512 * 1024;
/// Streams limit themselves: the connection's window only has to be larger than those of many waiting ones.
const CONNECTION_WINDOW_BYTES: u32 = 64 * 1024 * 1024;
/// A partly received frame stays in memory until its connection ends, even if its call was rejected.
const FRAME_BYTES_MAX: u32 = 64 * 1024;
/// Answers of one stream in HTTP/2's buffers.
const SEND_BUFFER_BYTES: usize = 128 * 1024;
/// Resets that a client may send before its streams are accepted. The default, 20, ends connections of clients that
/// cancel a batch of calls at once.
const PENDING_RESETS_MAX: usize = 1_024;
const HANDSHAKE: Duration = Duration::from_secs(5);
const KEEPALIVE: Duration = Duration::from_secs(30);
const KEEPALIVE_ANSWER: Duration = Duration::from_secs(20);
/// The kernel's probes after this time without a call: a client that answers no pings between two calls may stay.
const PROBE_EVERY: Duration = Duration::from_secs(5);
const PROBES: u32 = 4;
/// Time for the last bytes of answers when the front closes.
const LAST_BYTES: Duration = Duration::from_secs(1);
/// Pause after a failed accept: descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Accepts connections until the front drains.
pub async fn listen(hub: Rc<Hub>, listener: TcpListener, tls: Option<Arc<Tls>>) {
    let _vital = Vital;
    let mut phase = hub.phase.clone();
    loop {
        tokio::select! {
            _ = phase.wait_for(|phase| *phase != Phase::Serving) => return,
            accepted = listener.accept() => match accepted {
                Err(_) => sleep(ACCEPT_PAUSE).await,
                // Closes a socket above the limit.
                Ok(_) if hub.connections.get() >= hub.limits.connections_max => {}
                Ok((socket, address)) => {
                    hub.connections.set(hub.connections.get() + 1);
                    tokio::task::spawn_local(connect(hub.clone(), socket, address, tls.clone()));
                }
            }
        }
    }
}

/// Counts a connection.
struct Counted(Rc<Hub>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.connections.set(self.0.connections.get() - 1);
        self.0.ended.notify_one();
    }
}

async fn connect(hub: Rc<Hub>, socket: TcpStream, address: SocketAddr, tls: Option<Arc<Tls>>) {
    let _counted = Counted(hub.clone());
    let phase = hub.phase.clone();
    tokio::select! {
        () = closing(phase) => {}
        () = open(hub, socket, address, tls) => {}
    }
}

async fn open(hub: Rc<Hub>, socket: TcpStream, address: SocketAddr, tls: Option<Arc<Tls>>) {
    let _ = socket.set_nodelay(true);
    let probes = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(PROBE_EVERY).with_retries(PROBES);
    let _ = SockRef::from(&socket).set_tcp_keepalive(&probes);
    let Some(tls) = tls else {
        serve(hub, socket, Peer::new(address, false, None)).await;
        return;
    };
    let secured = timeout(HANDSHAKE, secure(&hub, socket, tls)).await;
    let Ok(Some(stream)) = secured else { return };
    let certificates = stream.get_ref().1.peer_certificates();
    let identity = certificates.and_then(|chain| chain.first()).map(Identity::of);
    serve(hub, stream, Peer::new(address, true, identity)).await;
}

async fn secure(hub: &Hub, socket: TcpStream, tls: Arc<Tls>) -> Option<tokio_rustls::server::TlsStream<TcpStream>> {
    // On another thread, because it takes the GIL.
    let (config, fault) = tokio::task::spawn_blocking(move || tls.current()).await.ok()?;
    if let Some(text) = fault {
        hub.post(Event::Fault { text });
    }
    tokio_rustls::TlsAcceptor::from(config).accept(socket).await.ok()
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin>(hub: Rc<Hub>, stream: S, peer: Peer) {
    let mut builder = h2::server::Builder::new();
    builder
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES_MAX)
        .max_send_buffer_size(SEND_BUFFER_BYTES)
        .max_concurrent_streams(hub.limits.streams_max)
        .max_pending_accept_reset_streams(PENDING_RESETS_MAX)
        // Up to this size a call above the limit gets a status.
        .max_header_list_size(2 * hub.limits.metadata_bytes_max as u32);
    let gate = Rc::new(Gate::new(hub.shared.clone()));
    let stream = Gated { stream, gate: gate.clone() };
    let Ok(Ok(mut connection)) = timeout(HANDSHAKE, builder.handshake::<_, Answer>(stream)).await else { return };
    let pings = connection.ping_pong().expect("the first use");
    let mut alive = std::pin::pin!(keep_alive(pings, gate.clone()));
    let mut phase = hub.phase.clone();
    let peer = Arc::new(peer);
    loop {
        tokio::select! {
            _ = &mut alive => return,
            _ = phase.wait_for(|phase| *phase != Phase::Serving) => break,
            accepted = connection.accept() => {
                let Some(Ok((request, respond))) = accepted else { return };
                gate.note_call();
                let Some(place) = place(&hub, &gate, &mut connection, alive.as_mut()).await else { return };
                call::serve(&hub, peer.clone(), &gate, request, respond, place);
                if hub.places.available_permits() < HANDED_MAX / 2 {
                    // Others take turns with this connection.
                    tokio::task::yield_now().await;
                }
            }
        }
    }
    connection.graceful_shutdown();
    tokio::select! {
        _ = &mut alive => {}
        () = drained(&mut connection) => {}
    }
}

/// Waits until the call can be handed to Python. Meanwhile the connection writes, and reads nothing: calls of others
/// come before its next. None: it has ended.
async fn place<S: AsyncRead + AsyncWrite + Unpin>(
    hub: &Hub,
    gate: &Gate,
    connection: &mut Connection<S, Answer>,
    alive: Pin<&mut impl Future<Output = ()>>,
) -> Option<Place> {
    if let Ok(place) = hub.places.clone().try_acquire_owned() {
        return Some(place);
    }
    gate.wait(true);
    let place = tokio::select! {
        place = hub.places.clone().acquire_owned() => place.ok(),
        _ = poll_fn(|cx| connection.poll_closed(cx)) => None,
        () = alive => None,
    };
    gate.wait(false);
    place
}

/// Rejects new calls until all others have ended.
async fn drained<S: AsyncRead + AsyncWrite + Unpin>(connection: &mut Connection<S, Answer>) {
    while let Some(Ok((_, mut respond))) = connection.accept().await {
        respond.send_reset(h2::Reason::REFUSED_STREAM);
    }
}

/// Returns when a connection must end.
async fn closing(mut phase: tokio::sync::watch::Receiver<Phase>) {
    let _ = phase.wait_for(|phase| *phase == Phase::Closing).await;
    sleep(LAST_BYTES).await;
}

/// Returns when the peer of a running call leaves a ping unanswered.
async fn keep_alive(mut pings: h2::PingPong, gate: Rc<Gate>) {
    loop {
        sleep(KEEPALIVE).await;
        if gate.is_idle() {
            continue;
        }
        gate.take_held_back();
        if pings.send_ping(Ping::opaque()).is_err() {
            return;
        }
        loop {
            match timeout(KEEPALIVE_ANSWER, poll_fn(|cx| pings.poll_pong(cx))).await {
                Ok(Ok(_)) => break,
                // The answer may be among the unread bytes.
                Err(_) if gate.take_held_back() => {}
                _ => return,
            }
        }
    }
}
