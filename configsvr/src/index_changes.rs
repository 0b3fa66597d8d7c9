//! Changes of a sharded collection's indexes: on all of its shards or on none.
//!
//! One shard that owns a part of the collection plans the change: the list of indexes as it would be
//! afterwards. The note of it (config.indexChanges) is written before any shard changes anything,
//! and every shard makes its own list the one in the note; that can be repeated. A shard that
//! refuses (two of its documents have the same unique key) turns the note round: all of them go back
//! to the list of before. The note is removed last, and whoever becomes the config primary meanwhile
//! carries on from it. A shard asks for the note before it acts, so that the word of a former
//! primary that comes late does nothing.
//!
//! No chunk moves meanwhile: the moves' lock keeps new ones waiting and waits for those under way. A
//! move that this primary does not know of (an earlier one ordered it) cannot commit while the note
//! is there, nor, as `indexesChanged` in the collection's entry tells, afterwards.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use banyan_node::commands::table::BoxFuture;
use banyan_sharding::RoutingTable;
use banyan_wire::{CommandError, ErrorCode, RequestOptions};
use bson::oid::ObjectId;
use bson::{RawArrayBuf, RawDocument, RawDocumentBuf, rawdoc};
use tokio::time::Instant;

use crate::concurrent::join_all;
use crate::metadata::ShardEntry;
use crate::role::ConfigRole;
use crate::shards::SHORT;

/// Where the notes are.
pub const COLLECTION: &str = "indexChanges";

/// Building an index takes what it takes; a shard that is gone is noticed by itself.
const BUILD_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// A shard ends by itself when the client's time is over, and says so.
const GRACE: Duration = Duration::from_millis(500);

/// Between two looks for changes that could not be finished.
const SETTLE_PAUSE: Duration = Duration::from_secs(2);

/// A change that is under way.
#[derive(Debug, Clone)]
pub struct Note {
    pub ns: String,
    pub id: ObjectId,
    /// Of the collection that is meant.
    epoch: ObjectId,
    before: Vec<RawDocumentBuf>,
    after: Vec<RawDocumentBuf>,
    /// Back to what was before.
    pub undo: bool,
}

impl Note {
    pub fn parse(document: &RawDocument) -> bson::error::Result<Note> {
        let list = |name: &str| -> bson::error::Result<Vec<RawDocumentBuf>> {
            let mut specs = Vec::new();
            for spec in document.get_array(name)? {
                specs.extend(spec?.as_document().map(RawDocument::to_owned));
            }
            Ok(specs)
        };
        Ok(Note {
            ns: document.get_str("_id")?.to_owned(),
            id: document.get_object_id("change")?,
            epoch: document.get_object_id("epoch")?,
            before: list("before")?,
            after: list("after")?,
            undo: document.get_bool("undo")?,
        })
    }

    fn to_document(&self) -> RawDocumentBuf {
        let list = |specs: &[RawDocumentBuf]| specs.iter().cloned().collect::<RawArrayBuf>();
        rawdoc! {
            "_id": self.ns.as_str(),
            "change": self.id,
            "epoch": self.epoch,
            "before": list(&self.before),
            "after": list(&self.after),
            "undo": self.undo,
        }
    }

    /// The list that shards are to have.
    pub fn wanted(&self) -> &[RawDocumentBuf] {
        if self.undo { &self.before } else { &self.after }
    }

    /// Whether nothing is lost by going back: no index that others count on was dropped.
    fn only_adds(&self) -> bool {
        self.before.iter().all(|spec| self.after.contains(spec))
    }
}

/// Whether a change of the collection's indexes has begun and is not over.
pub async fn is_open(role: &ConfigRole, ns: &str) -> Result<bool, CommandError> {
    let note = role.metadata.find_one(COLLECTION, rawdoc! { "_id": ns });
    Ok(note.await?.is_some())
}

/// What a change answers: the command's reply, the same on each of the shards.
pub struct Changed {
    pub reply: RawDocumentBuf,
    pub shards: Vec<Arc<str>>,
}

/// Carries out a client's `createIndexes`, `dropIndexes` or `collMod` of a sharded collection.
pub async fn change(
    role: &ConfigRole,
    ns: &str,
    command: &RawDocument,
    deadline: Option<Instant>,
) -> Result<Changed, CommandError> {
    let _definition = in_time(deadline, role.definitions.lock(ns)).await?;
    settle(role, ns).await?;
    let _nothing_moves = in_time(deadline, role.moves.write(ns)).await?;
    let table = role.metadata.sharded_table(ns).await?;
    let shards = participants(role, &table).await?;
    let pilot = shards.first().ok_or_else(|| {
        CommandError::new(
            ErrorCode::ShardNotFound,
            "no shard owns a part of the collection",
        )
    })?;
    let body = rawdoc! { "_shardsvrPlanIndexes": ns, "command": command.to_owned() };
    let planned = role.shards.command(&pilot.host, &body, SHORT).await?;
    let list = |name: &str| -> Result<Vec<RawDocumentBuf>, CommandError> {
        let specs = planned.get_array(name).map_err(malformed)?;
        let specs = specs.into_iter().flatten();
        Ok(specs
            .filter_map(|spec| spec.as_document().map(RawDocument::to_owned))
            .collect())
    };
    let note = Note {
        ns: ns.to_owned(),
        id: ObjectId::new(),
        epoch: table.version().epoch,
        before: list("before")?,
        after: list("after")?,
        undo: false,
    };
    if note.before != note.after {
        {
            // A move commits before this, or not at all.
            let _lock = role.namespaces.lock(ns).await;
            role.metadata.put(COLLECTION, &[note.to_document()]).await?;
        }
        carry_out(role, note, deadline).await?;
    }
    Ok(Changed {
        reply: planned.get_document("reply").map_err(malformed)?.to_owned(),
        shards: shards.into_iter().map(|shard| shard.id).collect(),
    })
}

/// Finishes what was left open of the collection's indexes. The caller holds its definition's lock.
async fn settle(role: &ConfigRole, ns: &str) -> Result<(), CommandError> {
    let found = role
        .metadata
        .find_one(COLLECTION, rawdoc! { "_id": ns })
        .await?;
    let Some(document) = found else {
        return Ok(());
    };
    let note = Note::parse(&document).map_err(malformed)?;
    tracing::info!(
        ns,
        undo = note.undo,
        "finishing a change of indexes that was interrupted"
    );
    match carry_out(role, note, None).await {
        // It is settled all the same if nothing is left of it.
        Err(_) if !is_open(role, ns).await? => Ok(()),
        outcome => outcome,
    }
}

/// Finishes what is open anywhere, again and again, for as long as this member is primary.
pub async fn keep_settling(role: &ConfigRole) {
    loop {
        let open = role
            .metadata
            .find(COLLECTION, rawdoc! {})
            .await
            .unwrap_or_default();
        for document in open {
            let Ok(ns) = document.get_str("_id") else {
                continue;
            };
            // One that is being carried out right now is waited for, and is over then.
            let _definition = role.definitions.lock(ns).await;
            if let Err(error) = settle(role, ns).await {
                tracing::warn!(ns, %error, "a change of indexes stays unfinished");
            }
        }
        tokio::time::sleep(SETTLE_PAUSE).await;
    }
}

/// Brings all shards to what the note says, or back.
async fn carry_out(
    role: &ConfigRole,
    mut note: Note,
    deadline: Option<Instant>,
) -> Result<(), CommandError> {
    let table = role.metadata.table(&note.ns).await?;
    let Some(table) = table.filter(|table| table.version().epoch == note.epoch) else {
        forget(role, &note.ns).await?;
        let message = format!("{} was dropped meanwhile", note.ns);
        return Err(CommandError::new(ErrorCode::NamespaceNotFound, message));
    };
    let shards = participants(role, &table).await?;
    let outcome = align_all(role, &shards, &note, deadline).await;
    let failure = match outcome {
        Ok(()) => None,
        Err(error) if note.undo || !note.only_adds() => return Err(error),
        Err(error) => {
            tracing::info!(ns = note.ns, %error, "taking back a change of indexes");
            note.undo = true;
            role.metadata.put(COLLECTION, &[note.to_document()]).await?;
            if let Err(unfinished) = align_all(role, &shards, &note, None).await {
                tracing::warn!(ns = note.ns, %unfinished, "indexes could not be taken back yet");
                return Err(error);
            }
            Some(error)
        }
    };
    forget(role, &note.ns).await?;
    match failure {
        None => Ok(()),
        Some(error) => Err(error),
    }
}

/// The note goes last; before it goes, moves that began meanwhile are made to fail.
async fn forget(role: &ConfigRole, ns: &str) -> Result<(), CommandError> {
    let _lock = role.namespaces.lock(ns).await;
    let now = role.metadata.tick();
    let change = rawdoc! { "$set": { "indexesChanged": now } };
    role.metadata
        .update("collections", ns, change, false)
        .await?;
    role.metadata
        .remove(COLLECTION, rawdoc! { "_id": ns })
        .await
}

async fn align_all(
    role: &ConfigRole,
    shards: &[ShardEntry],
    note: &Note,
    deadline: Option<Instant>,
) -> Result<(), CommandError> {
    let mut body = rawdoc! {
        "_shardsvrAlignIndexes": note.ns.as_str(), "change": note.to_document(),
    };
    if let Some(deadline) = deadline {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = i64::try_from(left.as_millis()).unwrap_or(i64::MAX).max(1);
        body.append(bson::cstr!("maxTimeMS"), left);
    }
    // A shard that is not there is given up at the deadline as well.
    let request_options = RequestOptions::write()
        .idempotent()
        .timeout(Some(BUILD_TIMEOUT))
        .deadline(deadline.map(|deadline| deadline + GRACE));
    let (body, request_options) = (&body, &request_options);
    let asks = shards.iter().map(|shard| -> BoxFuture<'_, _> {
        Box::pin(async move {
            let set = role.shards.set(&shard.host)?;
            let reply = set.command(request_options.clone(), "admin", body).await?;
            Ok::<_, CommandError>(reply)
        })
    });
    let answers = join_all(asks).await;
    answers.into_iter().try_for_each(|answer| answer.map(drop))
}

/// The shards that own a part of the collection, and the one that is home to the database: it lists
/// the collection, so it has the indexes whether or not it has documents.
async fn participants(
    role: &ConfigRole,
    table: &RoutingTable,
) -> Result<Vec<ShardEntry>, CommandError> {
    let (database, _) = table.ns().split_once('.').unwrap_or((table.ns(), ""));
    let home = role
        .metadata
        .database(database)
        .await?
        .map(|entry| entry.primary);
    let mut shards = role.metadata.shards().await?;
    shards.retain(|shard| table.owns_any(&shard.id) || home.as_ref() == Some(&shard.id));
    // An owner first: what holds for its documents is checked against them.
    shards.sort_by_key(|shard| !table.owns_any(&shard.id));
    Ok(shards)
}

async fn in_time<T>(
    deadline: Option<Instant>,
    work: impl Future<Output = T>,
) -> Result<T, CommandError> {
    let Some(deadline) = deadline else {
        return Ok(work.await);
    };
    let expired =
        |_| CommandError::new(ErrorCode::MaxTimeMSExpired, "operation exceeded time limit");
    tokio::time::timeout_at(deadline, work)
        .await
        .map_err(expired)
}

fn malformed(error: bson::error::Error) -> CommandError {
    CommandError::new(ErrorCode::InternalError, error.to_string())
}
