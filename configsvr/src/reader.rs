//! Reading a collection's routing table out of the config documents, here or from afar.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use banyan_node::local::Local;
use banyan_sharding::{RoutingError, RoutingTable};
use banyan_wire::{CommandError, ErrorCode, ReadMode, ReplicaSet, RequestOptions};
use bson::spec::BinarySubtype;
use bson::{Binary, RawDocument, RawDocumentBuf, Timestamp, rawdoc};

/// Chunks in one page; a page stays well under the size of a message.
const CHUNKS_PER_PAGE: i64 = 5_000;

/// How often a table is read again when it changed under the reader.
const ATTEMPTS_MAX: usize = 10;

/// Whoever can run a `find` on the config database, and read its own writes.
pub trait ConfigReader: Sync {
    /// All documents of one `find` with a `limit` that fits one batch.
    fn find(
        &self,
        body: RawDocumentBuf,
    ) -> impl Future<Output = Result<Vec<RawDocumentBuf>, CommandError>> + Send;
}

impl ConfigReader for Local {
    async fn find(&self, body: RawDocumentBuf) -> Result<Vec<RawDocumentBuf>, CommandError> {
        Local::find(self, "config", body).await
    }
}

/// The config servers, as a shard sees them.
#[derive(Clone)]
pub struct RemoteConfig {
    pub set: ReplicaSet,
}

impl RemoteConfig {
    pub async fn command(
        &self,
        request_options: RequestOptions,
        body: &RawDocument,
    ) -> Result<RawDocumentBuf, CommandError> {
        Ok(self.set.command(request_options, "admin", body).await?)
    }
}

impl ConfigReader for RemoteConfig {
    async fn find(&self, body: RawDocumentBuf) -> Result<Vec<RawDocumentBuf>, CommandError> {
        let timeout = Some(Duration::from_secs(30));
        let request_options = RequestOptions::read(ReadMode::Primary).timeout(timeout);
        let reply = self.set.command(request_options, "config", &body).await?;
        let batch = reply
            .get_document("cursor")
            .and_then(|cursor| cursor.get_array("firstBatch"))
            .map_err(|error| CommandError::new(ErrorCode::InternalError, error.to_string()))?;
        let documents = batch.into_iter().flatten();
        Ok(documents
            .filter_map(|d| d.as_document().map(RawDocument::to_owned))
            .collect())
    }
}

/// The table of a sharded collection, `None` if the collection is not sharded. With a table that
/// is already known only what changed since is read.
pub async fn load_table(
    reader: &impl ConfigReader,
    ns: &str,
    known: Option<&RoutingTable>,
) -> Result<Option<Arc<RoutingTable>>, CommandError> {
    let mut known = known;
    let mut last = None;
    for attempt in 0..ATTEMPTS_MAX {
        let body = rawdoc! {
            "find": "collections", "filter": { "_id": ns }, "limit": 1_i64, "singleBatch": true,
        };
        let Some(collection) = reader.find(body).await?.into_iter().next() else {
            return Ok(None);
        };
        match try_load(reader, &collection, known).await? {
            Ok(table) => return Ok(Some(Arc::new(table))),
            Err(error) => {
                tracing::debug!(ns, %error, attempt, "routing table changed while it was read");
                known = None;
                last = Some(error);
            }
        }
        tokio::time::sleep(Duration::from_millis(10 << attempt.min(6))).await;
    }
    let reason = last.map(|error| error.to_string()).unwrap_or_default();
    let message = format!("cannot read the routing table of {ns}: {reason}");
    Err(CommandError::new(
        ErrorCode::ConflictingOperationInProgress,
        message,
    ))
}

async fn try_load(
    reader: &impl ConfigReader,
    collection: &RawDocument,
    known: Option<&RoutingTable>,
) -> Result<Result<RoutingTable, RoutingError>, CommandError> {
    let entry = match banyan_sharding::routing::CollectionEntry::parse(collection) {
        Ok(entry) => entry,
        Err(error) => return Ok(Err(error)),
    };
    let known = known.filter(|table| {
        table.version().epoch == entry.epoch && table.version().timestamp == entry.timestamp
    });
    let mut since = known.map_or(
        Timestamp {
            time: 0,
            increment: 0,
        },
        |t| t.version().lastmod(),
    );
    let uuid = Binary {
        subtype: BinarySubtype::Uuid,
        bytes: entry.uuid.to_vec(),
    };
    let mut chunks = Vec::new();
    loop {
        let body = rawdoc! {
            "find": "chunks",
            "filter": { "uuid": uuid.clone(), "lastmod": { "$gte": since } },
            "sort": { "lastmod": 1 },
            "limit": CHUNKS_PER_PAGE,
            "batchSize": CHUNKS_PER_PAGE,
            "singleBatch": true,
        };
        let page = reader.find(body).await?;
        let full = page.len() as i64 == CHUNKS_PER_PAGE;
        let newest = page
            .last()
            .and_then(|chunk| chunk.get_timestamp("lastmod").ok());
        chunks.extend(page);
        match newest {
            Some(newest) if full && newest > since => since = newest,
            _ => break,
        }
    }
    let chunks = chunks.iter().map(|chunk| &**chunk);
    Ok(match known {
        Some(table) => table.refreshed(collection, chunks),
        None => RoutingTable::build(collection, chunks),
    })
}
