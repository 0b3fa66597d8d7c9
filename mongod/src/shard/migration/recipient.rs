//! The shard that receives a range.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::recipient_state::{Phase, RecipientState};
use super::removal;
use crate::shard::definitions;
use crate::shard::errors::{bad_value, conflict, internal};
use crate::shard::keys::documents_in_range;
use crate::shard::state::ShardRole;
use banyan_replication::sessions::histories::History;
use banyan_sharding::ChunkRange;
use banyan_wire::{CommandError, ErrorCode, RequestOptions};
use bson::oid::ObjectId;
use bson::{RawArray, RawArrayBuf, RawBson, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

const ASK_TIMEOUT: Duration = Duration::from_secs(60);

/// Between two questions for what sessions have done, while the range is followed.
const SESSIONS_PAUSE: Duration = Duration::from_secs(1);

/// Between two looks whether orphans are still in the way.
const ORPHANS_PAUSE: Duration = Duration::from_millis(50);

/// Between two questions for changes when there were none.
const QUIET_PAUSE: Duration = Duration::from_millis(20);

/// Takes the place of the one migration that a shard receives at a time and starts to work.
pub fn start(role: &Arc<ShardRole>, recipient: RecipientState) -> Result<(), CommandError> {
    let recipient = Arc::new(recipient);
    {
        let mut slot = role.recipient.lock();
        if let Some(other) = &*slot
            && other.is_active()
        {
            return Err(conflict(format!(
                "this shard is currently receiving a chunk of {}",
                other.ns
            )));
        }
        *slot = Some(recipient.clone());
    }
    let role = role.clone();
    tokio::spawn(async move {
        if let Err(error) = receive(&role, &recipient).await {
            tracing::warn!(ns = recipient.ns, range = %recipient.range, %error, "receiving failed");
            recipient.fail(error);
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
        .recipient
        .lock()
        .clone()
        .filter(|recipient| recipient.id == id);
    if committed {
        role.refresh(ns).await?;
        role.orphans.forget(&role.local, id).await?;
    } else {
        if let Some(recipient) = &active {
            recipient.abandon();
            recipient.wait_until_over().await;
        }
        role.orphans.make_due(&role.local, id).await?;
    }
    if active.is_some() {
        let mut slot = role.recipient.lock();
        if slot.as_ref().is_some_and(|recipient| recipient.id == id) {
            *slot = None;
        }
    }
    Ok(())
}

async fn receive(
    role: &Arc<ShardRole>,
    recipient: &Arc<RecipientState>,
) -> Result<(), CommandError> {
    make_room(role, recipient).await?;
    make_collection(role, recipient).await?;
    tracing::debug!(ns = recipient.ns, range = %recipient.range, "room is made for a range");
    recipient.enter(Phase::Clone);
    clone_all(role, recipient).await?;
    let cloned = recipient.cloned.load(Ordering::Relaxed);
    tracing::debug!(ns = recipient.ns, range = %recipient.range, cloned, "cloned a range");
    adopt_histories(role, recipient).await?;
    recipient.enter(Phase::CatchUp);
    let mut adopted = Instant::now();
    loop {
        recipient.check()?;
        // Looked at before the question, so that an empty answer after it is the last.
        let last_call = recipient.last_call.load(Ordering::Acquire);
        if catch_up_once(role, recipient).await? {
            continue;
        }
        if last_call {
            adopt_histories(role, recipient).await?;
            // From here on the donor may throw its own away.
            role.node().replica.sync_log().await?;
            recipient.enter(Phase::Done);
            return Ok(());
        }
        if adopted.elapsed() > SESSIONS_PAUSE {
            adopt_histories(role, recipient).await?;
            adopted = Instant::now();
        }
        recipient.enter(Phase::Steady);
        let _ = tokio::time::timeout(QUIET_PAUSE, recipient.nudge.notified()).await;
    }
}

/// Waits until nothing is left of the range from before, writes down what is coming, and makes sure
/// that the range may come.
async fn make_room(role: &Arc<ShardRole>, recipient: &RecipientState) -> Result<(), CommandError> {
    let orphans = &role.orphans;
    let before = orphans.bytes_removed();
    loop {
        recipient.check()?;
        let gate = orphans.gate.lock().await;
        if !orphans
            .hurry(&role.local, &recipient.ns, &recipient.range)
            .await?
        {
            orphans.add(&role.local, recipient.task()).await?;
            break;
        }
        drop(gate);
        let cleared = orphans.bytes_removed() - before;
        recipient.cleared.store(cleared, Ordering::Relaxed);
        tokio::time::sleep(ORPHANS_PAUSE).await;
    }
    let term = role.node().replica.writable_term()?;
    role.refresh(&recipient.ns).await?;
    let filter = role.collection(&recipient.ns).filter();
    let filter = filter.ok_or_else(|| conflict("the collection is not sharded any more"))?;
    if filter.table.uuid() != recipient.uuid {
        return Err(conflict("the collection was dropped and made again"));
    }
    if filter
        .table
        .overlapping(&recipient.range)
        .any(|chunk| chunk.shard == filter.shard)
    {
        return Err(conflict("this shard owns a part of the range already"));
    }
    // What no task speaks of, such as that of a migration that is just being concluded here.
    let (ns, pattern, range) = (&recipient.ns, &recipient.pattern, &recipient.range);
    match removal::remove_range(role, ns, pattern, range, term, |_| {}).await {
        // No index yet: nothing to remove either.
        Err(error) if error.code == ErrorCode::IndexNotFound => Ok(()),
        outcome => outcome,
    }
}

async fn ask(
    role: &ShardRole,
    recipient: &RecipientState,
    request: &RawDocument,
) -> Result<RawDocumentBuf, CommandError> {
    recipient.check()?;
    let request_options = RequestOptions::write()
        .timeout(Some(ASK_TIMEOUT))
        .server_selection_timeout(Duration::from_secs(5));
    Ok(role
        .peer(&recipient.from_host)?
        .command(request_options, "admin", request)
        .await?)
}

/// The collection with the donor's options and indexes.
async fn make_collection(role: &ShardRole, recipient: &RecipientState) -> Result<(), CommandError> {
    let request = rawdoc! { "_shardsvrDescribeCollection": recipient.ns.as_str() };
    let described = ask(role, recipient, &request).await?;
    let options = described.get_document("options").map_err(bad_value)?;
    let indexes = described.get_array("indexes").map_err(bad_value)?;
    definitions::create_collection(role, &recipient.ns, options, indexes).await
}

/// Clones all parts of the range at once.
async fn clone_all(
    role: &Arc<ShardRole>,
    recipient: &Arc<RecipientState>,
) -> Result<(), CommandError> {
    let mut streams = tokio::task::JoinSet::new();
    let mut min = recipient.range.min.clone();
    let ends = recipient
        .cuts
        .iter()
        .chain(std::iter::once(&recipient.range.max));
    for max in ends {
        let part = ChunkRange {
            min,
            max: max.clone(),
        };
        min = max.clone();
        let (role, recipient) = (role.clone(), recipient.clone());
        streams.spawn(async move { clone_part(&role, &recipient, &part).await });
    }
    while let Some(ended) = streams.join_next().await {
        // The first failure ends the others with the set.
        ended.map_err(internal)??;
    }
    Ok(())
}

async fn clone_part(
    role: &ShardRole,
    recipient: &RecipientState,
    part: &ChunkRange,
) -> Result<(), CommandError> {
    let (database, collection) = recipient.namespace()?;
    let mut after: Option<(RawBson, RawBson)> = None;
    loop {
        let mut request = rawdoc! {
            "_migrateClone": recipient.ns.as_str(),
            "migrationId": recipient.id,
            "min": part.min.document().to_owned(),
            "max": part.max.document().to_owned(),
        };
        if let Some((key, record)) = after.take() {
            request.append(cstr!("afterKey"), key);
            request.append(cstr!("afterRecord"), record);
        }
        let reply = ask(role, recipient, &request).await?;
        let objects = reply.get_array("objects").map_err(bad_value)?;
        let count = objects.into_iter().count() as u64;
        if count > 0 {
            // The donor took them as they are.
            let body = rawdoc! {
                "insert": collection,
                "documents": objects.to_owned(),
                "bypassDocumentValidation": true,
            };
            role.local.write(database, body).await?;
            recipient.cloned.fetch_add(count, Ordering::Relaxed);
            let bytes = objects.as_bytes().len() as u64;
            recipient.cloned_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        if reply.get_bool("done").map_err(bad_value)? {
            return Ok(());
        }
        let last = |name: &str| -> Result<RawBson, CommandError> {
            let value = reply.get(name).map_err(bad_value)?;
            let value = value.ok_or_else(|| bad_value("a clone batch without an end"))?;
            Ok(RawBson::from(value))
        };
        after = Some((last("lastKey")?, last("lastRecord")?));
    }
}

/// Fetches what the donor's sessions have done since the last time, so that what they try again is
/// known here.
async fn adopt_histories(role: &ShardRole, recipient: &RecipientState) -> Result<(), CommandError> {
    let since = *recipient.sessions_until.lock();
    let mut request = rawdoc! {
        "_getNextSessionMods": recipient.ns.as_str(),
        "migrationId": recipient.id,
        "since": since,
    };
    let started = Instant::now();
    let (mut told, mut news) = (0, 0);
    let mut until = None;
    loop {
        let reply = ask(role, recipient, &request).await?;
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
        news += role.node().replica.adopt_histories(histories).await?;
        let Some(after) = reply.get("after").map_err(bad_value)? else {
            break;
        };
        request = rawdoc! {
            "_getNextSessionMods": recipient.ns.as_str(),
            "migrationId": recipient.id,
            "since": since,
            "after": RawBson::from(after),
        };
    }
    let milliseconds = started.elapsed().as_millis() as u64;
    tracing::debug!(
        ns = recipient.ns,
        told,
        news,
        milliseconds,
        "took over what sessions did"
    );
    *recipient.sessions_until.lock() = until.unwrap_or(since);
    Ok(())
}

/// Fetches and applies what has changed. False if there was nothing.
async fn catch_up_once(
    role: &Arc<ShardRole>,
    recipient: &RecipientState,
) -> Result<bool, CommandError> {
    let request = rawdoc! { "_transferMods": recipient.ns.as_str(), "migrationId": recipient.id };
    let reply = ask(role, recipient, &request).await?;
    let reload = reply.get_array("reload").map_err(bad_value)?;
    let deleted = reply.get_array("deleted").map_err(bad_value)?;
    let changes = reload.into_iter().count() + deleted.into_iter().count();
    if changes == 0 {
        return Ok(false);
    }
    delete_ids(role, recipient, deleted).await?;
    upsert(role, recipient, reload).await?;
    recipient
        .caught_up
        .fetch_add(changes as u64, Ordering::Relaxed);
    Ok(true)
}

/// By `_id` and nothing else, so that all of them go into one entry of the log.
///
/// Only what lies in the range: a document of ours may have the same `_id`.
async fn delete_ids(
    role: &Arc<ShardRole>,
    recipient: &RecipientState,
    ids: &RawArray,
) -> Result<(), CommandError> {
    let ids: Vec<RawBson> = ids.into_iter().flatten().map(RawBson::from).collect();
    if ids.is_empty() {
        return Ok(());
    }
    let present = present(role, recipient, ids.clone()).await?;
    let mut deletes = RawArrayBuf::new();
    for (position, id) in ids.into_iter().enumerate() {
        if present.contains(&position) {
            deletes.push(rawdoc! { "q": { "_id": id }, "limit": 1 });
        }
    }
    if deletes.is_empty() {
        return Ok(());
    }
    let (database, collection) = recipient.namespace()?;
    let body = rawdoc! { "delete": collection, "deletes": deletes };
    role.local.write(database, body).await.map(drop)
}

/// Inserts what is not here yet, replaces what is. An `_id` of ours outside of the range is in the
/// way of both, which ends the migration with a duplicate key.
async fn upsert(
    role: &Arc<ShardRole>,
    recipient: &RecipientState,
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
    let present = present(role, recipient, ids.clone()).await?;
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
    let (database, collection) = recipient.namespace()?;
    if !inserts.is_empty() {
        let body = rawdoc! {
            "insert": collection, "documents": inserts, "bypassDocumentValidation": true,
        };
        role.local.write(database, body).await?;
    }
    if !updates.is_empty() {
        let body = rawdoc! {
            "update": collection, "updates": updates, "bypassDocumentValidation": true,
        };
        role.local.write(database, body).await?;
    }
    Ok(())
}

/// Which of these `_id`s are here, in the range.
async fn present(
    role: &Arc<ShardRole>,
    recipient: &RecipientState,
    ids: Vec<RawBson>,
) -> Result<HashSet<usize>, CommandError> {
    let node = role.node().clone();
    let (ns, pattern, range) = (
        recipient.ns.clone(),
        recipient.pattern.clone(),
        recipient.range.clone(),
    );
    let work = move || {
        let found = documents_in_range(&node, &ns, &pattern, &range, &ids)?;
        Ok(found.into_keys().collect())
    };
    tokio::task::spawn_blocking(work).await.map_err(internal)?
}
