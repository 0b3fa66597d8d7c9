//! The listener and the loop that serves one connection.
//!
//! A connection is one task: read a message, call the service, write the reply. A small request
//! costs one `read` and one `write`: the reader asks for more only when it has no whole message,
//! and a reply is put together in a buffer that the connection keeps. Requests that were sent
//! ahead wait in the reader's buffer and are served in order.
//!
//! The tasks run on tokio's multi-threaded runtime with one worker per core (see
//! [`runtime`]): a command that has to wait for a disk says so with `block_in_place`, and the
//! connections of that worker go on elsewhere. Runtimes pinned to a core each would save some
//! wake-ups, and one slow read would then hold up every connection that shares its core.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bson::RawDocumentBuf;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, info, warn};

use crate::compression::Compressor;
use crate::connection::Connection;
use crate::error::CommandError;
use crate::frame::FrameReader;
use crate::last_error::{self, Question};
use crate::message::{self, DecodeError, Incoming, ReplyForm};
use crate::request::Request;
use crate::{exhaust, hello, legacy};

/// What a server does with requests.
pub trait Service: Send + Sync + 'static {
    fn call(
        self: &Arc<Self>,
        connection: &Arc<Connection>,
        request: Request,
    ) -> impl Future<Output = Reply> + Send;

    /// The connection is gone, whatever the reason.
    fn closed(&self, _connection: &Connection) {}
}

/// The answer to a request.
pub struct Reply {
    pub body: RawDocumentBuf,
}

impl From<RawDocumentBuf> for Reply {
    fn from(body: RawDocumentBuf) -> Reply {
        Reply { body }
    }
}

impl From<Result<RawDocumentBuf, CommandError>> for Reply {
    fn from(outcome: Result<RawDocumentBuf, CommandError>) -> Reply {
        outcome.unwrap_or_else(|error| error.to_reply()).into()
    }
}

#[derive(Clone, Debug)]
pub struct Options {
    pub connections_max: usize,
    /// How long a shutdown waits for commands that are running.
    pub drain: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            connections_max: 20_000,
            drain: Duration::from_secs(5),
        }
    }
}

/// The counts that `serverStatus` shows.
#[derive(Default)]
pub struct Counters {
    pub current: AtomicUsize,
    pub total: AtomicU64,
    pub rejected: AtomicU64,
    pub requests: AtomicU64,
    pub bytes_in: AtomicU64,
    pub bytes_out: AtomicU64,
}

/// Listening sockets, bound and not yet served.
pub struct Server {
    listeners: Vec<TcpListener>,
    options: Options,
    counters: Arc<Counters>,
}

/// How many connections may wait to be accepted.
const BACKLOG: u32 = 1024;
/// A reply buffer that a large reply left behind is given back above this size.
const REPLY_BYTES_KEPT: usize = 64 * 1024;

/// The runtime that the programs serve on.
pub fn runtime() -> io::Result<tokio::runtime::Runtime> {
    let workers = std::thread::available_parallelism()
        .map_or(2, usize::from)
        .max(2);
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        .thread_name("worker")
        .enable_all()
        .build()
}

impl Server {
    /// Binds every host on the port; port 0 takes a free one (see [`Server::addresses`]). Must be
    /// called on a runtime.
    pub async fn bind(hosts: &[&str], port: u16, options: Options) -> io::Result<Server> {
        let mut listeners = Vec::new();
        for host in hosts {
            let addresses = tokio::net::lookup_host((*host, port)).await?;
            let mut addresses: Vec<SocketAddr> = addresses.collect();
            // `localhost` means the IPv4 loopback, as for MongoDB without `--ipv6`.
            if addresses.iter().any(SocketAddr::is_ipv4) {
                addresses.retain(SocketAddr::is_ipv4);
            }
            addresses.sort();
            addresses.dedup();
            for address in addresses {
                listeners.push(listen(address)?);
            }
        }
        Ok(Server {
            listeners,
            options,
            counters: Arc::default(),
        })
    }

    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners
            .iter()
            .filter_map(|listener| listener.local_addr().ok())
            .collect()
    }

    pub fn counters(&self) -> Arc<Counters> {
        self.counters.clone()
    }

    /// Serves until `shutdown` is cancelled and the commands that were running have ended.
    pub async fn serve<S: Service>(self, service: Arc<S>, shutdown: CancellationToken) {
        let connections = TaskTracker::new();
        let accepting = TaskTracker::new();
        let ids = Arc::new(AtomicU64::new(1));
        for listener in self.listeners {
            let acceptor = Acceptor {
                service: service.clone(),
                shutdown: shutdown.clone(),
                connections: connections.clone(),
                ids: ids.clone(),
                options: self.options.clone(),
                counters: self.counters.clone(),
            };
            accepting.spawn(acceptor.run(listener));
        }
        shutdown.cancelled().await;
        accepting.close();
        accepting.wait().await;
        connections.close();
        if tokio::time::timeout(self.options.drain, connections.wait())
            .await
            .is_err()
        {
            warn!("commands are still running after {:?}", self.options.drain);
        }
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let domain = socket2::Domain::for_address(address);
    let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{address}: {error}"));
    socket.bind(&address.into()).map_err(named)?;
    socket.listen(BACKLOG as i32).map_err(named)?;
    TcpListener::from_std(socket.into())
}

struct Acceptor<S> {
    service: Arc<S>,
    shutdown: CancellationToken,
    connections: TaskTracker,
    ids: Arc<AtomicU64>,
    options: Options,
    counters: Arc<Counters>,
}

impl<S: Service> Acceptor<S> {
    async fn run(self, listener: TcpListener) {
        let mut stop = pin!(self.shutdown.clone().cancelled_owned());
        loop {
            let accepted = tokio::select! {
                biased;
                () = &mut stop => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => self.admit(stream, peer),
                Err(error) => {
                    // Out of descriptors, most likely: leave the system a moment to get some back.
                    warn!("cannot accept a connection: {error}");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }

    fn admit(&self, stream: TcpStream, peer: SocketAddr) {
        let open = self.counters.current.load(Ordering::Relaxed);
        if open >= self.options.connections_max {
            self.counters.rejected.fetch_add(1, Ordering::Relaxed);
            warn!("connection from {peer} refused because there are too many: {open}");
            return;
        }
        let Ok(local) = stream.local_addr() else {
            return;
        };
        if let Err(error) = prepare(&stream) {
            debug!("connection from {peer} ended at once: {error}");
            return;
        }
        self.counters.total.fetch_add(1, Ordering::Relaxed);
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        let connection = Connection::new(id, peer, local, self.shutdown.child_token());
        debug!(connection = id, "connection accepted from {peer}");
        let serving = Serving::new(
            self.service.clone(),
            Arc::new(connection),
            self.counters.clone(),
        );
        self.connections.spawn(serving.run(stream));
    }
}

/// Small replies leave at once, and a peer that vanished is noticed in minutes, not hours.
pub(crate) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keepalive = socket2::TcpKeepalive::new()
        .with_time(Duration::from_secs(120))
        .with_interval(Duration::from_secs(30));
    socket2::SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

/// One connection's loop. Telling the service that it ended, and counting it out, happens in
/// `Drop`, so that it happens after a panic as well.
struct Serving<S: Service> {
    service: Arc<S>,
    connection: Arc<Connection>,
    counters: Arc<Counters>,
}

impl<S: Service> Drop for Serving<S> {
    fn drop(&mut self) {
        self.connection.closed().cancel();
        self.counters.current.fetch_sub(1, Ordering::Relaxed);
        self.service.closed(&self.connection);
    }
}

impl<S: Service> Serving<S> {
    fn new(service: Arc<S>, connection: Arc<Connection>, counters: Arc<Counters>) -> Serving<S> {
        counters.current.fetch_add(1, Ordering::Relaxed);
        Serving {
            service,
            connection,
            counters,
        }
    }

    async fn run(self, mut stream: TcpStream) {
        let connection = self.connection.id;
        match self.converse(&mut stream).await {
            Ok(()) => debug!(connection, "connection ended"),
            Err(reason) => {
                info!(connection, peer = %self.connection.peer, "connection ended: {reason}")
            }
        }
    }

    async fn converse(&self, stream: &mut TcpStream) -> Result<(), String> {
        let mut frames = FrameReader::default();
        let mut out = Vec::new();
        let mut stop = pin!(self.connection.closed().cancelled());
        loop {
            let frame = tokio::select! {
                biased;
                frame = frames.next(stream) => frame,
                () = &mut stop => return Ok(()),
            };
            let Some(frame) = frame.map_err(|error| error.to_string())? else {
                return Ok(());
            };
            self.counters.requests.fetch_add(1, Ordering::Relaxed);
            self.counters
                .bytes_in
                .fetch_add(frame.len() as u64, Ordering::Relaxed);
            match message::decode(frame) {
                Ok(incoming) => self.answer(incoming, stream, &mut out).await?,
                Err(DecodeError::Malformed(what)) => return Err(format!("malformed: {what}")),
                Err(DecodeError::Refused {
                    request_id,
                    error,
                    form,
                }) => {
                    encode(&mut out, form, None, request_id, 0, &error.to_reply());
                    self.send(stream, &mut out).await?;
                }
            }
            if self.connection.closed().is_cancelled() {
                return Ok(());
            }
        }
    }

    async fn answer(
        &self,
        incoming: Incoming,
        stream: &mut TcpStream,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        let Incoming {
            mut request,
            form,
            compressor,
        } = incoming;
        let mut response_to = request.request_id;
        if !request.exhaust_allowed || !matches!(form, ReplyForm::Msg { .. }) {
            let reply = self.call(request).await;
            encode(out, form, compressor, response_to, 0, &reply.body);
            drop(reply);
            return self.send(stream, out).await;
        }
        loop {
            let (again, started) = (request.clone(), Instant::now());
            let reply = tokio::select! {
                biased;
                reply = self.call(request) => reply,
                () = has_left(stream) => return Ok(()),
            };
            let next = exhaust::next(again, &reply.body, started.elapsed())
                .filter(|_| !self.connection.closed().is_cancelled());
            let flags = next.as_ref().map_or(0, |_| message::FLAG_MORE_TO_COME);
            let sent = encode(out, form, compressor, response_to, flags, &reply.body);
            drop(reply);
            self.send(stream, out).await?;
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
        self.connection.count_request();
        if let Some(question) = Question::of(&request.name) {
            return self.last_error(question, request).await;
        }
        let greeting =
            hello::is_hello(&request.name).then(|| hello::greet(&self.connection, &request));
        let write = last_error::is_write(&request.name).then(|| request.name.clone());
        let mut reply = self.service.call(&self.connection, request).await;
        if let Some(compressors) = greeting {
            hello::answer(&self.connection, compressors, &mut reply.body);
        }
        if let Some(name) = write {
            self.connection
                .record_write(last_error::outcome(&name, &reply.body));
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

    async fn send(&self, stream: &mut TcpStream, out: &mut Vec<u8>) -> Result<(), String> {
        if !out.is_empty() {
            stream
                .write_all(out)
                .await
                .map_err(|error| error.to_string())?;
            self.counters
                .bytes_out
                .fetch_add(out.len() as u64, Ordering::Relaxed);
            out.clear();
            out.shrink_to(REPLY_BYTES_KEPT);
        }
        Ok(())
    }
}

/// Resolves when the peer has closed its end. Bytes that arrive instead are its next request; from
/// then on only writing tells.
async fn has_left(stream: &TcpStream) {
    if let Ok(1..) = stream.peek(&mut [0]).await {
        std::future::pending().await
    }
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
    static IDS: AtomicI32 = AtomicI32::new(1);
    let id = IDS.fetch_add(1, Ordering::Relaxed);
    let start = out.len();
    match form {
        ReplyForm::Msg { checksum } => {
            let flags = flags | if checksum { message::FLAG_CHECKSUM } else { 0 };
            message::encode_msg(out, id, response_to, flags, reply);
        }
        ReplyForm::Command => legacy::encode_command_reply(out, id, response_to, reply),
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
        && let Err(error) = message::compress_in_place(out, start, compressor)
    {
        // Only a compressor out of memory ends here; the client then sees the connection end.
        warn!("cannot compress a reply: {error}");
        out.truncate(start);
    }
    id
}
