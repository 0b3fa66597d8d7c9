//! A shard's partial results, read through its cursor.

use std::sync::Arc;
use std::time::{Duration, Instant};

use banyan_execution::Interrupt;
use banyan_node::errors;
use banyan_script::hosts::SortedDocuments;
use banyan_wire::behalf;
use banyan_wire::{ClientError, CommandError, ErrorCode, Pool, PoolOptions};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::error::Failure;

/// Batches that are read ahead of the merge, for each shard.
const BATCHES_AHEAD: usize = 2;
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// A member that says nothing for so long is given up, whatever the job's own time limit is.
const SILENCE_MAX: Duration = Duration::from_secs(300);

/// Where a shard's cursor is.
#[derive(Debug, Clone)]
pub struct CursorAddress {
    pub host: String,
    pub cursor: i64,
    pub database: String,
    pub collection: String,
    /// In which it was opened.
    pub session: Option<RawDocumentBuf>,
}

impl CursorAddress {
    /// `{host, cursor, ns}`, of the session that the command is in.
    pub fn parse(
        input: &RawDocument,
        session: Option<&RawDocument>,
    ) -> Result<CursorAddress, CommandError> {
        let bad = || CommandError::new(ErrorCode::BadValue, "an input must be {host, cursor, ns}");
        let text = |name: &str| input.get_str(name).map_err(|_| bad());
        let (database, collection) = text("ns")?.split_once('.').ok_or_else(bad)?;
        Ok(CursorAddress {
            host: text("host")?.to_owned(),
            cursor: input.get_i64("cursor").map_err(|_| bad())?,
            database: database.to_owned(),
            collection: collection.to_owned(),
            session: session.map(RawDocument::to_owned),
        })
    }
}

impl CursorAddress {
    fn append_session(&self, command: &mut RawDocumentBuf) {
        if let Some(session) = &self.session {
            command.append(bson::cstr!("lsid"), session.clone());
        }
    }
}

/// The documents behind a cursor. Batches come in ahead of the reader on a task of the runtime;
/// the reader blocks. A cursor that is not read to its end is closed.
pub struct ShardCursor {
    interrupt: Interrupt,
    batches: mpsc::Receiver<Result<RawDocumentBuf, CommandError>>,
    runtime: Handle,
    batch: std::vec::IntoIter<RawDocumentBuf>,
    current: RawDocumentBuf,
}

impl ShardCursor {
    /// `client`: whose the cursor is, as the shard was told.
    pub fn open(
        address: CursorAddress,
        interrupt: &Interrupt,
        client: Option<Arc<RawDocumentBuf>>,
    ) -> ShardCursor {
        let (sender, batches) = mpsc::channel(BATCHES_AHEAD);
        let runtime = Handle::current();
        let reading = read_all(address, interrupt.deadline(), sender);
        runtime.spawn(behalf::on_behalf_of(client, reading));
        ShardCursor {
            interrupt: interrupt.clone(),
            batches,
            runtime,
            batch: Vec::new().into_iter(),
            current: RawDocumentBuf::new(),
        }
    }
}

impl SortedDocuments<Failure> for ShardCursor {
    fn advance(&mut self) -> Result<bool, Failure> {
        loop {
            if let Some(document) = self.batch.next() {
                self.current = document;
                return Ok(true);
            }
            let Some(reply) = self.next_batch() else {
                return Ok(false);
            };
            let documents = documents(&reply?).ok_or_else(malformed)?;
            self.batch = documents.into_iter();
        }
    }

    fn document(&self) -> &[u8] {
        self.current.as_bytes()
    }
}

impl ShardCursor {
    /// Waits for a batch, with an eye on the interruption of the command that reads.
    fn next_batch(&mut self) -> Option<Result<RawDocumentBuf, CommandError>> {
        loop {
            let waiting = async { tokio::time::timeout(LOOK_EVERY, self.batches.recv()).await };
            match self.runtime.block_on(waiting) {
                Ok(batch) => return batch,
                Err(_) => {
                    if let Err(error) = self.interrupt.check() {
                        return Some(Err(errors::query(error)));
                    }
                }
            }
        }
    }
}

async fn read_all(
    address: CursorAddress,
    deadline: Option<Instant>,
    sender: mpsc::Sender<Result<RawDocumentBuf, CommandError>>,
) {
    let pool = Pool::new(&address.host, PoolOptions::default());
    let mut more = rawdoc! { "getMore": address.cursor, "collection": address.collection.as_str() };
    address.append_session(&mut more);
    loop {
        let timeout = deadline.map_or(SILENCE_MAX, |deadline| {
            deadline
                .saturating_duration_since(Instant::now())
                .min(SILENCE_MAX)
        });
        let (batch, last) = match pool.command(&address.database, &more, Some(timeout)).await {
            Ok(reply) => match cursor_id(&reply) {
                Some(id) => (Ok(reply), id == 0),
                None => (Err(malformed()), true),
            },
            Err(error) => (Err(shard_failed(&address.host, error)), true),
        };
        let read = sender.send(batch).await.is_ok();
        if !read && !last {
            let cursors = bson::RawArrayBuf::from_iter([address.cursor]);
            let mut kill =
                rawdoc! { "killCursors": address.collection.as_str(), "cursors": cursors };
            address.append_session(&mut kill);
            // It would time out by itself.
            let _ = pool
                .command(&address.database, &kill, Some(SILENCE_MAX))
                .await;
        }
        if last || !read {
            return;
        }
    }
}

fn shard_failed(host: &str, error: ClientError) -> CommandError {
    let error = CommandError::from(error);
    let text = format!(
        "{} :: caused by :: partial results on {host}",
        error.message
    );
    CommandError {
        message: text,
        ..error
    }
}

fn malformed() -> CommandError {
    CommandError::new(
        ErrorCode::InternalError,
        "a shard's batch of partial results is malformed",
    )
}

fn cursor_id(reply: &RawDocument) -> Option<i64> {
    reply.get_document("cursor").ok()?.get_i64("id").ok()
}

fn documents(reply: &RawDocument) -> Option<Vec<RawDocumentBuf>> {
    let batch = reply
        .get_document("cursor")
        .ok()?
        .get_array("nextBatch")
        .ok()?;
    batch
        .into_iter()
        .map(|document| match document.ok()? {
            RawBsonRef::Document(document) => Some(document.to_owned()),
            _ => None,
        })
        .collect()
}
