//! Documents that this shard holds and does not own, and when they go.
//!
//! Each range to remove is a document of the shard's own `config.rangeDeletions`, so that a restart
//! or another primary goes on with it. A recipient writes one with `pending: true` before it
//! receives anything; it becomes due if the migration fails. A donor writes one when the migration
//! has committed. Nothing is removed on the word of that document alone: the routing table, read
//! anew, must say that the range is somebody else's ([`super::removal`]).
//!
//! A donor's orphans stay for `orphanCleanupDelaySecs`, for the sake of reads that do not say which
//! ranges they count on (`available`, and those that come straight to the shard). Reads with a
//! version need no delay: a member that could see the removal has learned before that the range is
//! gone ([`crate::shard::logged`]), and an open cursor never goes on in a state after the removal's
//! beginning ([`banyan_execution::later`]). So a range that is to come back is removed at once.
//!
//! Tasks know nothing of each other: one that fails is tried again later, and stops nobody.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use banyan_node::local::Local;
use banyan_node::params;
use banyan_replication::write::remove::Removed;
use banyan_sharding::{ChunkRange, ShardKeyPattern};
use banyan_wire::{CommandError, ErrorCode};
use bson::oid::ObjectId;
use bson::spec::BinarySubtype;
use bson::{Binary, DateTime, RawDocument, RawDocumentBuf, cstr, rawdoc};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::shard::errors::bad_value;

const COLLECTION: &str = "rangeDeletions";

/// Nobody waits for a task that has failed so often.
const FAILURES_MAX: u32 = 3;

const COMPLAINT_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Default)]
pub struct Orphans {
    pub(super) known: Mutex<HashMap<ObjectId, Progress>>,
    /// Held from finding that a range may be removed or received until that is known to others.
    pub gate: tokio::sync::Mutex<()>,
    /// Whose batch it is.
    pub turn: tokio::sync::Mutex<()>,
    pub(super) wake: Notify,
    documents_removed: AtomicU64,
    bytes_removed: AtomicU64,
    /// When a document that makes no sense was last complained of.
    complained: Mutex<Option<Instant>>,
}

/// What is known of a task beside its document.
#[derive(Default)]
pub(super) struct Progress {
    ns: String,
    pub running: bool,
    /// A range that overlaps is to be received: no delay any more.
    pub urgent: bool,
    /// About how much of it is left.
    bytes: u64,
    pub failures: u32,
    pub rests_until: Option<Instant>,
    pub error: Option<CommandError>,
}

/// A document of config.rangeDeletions.
#[derive(Clone)]
pub struct Task {
    pub id: ObjectId,
    pub ns: String,
    pub uuid: Vec<u8>,
    pub pattern: ShardKeyPattern,
    pub range: ChunkRange,
    pub(super) pending: bool,
    delayed: bool,
    ready_at: Option<DateTime>,
    bytes: u64,
    pub(super) from_host: Option<String>,
}

impl Task {
    fn parse(document: &RawDocument) -> Result<Task, CommandError> {
        let key = document.get_document("keyPattern").map_err(bad_value)?;
        let pattern = ShardKeyPattern::parse(key).map_err(bad_value)?;
        let range = document.get_document("range").map_err(bad_value)?;
        let min = range.get_document("min").map_err(bad_value)?;
        let max = range.get_document("max").map_err(bad_value)?;
        let bytes = document.get("orphanBytes").ok().flatten();
        Ok(Task {
            id: document.get_object_id("_id").map_err(bad_value)?,
            ns: document.get_str("nss").map_err(bad_value)?.to_owned(),
            uuid: document
                .get_binary("collectionUuid")
                .map_err(bad_value)?
                .bytes
                .to_vec(),
            range: ChunkRange::parse(&pattern, min, max).map_err(bad_value)?,
            pattern,
            pending: document.get_bool("pending").unwrap_or(false),
            delayed: document
                .get_str("whenToClean")
                .is_ok_and(|when| when == "delayed"),
            ready_at: document.get_datetime("readyAt").ok(),
            bytes: bytes
                .and_then(params::number)
                .map_or(0, |bytes| bytes.max(0).unsigned_abs()),
            from_host: document.get_str("donorHost").ok().map(str::to_owned),
        })
    }

    /// Whether it has lain for as long as it has to.
    pub(super) fn is_ripe(&self, delay: Duration) -> bool {
        let Some(ready_at) = self.ready_at.filter(|_| self.delayed) else {
            return true;
        };
        // A clock that was set back must not keep it for ever.
        let age = SystemTime::now().duration_since(ready_at.to_system_time());
        age.is_ok_and(|age| age >= delay)
    }
}

/// What a task is written down as.
pub struct NewTask<'a> {
    pub id: ObjectId,
    pub ns: &'a str,
    pub uuid: [u8; 16],
    pub key: RawDocumentBuf,
    pub min: RawDocumentBuf,
    pub max: RawDocumentBuf,
    pub donor: &'a str,
    /// The documents that wait, and their bytes.
    pub documents: u64,
    pub bytes: u64,
    pub kind: Kind<'a>,
}

pub enum Kind<'a> {
    /// Received from this host, as long as the migration is open.
    Pending { donor_host: &'a str },
    /// Given away.
    Delayed,
    /// Given away, and somebody waits for its end.
    Now,
}

impl NewTask<'_> {
    fn document(self) -> RawDocumentBuf {
        let count = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let uuid = Binary {
            subtype: BinarySubtype::Uuid,
            bytes: self.uuid.to_vec(),
        };
        let mut document = rawdoc! {
            "_id": self.id,
            "nss": self.ns,
            "collectionUuid": uuid,
            "donorShardId": self.donor,
            "keyPattern": self.key,
            "range": { "min": self.min, "max": self.max },
            "numOrphanDocs": count(self.documents),
            "orphanBytes": count(self.bytes),
            "readyAt": DateTime::now(),
        };
        match self.kind {
            Kind::Pending { donor_host } => {
                document.append(cstr!("donorHost"), donor_host);
                document.append(cstr!("whenToClean"), "now");
                document.append(cstr!("pending"), true);
            }
            Kind::Delayed => document.append(cstr!("whenToClean"), "delayed"),
            Kind::Now => document.append(cstr!("whenToClean"), "now"),
        }
        document
    }
}

impl Orphans {
    /// About how much of a collection waits to be removed.
    pub fn bytes(&self, ns: &str) -> u64 {
        let known = self.known.lock();
        let of_collection = known.values().filter(|progress| progress.ns == ns);
        of_collection.map(|progress| progress.bytes).sum()
    }

    /// `rangeDeleterTasks` and the like, for `serverStatus`.
    pub fn statistics(&self, out: &mut RawDocumentBuf) {
        let count = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let known = self.known.lock();
        let failing = known.values().filter(|progress| progress.error.is_some());
        let mut errors = bson::RawArrayBuf::new();
        for progress in failing.take(10) {
            let Some(error) = &progress.error else {
                continue;
            };
            errors.push(rawdoc! {
                "nss": progress.ns.as_str(),
                "attempts": i64::from(progress.failures),
                "code": error.code.code(),
                "errmsg": error.message.as_str(),
            });
        }
        out.append(cstr!("rangeDeleterTasks"), count(known.len() as u64));
        out.append(cstr!("rangeDeleterTasksFailing"), errors);
        let documents = self.documents_removed.load(Ordering::Relaxed);
        out.append(cstr!("countDocsDeletedByRangeDeleter"), count(documents));
        let bytes = self.bytes_removed.load(Ordering::Relaxed);
        out.append(cstr!("countBytesDeletedByRangeDeleter"), count(bytes));
    }

    /// Somebody has to look at it, but need not be told all the time.
    fn complain(&self, document: &RawDocument, error: &CommandError) {
        let mut complained = self.complained.lock();
        if complained.is_none_or(|last| last.elapsed() > COMPLAINT_INTERVAL) {
            *complained = Some(Instant::now());
            let id = document.get("_id").ok().flatten();
            tracing::warn!(?id, %error, "a document of config.rangeDeletions makes no sense");
        }
    }

    pub fn bytes_removed(&self) -> u64 {
        self.bytes_removed.load(Ordering::Relaxed)
    }

    /// Writes down a range to remove.
    pub async fn add(&self, local: &Local, task: NewTask<'_>) -> Result<(), CommandError> {
        let (id, ns, bytes) = (task.id, task.ns.to_owned(), task.bytes);
        let body = rawdoc! {
            "update": COLLECTION,
            "updates": [{ "q": { "_id": id }, "u": task.document(), "upsert": true }],
        };
        local.write("config", body).await?;
        self.known.lock().entry(id).or_insert_with(|| Progress {
            ns,
            bytes,
            ..Progress::default()
        });
        self.wake.notify_one();
        Ok(())
    }

    /// The migration came to nothing: what it brought is to be removed.
    pub async fn make_due(&self, local: &Local, id: ObjectId) -> Result<(), CommandError> {
        let body = rawdoc! {
            "update": COLLECTION,
            "updates": [{
                "q": { "_id": id },
                "u": { "$unset": { "pending": true }, "$set": { "whenToClean": "now" } },
            }],
        };
        local.write("config", body).await?;
        self.wake.notify_one();
        Ok(())
    }

    pub async fn forget(&self, local: &Local, id: ObjectId) -> Result<(), CommandError> {
        let body =
            rawdoc! { "delete": COLLECTION, "deletes": [{ "q": { "_id": id }, "limit": 1 }] };
        local.write("config", body).await?;
        self.known.lock().remove(&id);
        Ok(())
    }

    /// Waits until a task is done. One that fails is gone on with, but not waited for.
    pub async fn wait_for(&self, local: &Local, id: ObjectId) -> Result<(), CommandError> {
        loop {
            let body = rawdoc! { "find": COLLECTION, "filter": { "_id": id } };
            if local.find("config", body).await?.is_empty() {
                return Ok(());
            }
            let error = {
                let known = self.known.lock();
                known.get(&id).and_then(|progress| progress.error.clone())
            };
            if let Some(error) = error {
                let message = format!("the range has moved, but its orphans stay: {error}");
                return Err(CommandError::new(ErrorCode::OperationFailed, message));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// A batch of a task is gone.
    pub fn removed(&self, task: &Task, removed: Removed) {
        self.documents_removed
            .fetch_add(removed.documents, Ordering::Relaxed);
        self.bytes_removed
            .fetch_add(removed.bytes, Ordering::Relaxed);
        if let Some(progress) = self.known.lock().get_mut(&task.id) {
            progress.bytes = progress.bytes.saturating_sub(removed.bytes);
        }
    }

    /// All tasks that can be read. One that cannot is said, and left alone.
    pub(super) async fn tasks(&self, local: &Local) -> Result<Vec<Task>, CommandError> {
        let body = rawdoc! { "find": COLLECTION };
        let documents = local.find("config", body).await?;
        let parse = |document: &RawDocumentBuf| match Task::parse(document) {
            Ok(task) => Some(task),
            Err(error) => {
                self.complain(document, &error);
                None
            }
        };
        Ok(documents.iter().filter_map(parse).collect())
    }

    /// Has what is left of a range removed at once. False if nothing is; the error of one that
    /// cannot be removed.
    pub async fn hurry(
        &self,
        local: &Local,
        ns: &str,
        range: &ChunkRange,
    ) -> Result<bool, CommandError> {
        let mut waits = false;
        for task in self.tasks(local).await? {
            if task.ns != ns || !task.range.overlaps(range) {
                continue;
            }
            waits = true;
            let mut known = self.known.lock();
            let progress = known.entry(task.id).or_insert_with(|| progress_of(&task));
            progress.urgent = true;
            if let Some(error) = &progress.error
                && progress.failures >= FAILURES_MAX
            {
                let message = format!(
                    "range {range} overlaps with orphaned documents in {} that cannot be removed: \
                     {error}",
                    task.range
                );
                return Err(CommandError::new(
                    ErrorCode::ConflictingOperationInProgress,
                    message,
                ));
            }
        }
        if waits {
            self.wake.notify_one();
        }
        Ok(waits)
    }
}

pub(super) fn progress_of(task: &Task) -> Progress {
    Progress {
        ns: task.ns.clone(),
        bytes: task.bytes,
        ..Progress::default()
    }
}
