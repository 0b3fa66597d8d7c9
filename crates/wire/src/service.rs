//! What a server does with requests, and what it counts.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize};

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

    /// The client has closed the connection while its command runs: nobody wants the reply.
    fn left(&self, _connection: &Connection) {}

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
