//! The loop that serves one connection.
//!
//! A connection is one task: read a message, call the service, write the reply. A small request
//! costs one `read` and one `write`: the reader asks for more only when it has no whole message,
//! and a reply is put together in a buffer that the connection keeps. Requests that were sent
//! ahead wait in the reader's buffer and are served in order.

use std::io::ErrorKind;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use banyan_process::TlsMode;
use bson::RawDocumentBuf;
use bytes::{Buf, Bytes};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio_util::task::TaskTracker;
use tracing::{debug, info, warn};

use crate::busy_poll::BusyPoll;
use crate::compression::Compressor;
use crate::connection::Connection;
use crate::frame::{Bounds, FrameError, FrameReader, MESSAGE_BYTES_MAX};
use crate::in_flight::{InFlight, Share};
use crate::last_error::{self, Question};
use crate::message::{self, DecodeError, Incoming, ReplyForm};
use crate::places::Others;
use crate::presence::Presence;
use crate::request::Request;
use crate::service::{Counters, Reply, Service};
use crate::socket::Socket;
use crate::tls::{self, Encryption};
use crate::{exhaust, hello, legacy, login};

const SILENT: &str = "the client neither logs in nor says anything else";
/// A reply buffer that a large reply left behind is given back above this size.
const REPLY_BYTES_KEPT: usize = 64 * 1024;
/// And above this one while nothing happens.
const REPLY_BYTES_KEPT_QUIET: usize = 1024;
/// A reply from this size on is sent from where it was written, behind a head of its own.
const REPLY_BYTES_COPIED_MAX: usize = 64 * 1024;
/// To check or compress more than this takes longer than to hand the other connections over.
const BYTES_AT_ONCE: usize = 256 * 1024;

/// One connection's loop. Telling the service that it ended, and counting it out, happens in
/// `Drop`, so that it happens after a panic as well.
pub(crate) struct Serving<S: Service> {
    service: Arc<S>,
    connection: Arc<Connection>,
    counters: Arc<Counters>,
    presence: Arc<Presence>,
    socket: Arc<Socket>,
    encryption: Option<Encryption>,
    /// What all connections that are served alike may keep of messages.
    in_flight: InFlight,
}

impl<S: Service> Drop for Serving<S> {
    fn drop(&mut self) {
        self.presence.leave(self.connection.id);
        self.connection.closed().cancel();
        self.counters.current.fetch_sub(1, Ordering::Relaxed);
        self.service.closed(&self.connection);
    }
}

/// What has been read of a connection.
#[derive(Default)]
struct Reading {
    frames: FrameReader,
    /// A message that was read and not answered.
    next: Option<(Bytes, Share)>,
    /// Not while it arrives.
    busy_poll: Option<BusyPoll>,
}

/// Why a connection is not served any longer where it was.
enum End {
    Closed,
    /// It carries a command that belongs elsewhere.
    Moves(Stay),
}

/// What a connection carries where it is served.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stay {
    Logins,
    Vital,
    Ordinary,
}

impl<S: Service> Serving<S> {
    pub fn new(
        service: Arc<S>,
        connection: Arc<Connection>,
        counters: Arc<Counters>,
        presence: Arc<Presence>,
        stream: TcpStream,
        encryption: Option<Encryption>,
        in_flight: InFlight,
    ) -> Serving<S> {
        counters.current.fetch_add(1, Ordering::Relaxed);
        let socket = Arc::new(Socket::new(stream));
        presence.enter(&connection, &socket);
        Serving {
            service,
            connection,
            counters,
            presence,
            socket,
            encryption,
            in_flight,
        }
    }

    /// The whole life of a connection, first where it was accepted; without `others` to its end.
    pub async fn run(self, others: Option<Others>, connections: TaskTracker) {
        let mut reading = Reading::default();
        let begun = tokio::select! {
            biased;
            begun = self.begin(&mut reading) => begun,
            () = self.connection.closed().cancelled() => Ok(false),
        };
        match (begun, others) {
            (Ok(true), Some(others)) => {
                self.go_on(Stay::Logins, reading, others, connections).await;
            }
            (Ok(true), None) => {
                let ended = self.converse(&mut reading, Stay::Ordinary).await;
                self.tell(ended);
            }
            (Ok(false), _) => self.tell(Ok(End::Closed)),
            (Err(reason), _) => self.tell(Err(reason)),
        }
    }

    /// Serves a connection here and then where it belongs.
    fn go_on(
        mut self,
        stay: Stay,
        mut reading: Reading,
        others: Others,
        connections: TaskTracker,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            let to = match self.converse(&mut reading, stay).await {
                Ok(End::Moves(to)) => to,
                ended => return self.tell(ended),
            };
            let place = match to {
                Stay::Ordinary => &others.ordinary,
                Stay::Vital | Stay::Logins => &others.vital,
            };
            if let Err(error) = self.socket.move_to(&place.runtime) {
                return self.tell(Err(error.to_string()));
            }
            if to == Stay::Ordinary {
                self.in_flight = place.in_flight.clone();
                if let Err(reason) = self.take_along(&mut reading).await {
                    return self.tell(Err(reason));
                }
            }
            let requesters = place.requesters.clone();
            reading.busy_poll = Some(BusyPoll::new(requesters, self.connection.id));
            let runtime = place.runtime.clone();
            let rest = self.go_on(to, reading, others, connections.clone());
            connections.spawn_on(rest, &runtime);
        })
    }

    /// A message that came with the connection is one of those here from now on.
    async fn take_along(&self, reading: &mut Reading) -> Result<(), String> {
        if let Some((frame, share)) = &mut reading.next
            && !share.is_empty()
        {
            let mut here = Share::default();
            let grown = here.grow_to(frame.len(), &self.in_flight).await;
            grown.map_err(|_| FrameError::NoRoom.to_string())?;
            *share = here;
        }
        Ok(())
    }

    /// Shakes hands with a client that wants to, and ends with one that has to and does not;
    /// `false`: it has left.
    async fn begin(&self, reading: &mut Reading) -> Result<bool, String> {
        let requires = |tls: &Encryption| tls.tls.mode() == TlsMode::Require;
        let required = self.encryption.as_ref().is_some_and(requires);
        self.first_bytes(reading, required).await?;
        let first = reading.frames.unread();
        if first.is_empty() {
            return Ok(false);
        }
        match &self.encryption {
            Some(Encryption { tls, patience }) if tls::begins_handshake(first) => {
                let first = reading.frames.take_unread();
                let peer = self.socket.encrypt(tls, &first, *patience).await;
                self.connection
                    .encrypted(peer.map_err(|error| error.to_string())?);
                Ok(true)
            }
            Some(_) if required => {
                Err("The server is configured to only allow SSL connections".to_owned())
            }
            None if tls::begins_handshake(first) => {
                Err("SSL handshake received but server is started without SSL support".to_owned())
            }
            _ => Ok(true),
        }
    }

    /// Reads enough to tell a handshake from a message; nothing if the client leaves.
    async fn first_bytes(&self, reading: &mut Reading, required: bool) -> Result<(), String> {
        const NO_HANDSHAKE: &str = "the TLS handshake never began";
        let patience = self.encryption.as_ref().map(|tls| tls.patience);
        let mut nothing = Vec::new();
        let first = self.something(reading, &mut nothing);
        match patience.filter(|_| required) {
            Some(patience) => in_time(Some(patience), NO_HANDSHAKE, first).await?,
            // Who may speak in the clear may be silent, as long as nobody has to log in.
            None => {
                let limits = self.service.stranger_limits(&self.connection);
                let patience = limits.map(|limits| limits.message_time_max);
                in_time(patience, SILENT, first).await?;
            }
        }
        if tls::may_begin_handshake(reading.frames.unread()) {
            let mut stream = &*self.socket;
            let more = reading.frames.fill(&mut stream, tls::TELLING_BYTES);
            in_time(patience, NO_HANDSHAKE, more).await?;
        }
        Ok(())
    }

    fn tell(&self, ended: Result<End, String>) {
        let connection = self.connection.id;
        match ended {
            Ok(_) => debug!(connection, "connection ended"),
            Err(reason) => {
                info!(connection, peer = %self.connection.peer, "connection ended: {reason}")
            }
        }
    }

    /// Answers what comes in, until something comes that belongs elsewhere.
    async fn converse(&self, reading: &mut Reading, stay: Stay) -> Result<End, String> {
        let mut out = Vec::new();
        let mut stop = pin!(self.connection.closed().cancelled());
        loop {
            let (frame, mut share) = match reading.next.take() {
                Some(next) => next,
                None => {
                    let next = tokio::select! {
                        biased;
                        next = self.next(reading, &mut out) => next?,
                        () = &mut stop => return Ok(End::Closed),
                    };
                    match next {
                        Some(next) => next,
                        None => return Ok(End::Closed),
                    }
                }
            };
            if let Some(busy_poll) = &reading.busy_poll {
                busy_poll.note();
            }
            let belongs = self.belongs(&frame, stay);
            if belongs != stay {
                reading.next = Some((frame, share));
                return Ok(End::Moves(belongs));
            }
            self.make_room(&frame, &mut share).await?;
            // What it takes to answer is larger than all the rest, and a quiet connection does without.
            let awaited = Box::pin(self.take(frame, &mut out)).await?;
            drop(share);
            if let Some(busy_poll) = &mut reading.busy_poll {
                busy_poll.done(awaited);
            }
            if self.connection.closed().is_cancelled() || self.connection.left().is_cancelled() {
                return Ok(End::Closed);
            }
        }
    }

    /// Where a message is to be answered. Nobody moves back: a connection that has carried a query
    /// will do so again.
    fn belongs(&self, frame: &[u8], stay: Stay) -> Stay {
        if stay == Stay::Ordinary {
            return stay;
        }
        let Some(name) = message::peek_name(frame) else {
            return Stay::Ordinary;
        };
        // Who says hello again is a monitor or a member.
        let is_new = self.connection.requests() == 0;
        let arrives = login::is_step(name) || (is_new && hello::is_hello(name));
        match self.service.is_vital(name) {
            _ if stay == Stay::Logins && arrives => stay,
            true => Stay::Vital,
            false => Stay::Ordinary,
        }
    }

    /// The next message; `None`: the client has left.
    async fn next(
        &self,
        reading: &mut Reading,
        out: &mut Vec<u8>,
    ) -> Result<Option<(Bytes, Share)>, String> {
        let limits = self.service.stranger_limits(&self.connection);
        let patience = limits.map(|limits| match self.connection.requests() {
            0 => limits.message_time_max,
            _ => limits.idle_time_max,
        });
        in_time(patience, SILENT, self.something(reading, out)).await?;
        let bounds = Bounds {
            bytes_max: limits.map(|limits| limits.message_bytes_max),
            in_flight: Some(&self.in_flight),
        };
        let mut stream = &*self.socket;
        let next = reading.frames.next_within(&mut stream, bounds);
        in_time(limits.map(|limits| limits.message_time_max), SILENT, next).await
    }

    /// Waits for a message to begin, or the connection to end. Thousands of connections wait here,
    /// and keep no buffers meanwhile.
    async fn something(&self, reading: &mut Reading, out: &mut Vec<u8>) -> Result<(), FrameError> {
        let frames = &mut reading.frames;
        if !frames.unread().is_empty() {
            return Ok(());
        }
        if let Some(busy_poll) = &mut reading.busy_poll {
            let mut filled = None;
            let arrives = busy_poll.poll(|| match frames.fill_directly(&self.socket) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => false,
                result => {
                    filled = Some(result);
                    true
                }
            });
            if arrives.await
                && let Some(filled) = filled
            {
                // It will be looked at again.
                self.socket.unregister()?;
                return Ok(filled?);
            }
        }
        let filled = std::future::poll_fn(|cx| {
            let filled = match self.socket.poll_readable(cx) {
                // It may be a false alarm.
                Poll::Ready(()) => frames.poll_fill(&mut &*self.socket, cx),
                Poll::Pending => Poll::Pending,
            };
            if filled.is_pending() {
                frames.release();
                if out.capacity() > REPLY_BYTES_KEPT_QUIET {
                    *out = Vec::new();
                }
            }
            filled
        });
        Ok(filled.await?)
    }

    /// What a compressed message comes to is held to the same.
    async fn make_room(&self, frame: &Bytes, share: &mut Share) -> Result<(), String> {
        let plain = message::plain_size(frame);
        if plain == frame.len() {
            return Ok(());
        }
        if let Some(limits) = self.service.stranger_limits(&self.connection)
            && plain > limits.message_bytes_max
        {
            let (bytes, most) = (plain, limits.message_bytes_max);
            return Err(FrameError::Stranger { bytes, most }.to_string());
        }
        // One that says too much is refused when it is read.
        if plain > BYTES_AT_ONCE && plain <= MESSAGE_BYTES_MAX {
            let both = frame.len() + plain;
            let grown = share.grow_to(both, &self.in_flight).await;
            grown.map_err(|_| FrameError::NoRoom.to_string())?;
        }
        Ok(())
    }

    /// Answers a message, if its sender awaits that.
    async fn take(&self, frame: Bytes, out: &mut Vec<u8>) -> Result<bool, String> {
        self.counters.requests.fetch_add(1, Ordering::Relaxed);
        self.counters
            .bytes_in
            .fetch_add(frame.len() as u64, Ordering::Relaxed);
        let size = message::plain_size(&frame);
        match aside(size, || message::decode(frame)) {
            Ok(incoming) => {
                let awaited = incoming.form != ReplyForm::None && !incoming.request.more_to_come;
                self.connection.begin_request(awaited);
                let answered = self.answer(incoming, out).await;
                self.connection.end_request();
                answered.map(|()| awaited)
            }
            Err(DecodeError::Malformed(what)) => Err(format!("malformed: {what}")),
            Err(DecodeError::Refused {
                request_id,
                error,
                form,
            }) => {
                encode(out, form, None, request_id, 0, &error.to_reply());
                self.send(out).await.map(|()| true)
            }
        }
    }

    async fn answer(&self, incoming: Incoming, out: &mut Vec<u8>) -> Result<(), String> {
        let Incoming {
            mut request,
            form,
            compressor,
        } = incoming;
        let mut response_to = request.request_id;
        let may_go_on = matches!(form, ReplyForm::Msg { .. } | ReplyForm::Cursor);
        if !request.exhaust_allowed || !may_go_on {
            let reply = self.call(request).await;
            if self.connection.is_hung_up() {
                return Ok(());
            }
            let is_plain = form == ReplyForm::Msg { checksum: false } && compressor.is_none();
            if is_plain && reply.body.as_bytes().len() >= REPLY_BYTES_COPIED_MAX {
                message::encode_msg_head(out, next_id(), response_to, &reply.body);
                return self.send_with(out, reply.body.as_bytes()).await;
            }
            encode(out, form, compressor, response_to, 0, &reply.body);
            drop(reply);
            return self.send(out).await;
        }
        loop {
            let (again, started) = (request.clone(), Instant::now());
            let reply = tokio::select! {
                biased;
                reply = self.call(request) => reply,
                () = self.socket.ended() => return Ok(()),
            };
            if self.connection.is_hung_up() {
                return Ok(());
            }
            let next = exhaust::next(again, &reply.body, started.elapsed())
                .filter(|_| !self.connection.closed().is_cancelled());
            let flags = next.as_ref().map_or(0, |_| message::FLAG_MORE_TO_COME);
            let sent = encode(out, form, compressor, response_to, flags, &reply.body);
            drop(reply);
            self.send(out).await?;
            match next {
                Some(next) => request = next,
                None => return Ok(()),
            }
            // Each reply of a stream answers the one before it.
            response_to = sent;
        }
    }

    /// The service's answer, and around it what belongs to the connection itself.
    async fn call(&self, request: Request) -> Reply {
        if let Some(question) = Question::of(&request.name) {
            return self.last_error(question, request).await;
        }
        let greeting =
            hello::is_hello(&request.name).then(|| hello::greet(&self.connection, &request));
        let write = last_error::Write::of(&request.name);
        let mut reply = self.service.call(&self.connection, request).await;
        if let Some(compressors) = greeting {
            hello::answer(&self.connection, compressors, &mut reply.body);
        }
        if let Some(write) = write {
            self.connection
                .record_write(last_error::outcome(write, &reply.body));
        }
        reply
    }

    /// `getLastError`: from the connection's record, after the service has waited for the write
    /// concern if that asks for more than a write gives by itself.
    async fn last_error(&self, question: Question, request: Request) -> Reply {
        let connection = &self.connection;
        match question {
            Question::LastError => {}
            Question::PreviousError => return last_error::previous_reply(connection).into(),
            Question::Reset => {
                connection.forget_writes();
                return bson::rawdoc! {"ok": 1.0}.into();
            }
        }
        let write = connection.last_write();
        let waiting = match &write.error {
            None => last_error::wait(request),
            Some(_) => None,
        };
        let Some(wait) = waiting else {
            return last_error::reply(&write, connection.id).into();
        };
        let waited = self.service.call(connection, wait).await.body;
        last_error::after_wait(&write, connection.id, &waited).into()
    }

    async fn send(&self, out: &mut Vec<u8>) -> Result<(), String> {
        if !out.is_empty() {
            let mut stream = &*self.socket;
            let mut sent = stream.write_all(out).await;
            // In the clear nothing is kept back.
            if sent.is_ok() && self.connection.tls().is_some() {
                sent = stream.flush().await;
            }
            sent.map_err(|error| error.to_string())?;
            self.counters
                .bytes_out
                .fetch_add(out.len() as u64, Ordering::Relaxed);
            out.clear();
            out.shrink_to(REPLY_BYTES_KEPT);
        }
        Ok(())
    }

    /// Sends what is encoded and then a body that is not copied behind it.
    async fn send_with(&self, out: &mut Vec<u8>, body: &[u8]) -> Result<(), String> {
        let mut stream = &*self.socket;
        let length = out.len() + body.len();
        let sent = stream.write_all_buf(&mut out.as_slice().chain(body)).await;
        sent.map_err(|error| error.to_string())?;
        let flushed = stream.flush().await;
        flushed.map_err(|error| error.to_string())?;
        let counters = &self.counters;
        counters
            .bytes_out
            .fetch_add(length as u64, Ordering::Relaxed);
        out.clear();
        Ok(())
    }
}

/// That of the next reply.
fn next_id() -> i32 {
    static IDS: AtomicI32 = AtomicI32::new(1);
    IDS.fetch_add(1, Ordering::Relaxed)
}

async fn in_time<T>(
    patience: Option<Duration>,
    late: &str,
    reading: impl Future<Output = Result<T, FrameError>>,
) -> Result<T, String> {
    let read = match patience {
        None => reading.await,
        Some(patience) => match tokio::time::timeout(patience, reading).await {
            Ok(read) => read,
            Err(_) => return Err(late.to_owned()),
        },
    };
    read.map_err(|error| error.to_string())
}

/// Appends a reply in the form that its request asks for, and returns the reply's own id.
fn encode(
    out: &mut Vec<u8>,
    form: ReplyForm,
    compressor: Option<Compressor>,
    response_to: i32,
    flags: u32,
    reply: &RawDocumentBuf,
) -> i32 {
    let id = next_id();
    let start = out.len();
    match form {
        ReplyForm::Msg { checksum } => {
            let flags = flags | if checksum { message::FLAG_CHECKSUM } else { 0 };
            message::encode_msg(out, id, response_to, flags, reply);
        }
        ReplyForm::Command => legacy::encode_command_reply(out, id, response_to, reply),
        ReplyForm::Explained => legacy::encode_explained_reply(out, id, response_to, reply),
        ReplyForm::Cursor => legacy::encode_cursor_reply(out, id, response_to, reply),
        ReplyForm::Namespaces => {
            let listed = legacy::as_namespaces(reply);
            legacy::encode_cursor_reply(out, id, response_to, &listed);
        }
        ReplyForm::Indexes => {
            let listed = legacy::as_indexes(reply);
            legacy::encode_cursor_reply(out, id, response_to, &listed);
        }
        ReplyForm::None => return id,
    }
    if let Some(compressor) = compressor
        && let Err(error) = aside(out.len() - start, || {
            message::compress_in_place(out, start, compressor)
        })
    {
        // Only a compressor out of memory ends here; the client then sees the connection end.
        warn!("cannot compress a reply: {error}");
        out.truncate(start);
    }
    id
}

/// Runs work on so many bytes where it holds nobody up.
fn aside<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    let handed_over =
        bytes > BYTES_AT_ONCE && Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread;
    if handed_over {
        tokio::task::block_in_place(work)
    } else {
        work()
    }
}
