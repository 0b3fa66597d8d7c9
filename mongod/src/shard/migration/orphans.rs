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
//! gone ([`crate::shard::logged`]), and an open cursor goes on in the snapshot that it began in. So
//! a range that is to come back is removed at once.
//!
//! Tasks know nothing of each other: one that fails is tried again later, and stops nobody.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use banyan_node::params;
use banyan_replication::write::remove::Removed;
use banyan_sharding::{ChunkRange, ShardKeyPattern};
use banyan_wire::{CommandError, ErrorCode, Treatment};
use bson::oid::ObjectId;
use bson::spec::BinarySubtype;
use bson::{Binary, DateTime, RawDocument, RawDocumentBuf, cstr, rawdoc};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::removal::remove_task;
use crate::shard::errors::bad_value;
use crate::shard::role::ShardRole;

const COLLECTION: &str = "rangeDeletions";

/// Between two looks at what is to be removed, if nobody gives a hint.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);

const ASK_TIMEOUT: Duration = Duration::from_secs(5);

/// Between two questions to a donor whether its migration is over.
const ASK_PAUSE: Duration = Duration::from_millis(500);

/// Nobody waits for a task that has failed so often.
const FAILURES_MAX: u32 = 3;

/// A task that failed rests for this long, and twice as long each time that it fails again.
const BACKOFF: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(60);

const COMPLAINT_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Default)]
pub struct Orphans {
    known: Mutex<HashMap<ObjectId, Progress>>,
    /// Held from finding that a range may be removed or received until that is known to others.
    pub gate: tokio::sync::Mutex<()>,
    /// Whose batch it is.
    pub turn: tokio::sync::Mutex<()>,
    wake: Notify,
    documents_removed: AtomicU64,
    bytes_removed: AtomicU64,
    /// When a document that makes no sense was last complained of.
    complained: Mutex<Option<Instant>>,
}

/// What is known of a task beside its document.
#[derive(Default)]
struct Progress {
    ns: String,
    running: bool,
    /// A range that overlaps is to be received: no delay any more.
    urgent: bool,
    /// About how much of it is left.
    bytes: u64,
    failures: u32,
    rests_until: Option<Instant>,
    error: Option<CommandError>,
}

/// A document of config.rangeDeletions.
#[derive(Clone)]
pub struct Task {
    pub id: ObjectId,
    pub ns: String,
    pub uuid: Vec<u8>,
    pub pattern: ShardKeyPattern,
    pub range: ChunkRange,
    pending: bool,
    delayed: bool,
    ready_at: Option<DateTime>,
    bytes: u64,
    from_host: Option<String>,
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
    fn is_ripe(&self, delay: Duration) -> bool {
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
    pub async fn add(&self, role: &ShardRole, task: NewTask<'_>) -> Result<(), CommandError> {
        let (id, ns, bytes) = (task.id, task.ns.to_owned(), task.bytes);
        let body = rawdoc! {
            "update": COLLECTION,
            "updates": [{ "q": { "_id": id }, "u": task.document(), "upsert": true }],
        };
        role.local.write("config", body).await?;
        self.known.lock().entry(id).or_insert_with(|| Progress {
            ns,
            bytes,
            ..Progress::default()
        });
        self.wake.notify_one();
        Ok(())
    }

    /// The migration came to nothing: what it brought is to be removed.
    pub async fn make_due(&self, role: &ShardRole, id: ObjectId) -> Result<(), CommandError> {
        let body = rawdoc! {
            "update": COLLECTION,
            "updates": [{
                "q": { "_id": id },
                "u": { "$unset": { "pending": true }, "$set": { "whenToClean": "now" } },
            }],
        };
        role.local.write("config", body).await?;
        self.wake.notify_one();
        Ok(())
    }

    pub async fn forget(&self, role: &ShardRole, id: ObjectId) -> Result<(), CommandError> {
        let body =
            rawdoc! { "delete": COLLECTION, "deletes": [{ "q": { "_id": id }, "limit": 1 }] };
        role.local.write("config", body).await?;
        self.known.lock().remove(&id);
        Ok(())
    }

    /// Waits until a task is done. One that fails is gone on with, but not waited for.
    pub async fn wait_for(&self, role: &ShardRole, id: ObjectId) -> Result<(), CommandError> {
        loop {
            let body = rawdoc! { "find": COLLECTION, "filter": { "_id": id } };
            if role.local.find("config", body).await?.is_empty() {
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

    /// Has what is left of a range removed at once. False if nothing is; the error of one that
    /// cannot be removed.
    pub async fn hurry(
        &self,
        role: &ShardRole,
        ns: &str,
        range: &ChunkRange,
    ) -> Result<bool, CommandError> {
        let mut waits = false;
        for task in tasks(role).await? {
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

fn progress_of(task: &Task) -> Progress {
    Progress {
        ns: task.ns.clone(),
        bytes: task.bytes,
        ..Progress::default()
    }
}

/// All tasks that can be read. One that cannot is said, and left alone.
async fn tasks(role: &ShardRole) -> Result<Vec<Task>, CommandError> {
    let body = rawdoc! { "find": COLLECTION };
    let documents = role.local.find("config", body).await?;
    let parse = |document: &RawDocumentBuf| match Task::parse(document) {
        Ok(task) => Some(task),
        Err(error) => {
            role.orphans.complain(document, &error);
            None
        }
    };
    Ok(documents.iter().filter_map(parse).collect())
}

pub async fn run(role: Arc<ShardRole>) {
    let stop = role.node().info.stop.clone();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = role.orphans.wake.notified() => {}
            () = tokio::time::sleep(LOOK_INTERVAL) => {}
        }
        if role.identity().is_none() {
            continue;
        }
        if role.term() == 0 {
            role.orphans.known.lock().retain(|_, known| known.running);
            continue;
        }
        if let Err(error) = round(&role).await {
            tracing::warn!(%error, "cannot look for orphaned documents");
        }
    }
}

/// Starts what is due.
async fn round(role: &Arc<ShardRole>) -> Result<(), CommandError> {
    let tasks = tasks(role).await?;
    {
        let mut known = role.orphans.known.lock();
        known.retain(|id, progress| progress.running || tasks.iter().any(|task| task.id == *id));
        for task in &tasks {
            known.entry(task.id).or_insert_with(|| progress_of(task));
        }
    }
    for task in tasks {
        let role = role.clone();
        if task.pending {
            // Asking may take a while, and others need not wait for it.
            if claim(&role, &task) {
                tokio::spawn(async move { settle(&role, &task).await });
            }
        } else if is_due(&role, &task) && begin(&role, &task).await? {
            tokio::spawn(async move { work(&role, &task).await });
        }
    }
    Ok(())
}

/// Marks a pending task as being asked about.
fn claim(role: &ShardRole, task: &Task) -> bool {
    let mut known = role.orphans.known.lock();
    let progress = known.entry(task.id).or_insert_with(|| progress_of(task));
    let rests = progress
        .rests_until
        .is_some_and(|until| until > Instant::now());
    !rests && !std::mem::replace(&mut progress.running, true)
}

fn is_due(role: &ShardRole, task: &Task) -> bool {
    let delay = role.node().parameters.value("orphanCleanupDelaySecs");
    let delay = Duration::from_secs(delay.max(0).unsigned_abs());
    let known = role.orphans.known.lock();
    let progress = known.get(&task.id);
    let rests = progress.and_then(|progress| progress.rests_until);
    !progress.is_some_and(|progress| progress.running)
        && rests.is_none_or(|until| until <= Instant::now())
        && (task.is_ripe(delay) || progress.is_some_and(|progress| progress.urgent))
}

/// Marks the task as running, unless what is on its way in might be taken for what was on its way
/// out, or it is done by now.
async fn begin(role: &ShardRole, task: &Task) -> Result<bool, CommandError> {
    let _gate = role.orphans.gate.lock().await;
    let present = tasks(role).await?;
    let disturbed = present
        .iter()
        .any(|other| other.pending && other.ns == task.ns && other.range.overlaps(&task.range));
    if disturbed || !present.iter().any(|other| other.id == task.id) {
        return Ok(false);
    }
    let mut known = role.orphans.known.lock();
    let progress = known.entry(task.id).or_insert_with(|| progress_of(task));
    Ok(!std::mem::replace(&mut progress.running, true))
}

async fn work(role: &Arc<ShardRole>, task: &Task) {
    let started = Instant::now();
    let outcome = remove_task(role, task).await;
    let mut known = role.orphans.known.lock();
    if let Err(error) = &outcome {
        let progress = known.entry(task.id).or_insert_with(|| progress_of(task));
        progress.running = false;
        progress.failures += 1;
        let pause = BACKOFF * (1 << (progress.failures - 1).min(6));
        progress.rests_until = Some(Instant::now() + pause.min(BACKOFF_MAX));
        progress.error = Some(error.clone());
        tracing::warn!(
            ns = task.ns, range = %task.range, failures = progress.failures, %error,
            "orphaned documents stay for now"
        );
    } else {
        known.remove(&task.id);
        let milliseconds = started.elapsed().as_millis() as u64;
        tracing::info!(ns = task.ns, range = %task.range, milliseconds, "removed orphans");
    }
}

/// Makes a task due if its migration has come to an end that nobody told.
async fn settle(role: &Arc<ShardRole>, task: &Task) {
    let is_over = !is_receiving(role, task.id) && came_to_an_end(role, task).await;
    if let Some(progress) = role.orphans.known.lock().get_mut(&task.id) {
        progress.running = false;
        progress.rests_until = (!is_over).then(|| Instant::now() + ASK_PAUSE);
    }
    if is_over && let Err(error) = role.orphans.make_due(role, task.id).await {
        tracing::warn!(ns = task.ns, range = %task.range, %error, "a migration is not settled");
    }
}

fn is_receiving(role: &ShardRole, id: ObjectId) -> bool {
    let reception = role.reception.lock();
    reception
        .as_ref()
        .is_some_and(|reception| reception.id == id && reception.is_active())
}

/// Asks the donor whether it still may commit. Only then does the routing table tell the truth.
async fn came_to_an_end(role: &ShardRole, task: &Task) -> bool {
    let Some(host) = &task.from_host else {
        return true;
    };
    let body = rawdoc! { "_shardsvrMigrationIsOpen": task.ns.as_str(), "migrationId": task.id };
    let treatment = Treatment::write()
        .idempotent()
        .timeout(Some(ASK_TIMEOUT))
        .patience(ASK_TIMEOUT);
    let asked = async {
        let peer = role.peer(host)?;
        peer.command(treatment, "admin", &body)
            .await
            .map_err(CommandError::from)
    };
    match asked.await {
        Ok(reply) => !reply.get_bool("open").unwrap_or(true),
        // Later, then.
        Err(_) => false,
    }
}
