//! Removing documents that this shard holds and does not own.
//!
//! Each range to remove is a document of the shard's own `config.rangeDeletions`. A recipient
//! writes one with `pending: true` before it receives anything; it becomes due if the migration
//! fails. A donor writes one when the migration has committed. Nothing is removed on the word of
//! that document alone: the routing table, read anew, must say that the range is somebody else's.
//!
//! Open cursors are no reason to wait: they read from the snapshot they were opened on.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use banyan_sharding::{ChunkRange, ShardKeyPattern};
use banyan_wire::{CommandError, Treatment};
use bson::oid::ObjectId;
use bson::{RawArrayBuf, RawBson, RawDocument, RawDocumentBuf, cstr, rawdoc};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::recipient::Reception;
use crate::shard::errors::{bad_value, internal};
use crate::shard::keys::KeyView;
use crate::shard::role::ShardRole;

const COLLECTION: &str = "rangeDeletions";

/// Documents removed by one entry of the log.
const BATCH: usize = 500;

/// Between two looks at what is to be removed, if nobody gives a hint.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);

const ASK_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Default)]
pub struct Orphans {
    /// About how much of each collection waits to be removed.
    bytes: Mutex<HashMap<String, u64>>,
    /// Held while anything is removed, and while a range is made ready to be received.
    pub removing: tokio::sync::Mutex<()>,
    pub wake: Notify,
}

/// A document of config.rangeDeletions.
struct Task {
    id: ObjectId,
    ns: String,
    uuid: Vec<u8>,
    pattern: ShardKeyPattern,
    range: ChunkRange,
    pending: bool,
    from_host: Option<String>,
}

impl Task {
    fn parse(document: &RawDocument) -> Result<Task, CommandError> {
        let key = document.get_document("key").map_err(bad_value)?;
        let pattern = ShardKeyPattern::parse(key).map_err(bad_value)?;
        let min = document.get_document("min").map_err(bad_value)?;
        let max = document.get_document("max").map_err(bad_value)?;
        Ok(Task {
            id: document.get_object_id("_id").map_err(bad_value)?,
            ns: document.get_str("nss").map_err(bad_value)?.to_owned(),
            uuid: document
                .get_binary("uuid")
                .map_err(bad_value)?
                .bytes
                .to_vec(),
            range: ChunkRange::parse(&pattern, min, max).map_err(bad_value)?,
            pattern,
            pending: document.get_bool("pending").unwrap_or(false),
            from_host: document.get_str("donorHost").ok().map(str::to_owned),
        })
    }
}

impl Orphans {
    pub fn bytes(&self, ns: &str) -> u64 {
        self.bytes.lock().get(ns).copied().unwrap_or(0)
    }

    /// Writes down a range to remove.
    pub async fn add(
        &self,
        role: &ShardRole,
        ns: &str,
        task: RawDocumentBuf,
        bytes: u64,
    ) -> Result<(), CommandError> {
        let id = task.get_object_id("_id").map_err(internal)?;
        let body = rawdoc! {
            "update": COLLECTION, "updates": [{ "q": { "_id": id }, "u": task, "upsert": true }],
        };
        role.local.write("config", body).await?;
        *self.bytes.lock().entry(ns.to_owned()).or_default() += bytes;
        self.wake.notify_one();
        Ok(())
    }

    /// The migration came to nothing: what it brought is to be removed.
    pub async fn make_due(&self, role: &ShardRole, id: ObjectId) -> Result<(), CommandError> {
        let body = rawdoc! {
            "update": COLLECTION,
            "updates": [{ "q": { "_id": id }, "u": { "$set": { "pending": false } } }],
        };
        role.local.write("config", body).await?;
        self.wake.notify_one();
        Ok(())
    }

    pub async fn forget(&self, role: &ShardRole, id: ObjectId) -> Result<(), CommandError> {
        let body =
            rawdoc! { "delete": COLLECTION, "deletes": [{ "q": { "_id": id }, "limit": 1 }] };
        role.local.write("config", body).await.map(drop)
    }

    pub async fn wait_for(&self, role: &ShardRole, id: ObjectId) -> Result<(), CommandError> {
        loop {
            let body = rawdoc! { "find": COLLECTION, "filter": { "_id": id } };
            if role.local.find("config", body).await?.is_empty() {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn removed(&self, ns: &str, bytes: u64) {
        if let Some(waiting) = self.bytes.lock().get_mut(ns) {
            *waiting = waiting.saturating_sub(bytes);
        }
    }
}

pub async fn run(role: Arc<ShardRole>) {
    let stop = role.node().info.stop.clone();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = role.orphans.wake.notified() => {}
            () = tokio::time::sleep(LOOK_INTERVAL) => {}
        }
        if role.identity().is_none() || role.term() == 0 {
            continue;
        }
        if let Err(error) = round(&role).await {
            tracing::debug!(%error, "orphaned documents stay for now");
        }
    }
}

async fn round(role: &Arc<ShardRole>) -> Result<(), CommandError> {
    let documents = role
        .local
        .find("config", rawdoc! { "find": COLLECTION })
        .await?;
    if documents.is_empty() {
        role.orphans.bytes.lock().clear();
        return Ok(());
    }
    let mut tasks = Vec::new();
    for document in &documents {
        tasks.push(Task::parse(document)?);
    }
    for task in tasks.iter().filter(|task| task.pending) {
        if !is_receiving(role, task.id) && came_to_an_end(role, task).await? {
            role.orphans.make_due(role, task.id).await?;
        }
    }
    for task in tasks.iter().filter(|task| !task.pending) {
        // Whatever is on its way in must not be taken for what was on its way out.
        let disturbed = tasks
            .iter()
            .any(|other| other.pending && other.ns == task.ns && other.range.overlaps(&task.range));
        if !disturbed {
            remove_task(role, task).await?;
        }
    }
    Ok(())
}

fn is_receiving(role: &ShardRole, id: ObjectId) -> bool {
    let reception = role.reception.lock();
    reception
        .as_ref()
        .is_some_and(|reception| reception.id == id && reception.is_active())
}

/// Asks the donor whether it still may commit. Only then does the routing table tell the truth.
async fn came_to_an_end(role: &ShardRole, task: &Task) -> Result<bool, CommandError> {
    let Some(host) = &task.from_host else {
        return Ok(true);
    };
    let body = rawdoc! { "_shardsvrMigrationIsOpen": task.ns.as_str(), "migrationId": task.id };
    let treatment = Treatment::write()
        .idempotent()
        .timeout(Some(ASK_TIMEOUT))
        .patience(ASK_TIMEOUT);
    match role.peer(host)?.command(treatment, "admin", &body).await {
        Ok(reply) => Ok(!reply.get_bool("open").unwrap_or(true)),
        // Later, then.
        Err(_) => Ok(false),
    }
}

async fn remove_task(role: &Arc<ShardRole>, task: &Task) -> Result<(), CommandError> {
    let _removing = role.orphans.removing.lock().await;
    if overlapping_reception(role, &task.ns, &task.range).is_some() {
        return Ok(());
    }
    role.refresh(&task.ns).await?;
    if let Some(filter) = role.collection(&task.ns).filter()
        && filter.table.uuid()[..] == task.uuid[..]
    {
        let foreign: Vec<ChunkRange> = filter
            .table
            .overlapping(&task.range)
            .filter(|chunk| chunk.shard != filter.shard)
            .map(|chunk| ChunkRange {
                min: chunk.range.min.clone().max(task.range.min.clone()),
                max: chunk.range.max.clone().min(task.range.max.clone()),
            })
            .collect();
        for range in foreign {
            remove_range(role, &task.ns, &task.pattern, &range).await?;
        }
    }
    role.orphans.forget(role, task.id).await
}

pub fn overlapping_reception(
    role: &ShardRole,
    ns: &str,
    range: &ChunkRange,
) -> Option<Arc<Reception>> {
    let reception = role.reception.lock();
    let overlapping = |r: &&Arc<Reception>| r.ns == ns && r.range.overlaps(range) && r.is_active();
    reception.as_ref().filter(overlapping).cloned()
}

/// Removes every document of a range. The caller holds [`Orphans::removing`] and knows that the
/// range is not this shard's.
pub async fn remove_range(
    role: &Arc<ShardRole>,
    ns: &str,
    pattern: &ShardKeyPattern,
    range: &ChunkRange,
) -> Result<u64, CommandError> {
    let (database, collection) = ns.split_once('.').ok_or_else(|| internal("no dot"))?;
    let mut removed = 0;
    loop {
        let batch = next_batch(role, ns, pattern, range).await?;
        if batch.statements == 0 {
            return Ok(removed);
        }
        let body = rawdoc! { "delete": collection, "deletes": batch.deletes, "ordered": false };
        role.local.write(database, body).await?;
        role.orphans.removed(ns, batch.bytes);
        removed += batch.statements as u64;
        // Clients come first.
        tokio::task::yield_now().await;
    }
}

struct Batch {
    deletes: RawArrayBuf,
    statements: usize,
    bytes: u64,
}

async fn next_batch(
    role: &Arc<ShardRole>,
    ns: &str,
    pattern: &ShardKeyPattern,
    range: &ChunkRange,
) -> Result<Batch, CommandError> {
    let (role, ns) = (role.clone(), ns.to_owned());
    let (pattern, range) = (pattern.clone(), range.clone());
    let work = move || {
        let mut batch = Batch {
            deletes: RawArrayBuf::new(),
            statements: 0,
            bytes: 0,
        };
        let Some(view) = KeyView::open(role.node(), &ns, &pattern)? else {
            return Ok(batch);
        };
        for entry in view.scan(&range).take(BATCH) {
            let (_, record) = entry.map_err(internal)?;
            let Some(document) = view.record(record)? else {
                continue;
            };
            batch.bytes += document.as_bytes().len() as u64;
            batch
                .deletes
                .push(rawdoc! { "q": exactly(&document, &pattern), "limit": 1 });
            batch.statements += 1;
        }
        Ok(batch)
    };
    tokio::task::spawn_blocking(work).await.map_err(internal)?
}

/// A filter for this document and no other that may have taken its `_id` meanwhile.
fn exactly(document: &RawDocument, pattern: &ShardKeyPattern) -> RawDocumentBuf {
    let mut filter = RawDocumentBuf::new();
    if let Ok(Some(id)) = document.get("_id") {
        filter.append(cstr!("_id"), rawdoc! { "$eq": RawBson::from(id) });
    }
    for field in pattern
        .fields()
        .iter()
        .filter(|field| field.name() != "_id")
    {
        let value = banyan_document::path::get(document, field.path());
        let value = value.map_or(RawBson::Null, RawBson::from);
        if let Ok(name) = bson::raw::CString::try_from(field.name()) {
            filter.append(name, rawdoc! { "$eq": value });
        }
    }
    filter
}
