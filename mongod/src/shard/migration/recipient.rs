//! The shard that receives a range.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use banyan_replication::sessions::histories::History;
use banyan_sharding::{ChunkRange, ShardKey, ShardKeyPattern};
use banyan_wire::{CommandError, ErrorCode, Treatment};
use bson::oid::ObjectId;
use bson::{
    RawArray, RawArrayBuf, RawBson, RawBsonRef, RawDocument, RawDocumentBuf, Timestamp, cstr,
    rawdoc,
};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::orphans::{Kind, NewTask};
use super::removal;
use crate::shard::definitions;
use crate::shard::errors::{bad_value, conflict, internal};
use crate::shard::keys::documents_in_range;
use crate::shard::role::ShardRole;

const ASK_TIMEOUT: Duration = Duration::from_secs(60);

/// Between two questions for what sessions have done, while the range is followed.
const SESSIONS_PAUSE: Duration = Duration::from_secs(1);

/// Between two looks whether orphans are still in the way.
const ORPHANS_PAUSE: Duration = Duration::from_millis(50);

/// Between two questions for changes when there were none.
const QUIET_PAUSE: Duration = Duration::from_millis(20);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Ready,
    Clone,
    CatchUp,
    Steady,
    Done,
    Fail,
}

impl Phase {
    pub fn name(self) -> &'static str {
        match self {
            Phase::Ready => "ready",
            Phase::Clone => "clone",
            Phase::CatchUp => "catchup",
            Phase::Steady => "steady",
            Phase::Done => "done",
            Phase::Fail => "fail",
        }
    }
}

/// A move to here that is under way.
pub struct Reception {
    pub id: ObjectId,
    pub ns: String,
    uuid: [u8; 16],
    pattern: ShardKeyPattern,
    pub range: ChunkRange,
    from: String,
    from_host: String,
    cuts: Vec<ShardKey>,
    progress: Mutex<(Phase, Option<CommandError>)>,
    /// Bytes of orphans that were in the way and are gone.
    pub cleared: AtomicU64,
    pub cloned: AtomicU64,
    pub cloned_bytes: AtomicU64,
    pub caught_up: AtomicU64,
    /// The time up to which it is known what the donor's sessions have done.
    sessions_until: Mutex<Timestamp>,
    /// The donor has stopped writes: what can be fetched now is the last.
    last_call: AtomicBool,
    abandoned: AtomicBool,
    /// A change of `progress`, for those who wait for it; a change of the flags, for the task.
    moved: Notify,
    nudge: Notify,
}

impl Reception {
    /// Reads `_recvChunkStart`.
    pub fn parse(body: &RawDocument) -> Result<Reception, CommandError> {
        let text = |name| body.get_str(name).map(str::to_owned).map_err(bad_value);
        let key = body.get_document("key").map_err(bad_value)?;
        let pattern = ShardKeyPattern::parse(key).map_err(bad_value)?;
        let min = body.get_document("min").map_err(bad_value)?;
        let max = body.get_document("max").map_err(bad_value)?;
        let mut cuts = Vec::new();
        for cut in body.get_array("cuts").map_err(bad_value)? {
            let cut = cut.map_err(bad_value)?;
            let cut = cut
                .as_document()
                .ok_or_else(|| bad_value("a cut is no document"))?;
            cuts.push(pattern.key_of_bound(cut).map_err(bad_value)?);
        }
        let uuid = body.get_binary("uuid").map_err(bad_value)?.bytes;
        Ok(Reception {
            id: body.get_object_id("migrationId").map_err(bad_value)?,
            ns: text("_recvChunkStart")?,
            uuid: uuid.try_into().map_err(bad_value)?,
            range: ChunkRange::parse(&pattern, min, max).map_err(bad_value)?,
            pattern,
            from: text("fromShard")?,
            from_host: text("fromShardHost")?,
            cuts,
            progress: Mutex::new((Phase::Ready, None)),
            cleared: AtomicU64::new(0),
            cloned: AtomicU64::new(0),
            cloned_bytes: AtomicU64::new(0),
            caught_up: AtomicU64::new(0),
            sessions_until: Mutex::new(Timestamp {
                time: 0,
                increment: 0,
            }),
            last_call: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
            moved: Notify::new(),
            nudge: Notify::new(),
        })
    }

    pub fn progress(&self) -> (Phase, Option<CommandError>) {
        self.progress.lock().clone()
    }

    /// Whether its task still runs. What it brought may be waiting for the donor's commit when it
    /// no longer does; the pending deletion says so then.
    pub fn is_active(&self) -> bool {
        !matches!(self.progress().0, Phase::Done | Phase::Fail)
    }

    fn enter(&self, phase: Phase) {
        let mut progress = self.progress.lock();
        if progress.0 != phase {
            progress.0 = phase;
            drop(progress);
            self.moved.notify_waiters();
        }
    }

    pub fn abandon(&self) {
        self.abandoned.store(true, Ordering::Release);
        self.nudge.notify_one();
    }

    fn check(&self) -> Result<(), CommandError> {
        if self.abandoned.load(Ordering::Acquire) {
            return Err(CommandError::new(
                ErrorCode::Interrupted,
                "the migration was abandoned",
            ));
        }
        Ok(())
    }

    /// Fetches the last changes and waits until they are in.
    pub async fn finish_up(&self) -> Result<(), CommandError> {
        self.last_call.store(true, Ordering::Release);
        self.nudge.notify_one();
        loop {
            let mut moved = std::pin::pin!(self.moved.notified());
            moved.as_mut().enable();
            match self.progress() {
                (Phase::Done, _) => return Ok(()),
                (Phase::Fail, error) => {
                    return Err(error.unwrap_or_else(|| internal("the migration failed")));
                }
                _ => moved.await,
            }
        }
    }

    fn namespace(&self) -> Result<(&str, &str), CommandError> {
        self.ns
            .split_once('.')
            .ok_or_else(|| internal("a namespace without a dot"))
    }
}

/// Takes the place of the shard's one reception and starts to work.
pub fn start(role: &Arc<ShardRole>, reception: Reception) -> Result<(), CommandError> {
    let reception = Arc::new(reception);
    {
        let mut slot = role.reception.lock();
        if let Some(other) = &*slot
            && other.is_active()
        {
            return Err(conflict(format!(
                "this shard is currently receiving a chunk of {}",
                other.ns
            )));
        }
        *slot = Some(reception.clone());
    }
    let role = role.clone();
    tokio::spawn(async move {
        if let Err(error) = receive(&role, &reception).await {
            tracing::warn!(ns = reception.ns, range = %reception.range, %error, "receiving failed");
            reception.progress.lock().1 = Some(error);
            reception.enter(Phase::Fail);
        }
    });
    Ok(())
}

/// The donor has said how it ended.
pub async fn finish(
    role: &Arc<ShardRole>,
    ns: &str,
    id: ObjectId,
    committed: bool,
) -> Result<(), CommandError> {
    let active = role
        .reception
        .lock()
        .clone()
        .filter(|reception| reception.id == id);
    if committed {
        role.refresh(ns).await?;
        role.orphans.forget(role, id).await?;
    } else {
        if let Some(reception) = &active {
            reception.abandon();
            wait_until_over(reception).await;
        }
        role.orphans.make_due(role, id).await?;
    }
    if active.is_some() {
        let mut slot = role.reception.lock();
        if slot.as_ref().is_some_and(|reception| reception.id == id) {
            *slot = None;
        }
    }
    Ok(())
}

async fn wait_until_over(reception: &Reception) {
    loop {
        let mut moved = std::pin::pin!(reception.moved.notified());
        moved.as_mut().enable();
        if !reception.is_active() {
            return;
        }
        moved.await;
    }
}

async fn receive(role: &Arc<ShardRole>, reception: &Arc<Reception>) -> Result<(), CommandError> {
    make_room(role, reception).await?;
    make_collection(role, reception).await?;
    tracing::debug!(ns = reception.ns, range = %reception.range, "room is made for a range");
    reception.enter(Phase::Clone);
    clone_all(role, reception).await?;
    let cloned = reception.cloned.load(Ordering::Relaxed);
    tracing::debug!(ns = reception.ns, range = %reception.range, cloned, "cloned a range");
    adopt_histories(role, reception).await?;
    reception.enter(Phase::CatchUp);
    let mut adopted = Instant::now();
    loop {
        reception.check()?;
        // Looked at before the question, so that an empty answer after it is the last.
        let last_call = reception.last_call.load(Ordering::Acquire);
        if catch_up_once(role, reception).await? {
            continue;
        }
        if last_call {
            adopt_histories(role, reception).await?;
            // From here on the donor may throw its own away.
            role.node().sync_log().await?;
            reception.enter(Phase::Done);
            return Ok(());
        }
        if adopted.elapsed() > SESSIONS_PAUSE {
            adopt_histories(role, reception).await?;
            adopted = Instant::now();
        }
        reception.enter(Phase::Steady);
        let _ = tokio::time::timeout(QUIET_PAUSE, reception.nudge.notified()).await;
    }
}

/// Waits until nothing is left of the range from before, writes down what is coming, and makes sure
/// that the range may come.
async fn make_room(role: &Arc<ShardRole>, reception: &Reception) -> Result<(), CommandError> {
    let orphans = &role.orphans;
    let before = orphans.bytes_removed();
    loop {
        reception.check()?;
        let gate = orphans.gate.lock().await;
        if !orphans.hurry(role, &reception.ns, &reception.range).await? {
            orphans.add(role, task(reception)).await?;
            break;
        }
        drop(gate);
        let cleared = orphans.bytes_removed() - before;
        reception.cleared.store(cleared, Ordering::Relaxed);
        tokio::time::sleep(ORPHANS_PAUSE).await;
    }
    let term = role.node().writable_term()?;
    role.refresh(&reception.ns).await?;
    let filter = role.collection(&reception.ns).filter();
    let filter = filter.ok_or_else(|| conflict("the collection is not sharded any more"))?;
    if filter.table.uuid() != reception.uuid {
        return Err(conflict("the collection was dropped and made again"));
    }
    if filter
        .table
        .overlapping(&reception.range)
        .any(|chunk| chunk.shard == filter.shard)
    {
        return Err(conflict("this shard owns a part of the range already"));
    }
    // What no task speaks of, such as that of a migration that is just being concluded here.
    let (ns, pattern, range) = (&reception.ns, &reception.pattern, &reception.range);
    match removal::remove_range(role, ns, pattern, range, term, |_| {}).await {
        // No index yet: nothing to remove either.
        Err(error) if error.code == ErrorCode::IndexNotFound => Ok(()),
        outcome => outcome,
    }
}

/// What is to be removed if this comes to nothing.
fn task(reception: &Reception) -> NewTask<'_> {
    NewTask {
        id: reception.id,
        ns: &reception.ns,
        uuid: reception.uuid,
        key: reception.pattern.document().to_owned(),
        min: reception.range.min.document().to_owned(),
        max: reception.range.max.document().to_owned(),
        donor: &reception.from,
        documents: 0,
        bytes: 0,
        kind: Kind::Pending {
            donor_host: &reception.from_host,
        },
    }
}

async fn ask(
    role: &ShardRole,
    reception: &Reception,
    request: &RawDocument,
) -> Result<RawDocumentBuf, CommandError> {
    reception.check()?;
    let treatment = Treatment::write()
        .timeout(Some(ASK_TIMEOUT))
        .patience(Duration::from_secs(5));
    Ok(role
        .peer(&reception.from_host)?
        .command(treatment, "admin", request)
        .await?)
}

/// The collection with the donor's options and indexes.
async fn make_collection(role: &ShardRole, reception: &Reception) -> Result<(), CommandError> {
    let request = rawdoc! { "_shardsvrDescribeCollection": reception.ns.as_str() };
    let described = ask(role, reception, &request).await?;
    let options = described.get_document("options").map_err(bad_value)?;
    let indexes = described.get_array("indexes").map_err(bad_value)?;
    definitions::create_collection(role, &reception.ns, options, indexes).await
}

/// Clones all parts of the range at once.
async fn clone_all(role: &Arc<ShardRole>, reception: &Arc<Reception>) -> Result<(), CommandError> {
    let mut streams = tokio::task::JoinSet::new();
    let mut min = reception.range.min.clone();
    let ends = reception
        .cuts
        .iter()
        .chain(std::iter::once(&reception.range.max));
    for max in ends {
        let part = ChunkRange {
            min,
            max: max.clone(),
        };
        min = max.clone();
        let (role, reception) = (role.clone(), reception.clone());
        streams.spawn(async move { clone_part(&role, &reception, &part).await });
    }
    while let Some(ended) = streams.join_next().await {
        // The first failure ends the others with the set.
        ended.map_err(internal)??;
    }
    Ok(())
}

async fn clone_part(
    role: &ShardRole,
    reception: &Reception,
    part: &ChunkRange,
) -> Result<(), CommandError> {
    let (database, collection) = reception.namespace()?;
    let mut after: Option<(RawBson, i64)> = None;
    loop {
        let mut request = rawdoc! {
            "_migrateClone": reception.ns.as_str(),
            "migrationId": reception.id,
            "min": part.min.document().to_owned(),
            "max": part.max.document().to_owned(),
        };
        if let Some((key, record)) = after.take() {
            request.append(cstr!("afterKey"), key);
            request.append(cstr!("afterRecord"), record);
        }
        let reply = ask(role, reception, &request).await?;
        let objects = reply.get_array("objects").map_err(bad_value)?;
        let count = objects.into_iter().count() as u64;
        if count > 0 {
            let body = rawdoc! { "insert": collection, "documents": objects.to_owned() };
            role.local.write(database, body).await?;
            reception.cloned.fetch_add(count, Ordering::Relaxed);
            let bytes = objects.as_bytes().len() as u64;
            reception.cloned_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        if reply.get_bool("done").map_err(bad_value)? {
            return Ok(());
        }
        let key = reply.get("lastKey").map_err(bad_value)?;
        let key = key.ok_or_else(|| bad_value("a clone batch without an end"))?;
        after = Some((
            RawBson::from(key),
            reply.get_i64("lastRecord").map_err(bad_value)?,
        ));
    }
}

/// Fetches what the donor's sessions have done since the last time, so that what they try again is
/// known here.
async fn adopt_histories(role: &ShardRole, reception: &Reception) -> Result<(), CommandError> {
    let since = *reception.sessions_until.lock();
    let mut request = rawdoc! {
        "_getNextSessionMods": reception.ns.as_str(),
        "migrationId": reception.id,
        "since": since,
    };
    let started = Instant::now();
    let (mut told, mut news) = (0, 0);
    let mut until = None;
    loop {
        let reply = ask(role, reception, &request).await?;
        // What is written while one page after the other is read is asked for the next time.
        until.get_or_insert(reply.get_timestamp("asOf").map_err(bad_value)?);
        let mut histories = Vec::new();
        for history in reply.get_array("histories").map_err(bad_value)? {
            let RawBsonRef::Binary(history) = history.map_err(bad_value)? else {
                return Err(bad_value("a session's history is no binary"));
            };
            histories.push(History::parse(history.bytes)?);
        }
        told += histories.len();
        news += role.node().adopt_histories(histories).await?;
        let Some(after) = reply.get("after").map_err(bad_value)? else {
            break;
        };
        request = rawdoc! {
            "_getNextSessionMods": reception.ns.as_str(),
            "migrationId": reception.id,
            "since": since,
            "after": RawBson::from(after),
        };
    }
    let milliseconds = started.elapsed().as_millis() as u64;
    tracing::debug!(
        ns = reception.ns,
        told,
        news,
        milliseconds,
        "took over what sessions did"
    );
    *reception.sessions_until.lock() = until.unwrap_or(since);
    Ok(())
}

/// Fetches and applies what has changed. False if there was nothing.
async fn catch_up_once(role: &Arc<ShardRole>, reception: &Reception) -> Result<bool, CommandError> {
    let request = rawdoc! { "_transferMods": reception.ns.as_str(), "migrationId": reception.id };
    let reply = ask(role, reception, &request).await?;
    let reload = reply.get_array("reload").map_err(bad_value)?;
    let deleted = reply.get_array("deleted").map_err(bad_value)?;
    let changes = reload.into_iter().count() + deleted.into_iter().count();
    if changes == 0 {
        return Ok(false);
    }
    delete_ids(role, reception, deleted).await?;
    upsert(role, reception, reload).await?;
    reception
        .caught_up
        .fetch_add(changes as u64, Ordering::Relaxed);
    Ok(true)
}

/// By `_id` and nothing else, so that all of them go into one entry of the log.
///
/// Only what lies in the range: a document of ours may have the same `_id`.
async fn delete_ids(
    role: &Arc<ShardRole>,
    reception: &Reception,
    ids: &RawArray,
) -> Result<(), CommandError> {
    let ids: Vec<RawBson> = ids.into_iter().flatten().map(RawBson::from).collect();
    if ids.is_empty() {
        return Ok(());
    }
    let present = present(role, reception, ids.clone()).await?;
    let mut deletes = RawArrayBuf::new();
    for (position, id) in ids.into_iter().enumerate() {
        if present.contains(&position) {
            deletes.push(rawdoc! { "q": { "_id": id }, "limit": 1 });
        }
    }
    if deletes.is_empty() {
        return Ok(());
    }
    let (database, collection) = reception.namespace()?;
    let body = rawdoc! { "delete": collection, "deletes": deletes };
    role.local.write(database, body).await.map(drop)
}

/// Inserts what is not here yet, replaces what is. An `_id` of ours outside of the range is in the
/// way of both, which ends the migration with a duplicate key.
async fn upsert(
    role: &Arc<ShardRole>,
    reception: &Reception,
    documents: &RawArray,
) -> Result<(), CommandError> {
    let mut ids = Vec::new();
    let mut changed = Vec::new();
    for document in documents {
        let Ok(RawBsonRef::Document(document)) = document else {
            return Err(bad_value("a changed document is no document"));
        };
        let id = document.get("_id").map_err(bad_value)?;
        let id = id.ok_or_else(|| bad_value("a changed document without _id"))?;
        ids.push(RawBson::from(id));
        changed.push(document);
    }
    let present = present(role, reception, ids.clone()).await?;
    let mut inserts = RawArrayBuf::new();
    let mut updates = RawArrayBuf::new();
    for (position, (id, document)) in ids.into_iter().zip(changed).enumerate() {
        if present.contains(&position) {
            updates.push(rawdoc! {
                "q": { "_id": id }, "u": document.to_owned(),
            });
        } else {
            inserts.push(document.to_owned());
        }
    }
    let (database, collection) = reception.namespace()?;
    if !inserts.is_empty() {
        let body = rawdoc! { "insert": collection, "documents": inserts };
        role.local.write(database, body).await?;
    }
    if !updates.is_empty() {
        let body = rawdoc! { "update": collection, "updates": updates };
        role.local.write(database, body).await?;
    }
    Ok(())
}

/// Which of these `_id`s are here, in the range.
async fn present(
    role: &Arc<ShardRole>,
    reception: &Reception,
    ids: Vec<RawBson>,
) -> Result<HashSet<usize>, CommandError> {
    let node = role.node().clone();
    let (ns, pattern, range) = (
        reception.ns.clone(),
        reception.pattern.clone(),
        reception.range.clone(),
    );
    let work = move || {
        let found = documents_in_range(&node, &ns, &pattern, &range, &ids)?;
        Ok(found.into_keys().collect())
    };
    tokio::task::spawn_blocking(work).await.map_err(internal)?
}
