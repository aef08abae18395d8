//! One call on one stream: reads its requests as far as Python has room for them, and writes its answers as far as the
//! client has.
use crate::gate::{Answer, Gate, Running};
use crate::hub::{Command, Event, Hub, Peer, Place};
use crate::wire::{self, Assembler, Encoding, Failure, Framed};
use bytes::{Buf, Bytes};
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, HeaderValue, Request, Response};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::time::Sleep;

/// Bytes of an incomplete message that are collected before the handler reads.
const PREFETCH_BYTES: usize = 64 * 1024;
/// Messages handed to Python that its handler has not taken yet.
const AHEAD_MAX: u64 = 64;
/// Largest part of an answer passed to HTTP/2 at once.
const PART_BYTES: usize = 64 * 1024;

/// Longest time for which a rejection waits for the first bytes of the request: clients of grpcio lose the status of a
/// stream that ends while they write.
const REQUEST_GRACE: Duration = Duration::from_millis(20);

/// The commands for a running call, and the means to wake its task.
#[derive(Default)]
pub struct Inbox {
    commands: RefCell<VecDeque<Command>>,
    waker: Cell<Option<Waker>>,
}

impl Inbox {
    pub fn put(&self, command: Command) {
        self.commands.borrow_mut().push_back(command);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

type Expanding = tokio::task::JoinHandle<Result<Bytes, Failure>>;

struct Finish {
    trailers: HeaderMap,
    code: u32,
    cut: bool,
}

pub struct Call {
    number: u64,
    hub: Rc<Hub>,
    inbox: Rc<Inbox>,
    /// Headers of the request until the call is announced.
    begun: Option<(Arc<Peer>, String, HeaderMap, Place)>,
    // Requests.
    body: RecvStream,
    assembler: Assembler,
    encoding: Encoding,
    expanding: Option<Expanding>,
    messages: Vec<Bytes>,
    unreleased: usize,
    /// Messages handed to Python, and those that the handler has taken of them as far as is known.
    delivered: u64,
    taken: u64,
    wanted: bool,
    has_data: bool,
    body_ended: bool,
    // Answers.
    gate: Rc<Gate>,
    _running: Running,
    respond: SendResponse<Answer>,
    send: Option<SendStream<Answer>>,
    initial: Option<HeaderMap>,
    queue: VecDeque<(Answer, bool)>,
    /// Whether a part of the first answer in the queue was sent.
    is_partial: bool,
    finish: Option<Finish>,
    grace: Option<Pin<Box<Sleep>>>,
}

/// The outcome of a step.
enum Step {
    Wait,
    Done,
    Lost,
}

pub fn serve(
    hub: &Rc<Hub>,
    peer: Arc<Peer>,
    gate: &Rc<Gate>,
    request: Request<RecvStream>,
    mut respond: SendResponse<Answer>,
    place: Place,
) {
    let (parts, body) = request.into_parts();
    let headers = parts.headers;
    let is_grpc = headers.get("content-type").is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    if parts.method != http::Method::POST || !is_grpc {
        let mut response = Response::new(());
        *response.status_mut() =
            if is_grpc { http::StatusCode::METHOD_NOT_ALLOWED } else { http::StatusCode::UNSUPPORTED_MEDIA_TYPE };
        let _ = respond.send_response(response, true);
        return;
    }
    let path = parts.uri.path().to_owned();
    let size = wire::list_bytes(&path, &headers);
    let most = hub.limits.metadata_bytes_max;
    let encoding = if size > most {
        let text = format!("received metadata size exceeds hard limit ({size} vs. {most})");
        Err(Failure::new(wire::RESOURCE_EXHAUSTED, text))
    } else {
        gate.check().and_then(|()| Encoding::of(&headers))
    };
    let encoding = match encoding {
        Ok(encoding) => encoding,
        Err(failure) => {
            let _ = respond.send_response(trailers_only(wire::status(&failure)), true);
            return;
        }
    };
    let (number, inbox) = hub.open();
    let call = Call {
        number,
        hub: hub.clone(),
        inbox,
        begun: Some((peer, path, headers, place)),
        body,
        assembler: Assembler::new(hub.limits.message_bytes_max),
        encoding,
        expanding: None,
        messages: Vec::new(),
        unreleased: 0,
        delivered: 0,
        taken: 0,
        wanted: false,
        has_data: false,
        body_ended: false,
        gate: gate.clone(),
        _running: Running::new(gate.clone()),
        respond,
        send: None,
        initial: None,
        queue: VecDeque::new(),
        is_partial: false,
        finish: None,
        grace: None,
    };
    tokio::task::spawn_local(call);
}

fn trailers_only(trailers: HeaderMap) -> Response<()> {
    let mut response = Response::new(());
    *response.headers_mut() = trailers;
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    response
}

impl Call {
    fn take_commands(&mut self) {
        let mut commands = self.inbox.commands.borrow_mut();
        while let Some(command) = commands.pop_front() {
            match command {
                Command::Begin(metadata) => self.initial = Some(metadata),
                Command::Message(data, report) => self.queue.push_back((Answer::new(data, self.gate.clone()), report)),
                // Ignores a wait that has ended meanwhile: a message read ahead would be measured by nobody.
                Command::Read(taken) => {
                    self.taken = taken;
                    self.wanted |= taken == self.delivered;
                }
                Command::Release(size, taken) => {
                    self.taken = taken;
                    let size = size.min(self.unreleased);
                    self.unreleased -= size;
                    let _ = self.body.flow_control().release_capacity(size);
                }
                Command::Finish { trailers, code, cut } => self.finish = Some(Finish { trailers, code, cut }),
            }
        }
    }

    fn release_all(&mut self) {
        let size = std::mem::take(&mut self.unreleased);
        if size > 0 {
            let _ = self.body.flow_control().release_capacity(size);
        }
    }

    /// Reads while the handler waits for a message, or less than the first part of one is here.
    fn read(&mut self, cx: &mut Context<'_>) -> Result<Step, Failure> {
        loop {
            self.unpack(cx)?;
            if self.expanding.is_some() || self.body_ended || self.is_ahead() {
                return Ok(Step::Wait);
            }
            if self.wanted {
                self.release_all();
            } else if self.assembler.held() >= PREFETCH_BYTES {
                return Ok(Step::Wait);
            }
            match self.body.poll_data(cx) {
                Poll::Pending => return Ok(Step::Wait),
                Poll::Ready(Some(Err(_))) => return Ok(Step::Lost),
                Poll::Ready(Some(Ok(data))) => {
                    self.unreleased += data.len();
                    self.has_data = true;
                    self.assembler.push(data);
                    self.body_ended = self.body.is_end_stream();
                }
                Poll::Ready(None) => self.body_ended = true,
            }
            if self.body_ended {
                self.release_all();
            }
        }
    }

    /// Cuts messages for Python, decompressed, while its handler is not far behind.
    fn unpack(&mut self, cx: &mut Context<'_>) -> Result<(), Failure> {
        loop {
            if let Some(expanding) = &mut self.expanding {
                let Poll::Ready(expanded) = Pin::new(expanding).poll(cx) else { return Ok(()) };
                self.expanding = None;
                let data = expanded.unwrap_or_else(|error| Err(Failure::new(wire::INTERNAL, error.to_string())))?;
                self.deliver(data);
            }
            if self.is_ahead() {
                return Ok(());
            }
            let Some(Framed { compressed, data }) = self.assembler.cut()? else {
                if self.body_ended && self.assembler.held() > 0 {
                    return Err(Failure::new(wire::INTERNAL, "the request ended within a message"));
                }
                return Ok(());
            };
            if compressed {
                let (encoding, most) = (self.encoding, self.hub.limits.message_bytes_max);
                self.expanding = Some(tokio::task::spawn_blocking(move || wire::expand(encoding, &data, most)));
            } else {
                self.deliver(data);
            }
        }
    }

    fn is_ahead(&self) -> bool {
        self.delivered - self.taken >= AHEAD_MAX
    }

    fn deliver(&mut self, data: Bytes) {
        self.wanted = false;
        self.delivered += 1;
        self.messages.push(data);
    }

    fn is_read(&self) -> bool {
        self.body_ended && self.assembler.held() == 0 && self.expanding.is_none()
    }

    /// Hands the call, or its new messages, to Python.
    fn post(&mut self, was_read: bool) {
        let (number, ended) = (self.number, self.is_read());
        if let Some((peer, path, headers, place)) = self.begun.take() {
            let messages = std::mem::take(&mut self.messages);
            self.hub.post(Event::Call { number, peer, path, headers, messages, ended, place });
            return;
        }
        for data in self.messages.drain(..) {
            self.hub.post(Event::Message { number, data });
        }
        if ended && !was_read {
            self.hub.post(Event::End { number });
        }
    }

    /// Whether the answer must wait for the first bytes of the request.
    fn is_early(&mut self, cx: &mut Context<'_>) -> bool {
        if self.has_data || self.body_ended || !self.finish.as_ref().is_some_and(|finish| finish.code != wire::OK) {
            return false;
        }
        let grace = self.grace.get_or_insert_with(|| Box::pin(tokio::time::sleep(REQUEST_GRACE)));
        grace.as_mut().poll(cx).is_pending()
    }

    fn write(&mut self, cx: &mut Context<'_>) -> Step {
        if self.is_early(cx) {
            return self.watch(cx);
        }
        if self.finish.as_ref().is_some_and(|finish| finish.cut) && !self.is_partial {
            self.queue.clear();
        }
        if self.send.is_none() {
            let Some(ready) = self.head() else { return self.watch(cx) };
            match ready {
                Ok(send) => self.send = Some(send),
                Err(step) => return step,
            }
        }
        let send = self.send.as_mut().expect("the head is sent");
        if self.finish.as_ref().is_some_and(|finish| finish.cut) && !self.queue.is_empty() {
            let exhausted = self.finish.as_ref().is_some_and(|finish| finish.code == wire::RESOURCE_EXHAUSTED);
            send.send_reset(if exhausted { Reason::ENHANCE_YOUR_CALM } else { Reason::CANCEL });
            return Step::Done;
        }
        while let Some((data, report)) = self.queue.front_mut() {
            // A small last answer goes without asking for capacity: its stream is limited by the number of streams.
            let last = data.remaining() <= PART_BYTES && self.finish.is_some();
            if !last {
                send.reserve_capacity(data.remaining().min(PART_BYTES));
                if send.capacity() == 0 {
                    match send.poll_capacity(cx) {
                        Poll::Pending => return self.watch(cx),
                        Poll::Ready(Some(Ok(_))) => {}
                        Poll::Ready(_) => return Step::Lost,
                    }
                }
            }
            let size = if last { data.remaining() } else { send.capacity().min(data.remaining()) };
            if send.send_data(data.split_to(size), false).is_err() {
                return Step::Lost;
            }
            self.is_partial = data.has_remaining();
            if !self.is_partial {
                if *report {
                    self.hub.post(Event::Taken { number: self.number });
                }
                self.queue.pop_front();
            }
        }
        let Some(finish) = self.finish.take() else { return self.watch(cx) };
        if send.send_trailers(finish.trailers).is_ok() {
            Step::Done
        } else {
            Step::Lost
        }
    }

    /// Sends the headers of the answer, if there is anything to send.
    fn head(&mut self) -> Option<Result<SendStream<Answer>, Step>> {
        if self.initial.is_none() && self.queue.is_empty() {
            let finish = self.finish.take()?;
            let sent = self.respond.send_response(trailers_only(finish.trailers), true);
            return Some(Err(if sent.is_ok() { Step::Done } else { Step::Lost }));
        }
        let mut response = Response::new(());
        *response.headers_mut() = self.initial.take().unwrap_or_default();
        response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
        Some(self.respond.send_response(response, false).map_err(|_| Step::Lost))
    }

    /// Notices the loss of the stream.
    fn watch(&mut self, cx: &mut Context<'_>) -> Step {
        let reset = match &mut self.send {
            Some(send) => send.poll_reset(cx),
            None => self.respond.poll_reset(cx),
        };
        if reset.is_ready() {
            Step::Lost
        } else {
            Step::Wait
        }
    }

    /// Answers with a status of the front's own.
    fn fail(&mut self, failure: Failure) {
        if self.begun.take().is_none() {
            self.hub.post(Event::Lost { number: self.number, code: failure.code, text: failure.text.clone() });
        }
        let trailers = wire::status(&failure);
        match self.send.as_mut() {
            None => {
                let _ = self.respond.send_response(trailers_only(trailers), true);
            }
            // Trailers would follow a part of a message.
            Some(send) if self.is_partial => send.send_reset(Reason::CANCEL),
            Some(send) => {
                let _ = send.send_trailers(trailers);
            }
        }
    }
}

impl Future for Call {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let call = &mut *self;
        call.take_commands();
        let was_read = call.begun.is_none() && call.is_read();
        let read = match call.read(cx) {
            Ok(step) => step,
            Err(failure) => {
                call.post(true);
                call.fail(failure);
                return Poll::Ready(());
            }
        };
        if matches!(read, Step::Lost) {
            if call.begun.take().is_none() {
                call.hub.post(Event::Lost { number: call.number, code: wire::CANCELLED, text: String::new() });
            }
            return Poll::Ready(());
        }
        call.post(was_read);
        match call.write(cx) {
            Step::Done => Poll::Ready(()),
            Step::Lost => {
                call.hub.post(Event::Lost { number: call.number, code: wire::CANCELLED, text: String::new() });
                Poll::Ready(())
            }
            Step::Wait => {
                call.inbox.waker.set(Some(cx.waker().clone()));
                Poll::Pending
            }
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.hub.close(self.number);
    }
}
