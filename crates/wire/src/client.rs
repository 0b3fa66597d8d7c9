//! A bounded pool of connections to one address.
//!
//! A connection carries one request at a time, and the task that sends a request reads its reply:
//! no hand-over to another task in between. Whether a pooled connection is still good is asked of
//! the readiness that the runtime already knows, which costs no system call.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use banyan_document::validate::validate_with_depth;
use bson::{RawDocument, RawDocumentBuf};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::codes::ErrorCode;
use crate::error::CommandError;
use crate::message;
use crate::one_way::{Lane, Overflow};
use crate::opened::{ClientConnection, ExchangeError};
use crate::outgoing::Outgoing;
use crate::tls::{self, Tls};

/// Why a request to another process has no good reply.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The request was not sent.
    #[error("couldn't connect to server {address}: {source}")]
    Connect { address: String, source: io::Error },
    /// The connection failed after the request may have been sent.
    #[error("network error while talking to {address}: {source}")]
    Io { address: String, source: io::Error },
    #[error("no reply from {address} within {after:?}")]
    Timeout { address: String, after: Duration },
    #[error("{address} doesn't speak the protocol: {what}")]
    Protocol { address: String, what: &'static str },
    /// The server answered `ok: 0`.
    #[error(transparent)]
    Command(#[from] CommandError),
}

impl ClientError {
    /// Whether the request may have had its effect.
    pub fn may_have_run(&self) -> bool {
        !matches!(self, ClientError::Connect { .. })
    }

    pub fn code(&self) -> ErrorCode {
        match self {
            ClientError::Connect { .. } | ClientError::Io { .. } => ErrorCode::HostUnreachable,
            ClientError::Timeout { .. } => ErrorCode::NetworkInterfaceExceededTimeLimit,
            ClientError::Protocol { .. } => ErrorCode::ProtocolError,
            ClientError::Command(error) => error.code,
        }
    }
}

impl From<ClientError> for CommandError {
    fn from(error: ClientError) -> CommandError {
        match error {
            ClientError::Command(error) => error,
            other => CommandError::new(other.code(), other.to_string()),
        }
    }
}

#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// Connections at once; a request beyond that waits for one.
    pub connections_max: usize,
    pub connect_timeout: Duration,
    /// Certificates and mode; without them nothing is encrypted.
    pub tls: Option<Arc<Tls>>,
}

impl Default for PoolOptions {
    fn default() -> PoolOptions {
        PoolOptions {
            connections_max: 256,
            connect_timeout: Duration::from_secs(5),
            tls: tls::process(),
        }
    }
}

#[derive(Clone)]
pub struct Pool {
    inner: Arc<Inner>,
}

struct Inner {
    address: String,
    options: PoolOptions,
    idle: Mutex<Vec<ClientConnection>>,
    permits: Semaphore,
    lane: Mutex<Option<Lane>>,
    runtime: Option<tokio::runtime::Handle>,
    usage: Usage,
    /// Grows when all connections are to be dropped: one of an older generation is not used again.
    generation: AtomicU64,
}

#[derive(Default)]
struct Usage {
    in_use: AtomicU64,
    connecting: AtomicU64,
    created: AtomicU64,
}

/// One is counted for as long as this lives.
struct Counted<'a>(&'a AtomicU64);

impl<'a> Counted<'a> {
    fn new(counter: &'a AtomicU64) -> Counted<'a> {
        counter.fetch_add(1, Ordering::Relaxed);
        Counted(counter)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How many connections a pool has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolUsage {
    /// They carry a request.
    pub in_use: u64,
    /// They wait for one.
    pub available: u64,
    /// Made so far, those that are closed by now included.
    pub created: u64,
    /// Being made.
    pub connecting: u64,
}

/// The pools of this process that somebody uses.
static POOLS: Mutex<Vec<Weak<Inner>>> = Mutex::new(Vec::new());

impl Pool {
    /// A pool for `host:port`; connects when it is first used. One-way sends from outside a
    /// runtime work if the pool was made inside one.
    pub fn new(address: &str, options: PoolOptions) -> Pool {
        let inner = Inner {
            address: address.to_owned(),
            permits: Semaphore::new(options.connections_max.clamp(1, Semaphore::MAX_PERMITS)),
            options,
            idle: Mutex::default(),
            lane: Mutex::default(),
            runtime: tokio::runtime::Handle::try_current().ok(),
            usage: Usage::default(),
            generation: AtomicU64::new(0),
        };
        let inner = Arc::new(inner);
        let mut pools = POOLS.lock();
        pools.retain(|pool| pool.strong_count() > 0);
        pools.push(Arc::downgrade(&inner));
        Pool { inner }
    }

    /// All pools of this process.
    pub fn all() -> Vec<Pool> {
        let pools = POOLS.lock();
        let alive = pools.iter().filter_map(Weak::upgrade);
        alive.map(|inner| Pool { inner }).collect()
    }

    /// The connections for requests that are answered.
    pub fn usage(&self) -> PoolUsage {
        let Inner { usage, idle, .. } = &*self.inner;
        PoolUsage {
            in_use: usage.in_use.load(Ordering::Relaxed),
            available: idle.lock().len() as u64,
            created: usage.created.load(Ordering::Relaxed),
            connecting: usage.connecting.load(Ordering::Relaxed),
        }
    }

    /// Closes all connections: those in use when they have carried their request. What was queued to
    /// be sent one way is lost.
    pub fn drop_connections(&self) {
        self.inner.generation.fetch_add(1, Ordering::AcqRel);
        self.clear();
        self.inner.lane.lock().take();
    }

    pub fn address(&self) -> &str {
        &self.inner.address
    }

    /// Whether both are handles of one pool.
    pub fn is(&self, other: &Pool) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Runs a command (without `$db`); an `ok: 0` reply is `ClientError::Command`.
    pub async fn command(
        &self,
        database: &str,
        body: &RawDocument,
        timeout: Option<Duration>,
    ) -> Result<RawDocumentBuf, ClientError> {
        self.checked(&Outgoing::command(database, body), timeout)
            .await
    }

    pub async fn command_with(
        &self,
        database: &str,
        body: &RawDocument,
        sequences: &[(&str, &[&RawDocument])],
        timeout: Option<Duration>,
    ) -> Result<RawDocumentBuf, ClientError> {
        self.checked(&with_sequences(database, body, sequences), timeout)
            .await
    }

    /// Sends a prepared request; an `ok: 0` reply is an error, and the reply's bytes are validated.
    pub async fn checked(
        &self,
        request: &Outgoing,
        timeout: Option<Duration>,
    ) -> Result<RawDocumentBuf, ClientError> {
        let reply = self.exchange(request, timeout).await?;
        if validate_with_depth(reply.as_bytes(), message::COMMAND_DEPTH_MAX).is_err() {
            return Err(self.protocol_error("malformed BSON in a reply"));
        }
        match CommandError::from_reply(&reply) {
            Some(error) => Err(ClientError::Command(error)),
            None => Ok(reply),
        }
    }

    /// Sends a prepared request and returns the reply whatever it says. Only the reply's framing is
    /// checked: this is for bytes that are passed on.
    pub async fn exchange(
        &self,
        request: &Outgoing,
        timeout: Option<Duration>,
    ) -> Result<RawDocumentBuf, ClientError> {
        let Some(after) = timeout else {
            return self.exchange_unbounded(request).await;
        };
        match tokio::time::timeout(after, self.exchange_unbounded(request)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(ClientError::Timeout {
                address: self.inner.address.clone(),
                after,
            }),
        }
    }

    async fn exchange_unbounded(&self, request: &Outgoing) -> Result<RawDocumentBuf, ClientError> {
        // The semaphore is never closed.
        let _permit = self.inner.permits.acquire().await;
        let generation = self.inner.generation.load(Ordering::Acquire);
        let mut connection = match self.take_idle() {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        let _used = Counted::new(&self.inner.usage.in_use);
        match connection.exchange(request).await {
            Ok(reply) => {
                let mut idle = self.inner.idle.lock();
                if generation == self.inner.generation.load(Ordering::Acquire) {
                    idle.push(connection);
                }
                Ok(reply)
            }
            Err(ExchangeError::Io(source)) => Err(ClientError::Io {
                address: self.inner.address.clone(),
                source,
            }),
            Err(ExchangeError::Protocol(what)) => Err(self.protocol_error(what)),
        }
    }

    /// The most recently used connection that is still open.
    fn take_idle(&self) -> Option<ClientConnection> {
        loop {
            let mut connection = self.inner.idle.lock().pop()?;
            if connection.is_quiet() {
                return Some(connection);
            }
        }
    }

    async fn connect(&self) -> Result<ClientConnection, ClientError> {
        let options = &self.inner.options;
        let tls = options.tls.as_deref();
        let _counted = Counted::new(&self.inner.usage.connecting);
        // In a box: every future that sends a request would hold its state otherwise.
        Box::pin(ClientConnection::open(
            &self.inner.address,
            options.connect_timeout,
            tls,
        ))
        .await
        .inspect(|_| {
            self.inner.usage.created.fetch_add(1, Ordering::Relaxed);
        })
        .map_err(|source| ClientError::Connect {
            address: self.inner.address.clone(),
            source,
        })
    }

    fn protocol_error(&self, what: &'static str) -> ClientError {
        ClientError::Protocol {
            address: self.inner.address.clone(),
            what,
        }
    }

    /// Closes the connections that nobody uses.
    pub fn clear(&self) {
        self.inner.idle.lock().clear();
    }

    /// Sends a message that takes no reply, in order with the others sent this way, over a
    /// connection of their own. Never waits: what does not fit the queue, or can't be delivered,
    /// is lost.
    pub fn send_one_way(
        &self,
        database: &str,
        body: &RawDocument,
        sequences: &[(&str, &[&RawDocument])],
    ) -> Result<(), Overflow> {
        let message = with_sequences(database, body, sequences)
            .one_way()
            .into_bytes();
        let mut lane = self.inner.lane.lock();
        let handle = match (&*lane, &self.inner.runtime) {
            (Some(lane), _) => return lane.send(message),
            (None, Some(handle)) => handle.clone(),
            (None, None) => tokio::runtime::Handle::try_current().map_err(|_| Overflow)?,
        };
        let PoolOptions {
            connect_timeout,
            tls,
            ..
        } = self.inner.options.clone();
        let address = self.inner.address.clone();
        let fresh = lane.insert(Lane::open(&handle, address, connect_timeout, tls));
        fresh.send(message)
    }
}

fn with_sequences(
    database: &str,
    body: &RawDocument,
    sequences: &[(&str, &[&RawDocument])],
) -> Outgoing {
    let mut message = Outgoing::command(database, body);
    for (identifier, documents) in sequences {
        let documents = documents.iter().map(|document| document.as_bytes());
        message = message.sequence(identifier, documents);
    }
    message
}
