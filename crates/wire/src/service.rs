//! What a server does with requests, and what it counts.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::time::Duration;

use bson::RawDocumentBuf;

use crate::connection::Connection;
use crate::error::CommandError;
use crate::request::Request;

/// What a server does with requests.
pub trait Service: Send + Sync + 'static {
    fn call(
        self: &Arc<Self>,
        connection: &Arc<Connection>,
        request: Request,
    ) -> impl Future<Output = Reply> + Send;

    /// Whether the command of this name only looks at memory, or waits, and others wait for it:
    /// a connection that carries nothing else is served on threads that no query can occupy.
    fn is_vital(&self, _name: &str) -> bool {
        false
    }

    /// What a client is held to that has not said who it is. `None`: the same as everybody.
    fn stranger_limits(&self, _connection: &Connection) -> Option<StrangerLimits> {
        None
    }

    /// The client has closed the connection while its command runs: nobody wants the reply.
    fn left(&self, _connection: &Connection) {}

    /// The connection is gone, whatever the reason.
    fn closed(&self, _connection: &Connection) {}
}

/// How much, and for how long, a server listens to a client that has not logged in.
#[derive(Clone, Copy, Debug)]
pub struct StrangerLimits {
    pub message_bytes_max: usize,
    /// From its connection to its first byte, and from a message's first byte to its last.
    pub message_time_max: Duration,
    /// From one message to the next.
    pub idle_time_max: Duration,
}

impl StrangerLimits {
    /// Whoever has not logged in has nothing to say but `hello` and the steps of its login. Drivers
    /// never log in on the connections by which they watch a server: those are quiet for as long as
    /// they are told to wait between two looks, ten seconds if they are told nothing.
    pub const LOGIN: StrangerLimits = StrangerLimits {
        message_bytes_max: 16 * 1024,
        message_time_max: Duration::from_secs(30),
        idle_time_max: Duration::from_secs(600),
    };
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

/// The counts that `serverStatus` shows.
#[derive(Default)]
pub struct Counters {
    pub current: AtomicUsize,
    /// So many may be open at once.
    pub connections_max: AtomicUsize,
    pub total: AtomicU64,
    pub rejected: AtomicU64,
    pub requests: AtomicU64,
    pub bytes_in: AtomicU64,
    pub bytes_out: AtomicU64,
}
