//! Commands that a process gives to itself: the config server's and the shard's own bookkeeping.
//!
//! They take the path of every other command, from the table to the log, so that what is written
//! this way is committed, applied and replicated like anything else.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use banyan_wire::{CommandError, Connection, ErrorCode, OWN_CONNECTION_ID, Request, Service};
use bson::{RawDocument, RawDocumentBuf, rawdoc};
use tokio_util::sync::CancellationToken;

use crate::service::NodeService;

/// A client of this very process.
#[derive(Clone)]
pub struct Local {
    service: Arc<NodeService>,
    connection: Arc<Connection>,
}

impl Local {
    pub fn new(service: &Arc<NodeService>) -> Local {
        let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let closed = CancellationToken::new();
        let connection = Connection::new(OWN_CONNECTION_ID, nowhere, nowhere, closed);
        Local {
            service: service.clone(),
            connection: Arc::new(connection),
        }
    }

    pub fn service(&self) -> &Arc<NodeService> {
        &self.service
    }

    /// Runs a command (without `$db`); an `ok: 0` reply is an error.
    pub async fn command(
        &self,
        database: &str,
        body: RawDocumentBuf,
    ) -> Result<RawDocumentBuf, CommandError> {
        let request = Request::command(database, body);
        let reply = self.service.call(&self.connection, request).await.body;
        match CommandError::from_reply(&reply) {
            Some(error) => Err(error),
            None => Ok(reply),
        }
    }

    /// A write command: errors of single statements are errors of the whole.
    pub async fn write(
        &self,
        database: &str,
        body: RawDocumentBuf,
    ) -> Result<RawDocumentBuf, CommandError> {
        let reply = self.command(database, body).await?;
        match CommandError::from_write_reply(&reply) {
            Some(error) => Err(error),
            None => Ok(reply),
        }
    }

    /// All documents that a `find` command answers, over as many batches as it takes.
    pub async fn find(
        &self,
        database: &str,
        body: RawDocumentBuf,
    ) -> Result<Vec<RawDocumentBuf>, CommandError> {
        let mut found = Vec::new();
        let mut reply = self.command(database, body).await?;
        loop {
            let cursor = reply.get_document("cursor").map_err(malformed)?;
            for name in ["firstBatch", "nextBatch"] {
                if let Ok(batch) = cursor.get_array(name) {
                    found.extend(
                        batch.into_iter().flatten().filter_map(|document| {
                            document.as_document().map(RawDocument::to_owned)
                        }),
                    );
                }
            }
            let id = cursor.get_i64("id").map_err(malformed)?;
            if id == 0 {
                return Ok(found);
            }
            let namespace = cursor.get_str("ns").map_err(malformed)?;
            let collection = namespace
                .split_once('.')
                .map_or("", |(_, name)| name)
                .to_owned();
            let more = rawdoc! { "getMore": id, "collection": collection };
            reply = self.command(database, more).await?;
        }
    }
}

fn malformed(error: bson::error::Error) -> CommandError {
    CommandError::new(
        ErrorCode::InternalError,
        format!("malformed reply: {error}"),
    )
}
