//! What is known about one client connection while it is open.

use std::any::Any;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::SystemTime;

use bson::RawDocumentBuf;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::compression::Compressor;
use crate::socket::Socket;
use crate::tls::TlsPeer;

/// A connection as commands see it. Ids are unique in the life of the process.
pub struct Connection {
    pub id: u64,
    pub peer: SocketAddr,
    /// The server's end.
    pub local: SocketAddr,
    pub opened: SystemTime,
    metadata: OnceLock<RawDocumentBuf>,
    compressors: Mutex<Vec<Compressor>>,
    last_write: Mutex<LastWrite>,
    /// The last failed write, and how many writes ago it was.
    previous_error: Mutex<Option<(LastError, i32)>>,
    closed: CancellationToken,
    left: CancellationToken,
    socket: OnceLock<Weak<Socket>>,
    requests: AtomicU64,
    /// The number of the request that is being answered, if its client waits for that; else 0.
    running: AtomicU64,
    hello_ok: AtomicBool,
    hung_up: AtomicBool,
    tls: OnceLock<TlsPeer>,
    extension: OnceLock<Box<dyn Any + Send + Sync>>,
}

/// The outcome of the connection's last write through a legacy opcode or a write command, as
/// `getLastError` reports it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LastWrite {
    pub matched_or_deleted: i64,
    pub error: Option<LastError>,
    /// For an update: whether it changed an existing document.
    pub updated_existing: Option<bool>,
    pub upserted: Option<bson::RawBson>,
    /// The time up to which the member had written then.
    pub time: Option<bson::Timestamp>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct LastError {
    pub code: i32,
    pub code_name: String,
    pub message: String,
}

/// The connection of a process with itself; none from outside has this id.
pub const OWN_CONNECTION_ID: u64 = 0;

impl Connection {
    pub fn new(
        id: u64,
        peer: SocketAddr,
        local: SocketAddr,
        closed: CancellationToken,
    ) -> Connection {
        Connection {
            id,
            peer,
            local,
            opened: SystemTime::now(),
            metadata: OnceLock::new(),
            compressors: Mutex::default(),
            last_write: Mutex::default(),
            previous_error: Mutex::default(),
            closed,
            left: CancellationToken::new(),
            socket: OnceLock::new(),
            requests: AtomicU64::new(0),
            running: AtomicU64::new(0),
            hello_ok: AtomicBool::new(false),
            hung_up: AtomicBool::new(false),
            tls: OnceLock::new(),
            extension: OnceLock::new(),
        }
    }

    /// The client's description of itself from its first `hello`.
    pub fn metadata(&self) -> Option<&RawDocumentBuf> {
        self.metadata.get()
    }

    /// Whether a member or a router of the cluster is at the other end: they do not describe
    /// themselves, as drivers and shells do in their first `hello`.
    pub fn is_internal(&self) -> bool {
        self.metadata.get().is_none()
    }

    pub(crate) fn set_metadata(&self, metadata: RawDocumentBuf) {
        // Only the first one counts, as in MongoDB.
        let _ = self.metadata.set(metadata);
    }

    /// What is known of the client from the handshake, if the connection is encrypted.
    pub fn tls(&self) -> Option<&TlsPeer> {
        self.tls.get()
    }

    pub(crate) fn encrypted(&self, peer: TlsPeer) {
        // A connection shakes hands once.
        let _ = self.tls.set(peer);
    }

    /// The client has said `helloOk`: it knows today's words for "primary" and "secondary".
    pub fn hello_ok(&self) -> bool {
        self.hello_ok.load(Ordering::Relaxed)
    }

    pub(crate) fn set_hello_ok(&self) {
        self.hello_ok.store(true, Ordering::Relaxed);
    }

    pub(crate) fn negotiated(&self, compressors: Vec<Compressor>) {
        *self.compressors.lock() = compressors;
    }

    pub fn compressors(&self) -> Vec<Compressor> {
        self.compressors.lock().clone()
    }

    pub fn last_write(&self) -> LastWrite {
        self.last_write.lock().clone()
    }

    pub(crate) fn previous_error(&self) -> Option<(LastError, i32)> {
        self.previous_error.lock().clone()
    }

    pub(crate) fn forget_writes(&self) {
        *self.last_write.lock() = LastWrite::default();
        *self.previous_error.lock() = None;
    }

    pub fn record_write(&self, outcome: LastWrite) {
        let mut previous = self.previous_error.lock();
        match (&outcome.error, &mut *previous) {
            (Some(error), previous) => *previous = Some((error.clone(), 1)),
            (None, Some((_, writes_ago))) => *writes_ago = writes_ago.saturating_add(1),
            (None, None) => {}
        }
        drop(previous);
        *self.last_write.lock() = outcome;
    }

    /// Cancelled when the connection ends or the server shuts down.
    pub fn closed(&self) -> &CancellationToken {
        &self.closed
    }

    /// Ends the connection: what is being answered gets no reply.
    pub fn hang_up(&self) {
        self.hung_up.store(true, Ordering::Relaxed);
        self.closed.cancel();
    }

    pub(crate) fn is_hung_up(&self) -> bool {
        self.hung_up.load(Ordering::Relaxed)
    }

    /// Cancelled when the client was seen to be gone while a command ran whose reply it wanted.
    pub fn left(&self) -> &CancellationToken {
        &self.left
    }

    pub(crate) fn note_socket(&self, socket: &Arc<Socket>) {
        // It has one for as long as it lives.
        let _ = self.socket.set(Arc::downgrade(socket));
    }

    /// Whether the client is gone, as its socket says now.
    pub fn has_ended(&self) -> bool {
        let ended = |socket: &Weak<Socket>| socket.upgrade().is_none_or(|s| s.has_ended());
        self.left.is_cancelled() || self.socket.get().is_some_and(ended)
    }

    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// A request begins. `awaited`: the client waits for its reply.
    pub(crate) fn begin_request(&self, awaited: bool) {
        // Only the connection's own task counts.
        let number = self.requests.load(Ordering::Relaxed) + 1;
        self.requests.store(number, Ordering::Relaxed);
        self.running
            .store(if awaited { number } else { 0 }, Ordering::Relaxed);
    }

    pub(crate) fn end_request(&self) {
        self.running.store(0, Ordering::Relaxed);
    }

    pub(crate) fn running(&self) -> u64 {
        self.running.load(Ordering::Relaxed)
    }

    /// A slot for the service's own state of this connection, made on first use. One service
    /// stores one type; asking for another one answers `None`.
    pub fn extension<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Option<&T> {
        self.extension
            .get_or_init(|| Box::new(make()))
            .downcast_ref()
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "conn{} from {}", self.id, self.peer)
    }
}
