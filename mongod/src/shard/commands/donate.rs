//! The donor's side of a migration: the order to move, and what the recipient fetches.

use banyan_document::DocumentWriter;
use banyan_node::commands::table::{CommandResult, CommandSpec, boxed, primary_only};
use banyan_node::context::CommandContext;
use banyan_replication::clock;
use banyan_sharding::ChunkRange;
use banyan_storage::RecordId;
use banyan_wire::{CommandError, SessionId};
use bson::oid::ObjectId;
use bson::spec::BinarySubtype;
use bson::{RawBinaryRef, RawBsonRef, RawDocumentBuf, rawdoc};
use std::sync::Arc;

use crate::shard::errors::{bad_value, conflict, internal};
use crate::shard::keys::{KeyView, documents_in_range};
use crate::shard::migration::donor::move_range;
use crate::shard::migration::donor_state::{DonorState, MoveRange};
use crate::shard::migration::recovery;
use crate::shard::state::ShardRole;

pub static MOVE_RANGE: CommandSpec = primary_only("_shardsvrMoveRange", |ctx| boxed(run(ctx)));
pub static CLONE: CommandSpec = primary_only("_migrateClone", |ctx| boxed(clone(ctx)));
pub static TRANSFER_MODS: CommandSpec =
    primary_only("_transferMods", |ctx| boxed(transfer_mods(ctx)));
pub static SESSION_MODS: CommandSpec =
    primary_only("_getNextSessionMods", |ctx| boxed(session_mods(ctx)));
pub static IS_OPEN: CommandSpec =
    primary_only("_shardsvrMigrationIsOpen", |ctx| boxed(is_open(ctx)));

/// A reply is a document: it stays well under 16 MB, unless a single document does not.
const BATCH_BYTES: usize = 4 * 1024 * 1024;

/// Also so many that one log entry of the recipient takes them.
const BATCH_DOCUMENTS: usize = 5_000;

/// Changed documents in one answer.
const CHANGES: usize = 1_000;

async fn run(ctx: &CommandContext<'_>) -> CommandResult {
    let role = ShardRole::of(ctx)?;
    let request = MoveRange {
        ns: ctx.required("_shardsvrMoveRange")?.str()?.to_owned(),
        min: ctx.required("min")?.document()?.to_owned(),
        max: ctx.required("max")?.document()?.to_owned(),
        from_host: ctx.required("fromShardHost")?.str()?.to_owned(),
        to: ctx.required("toShard")?.str()?.to_owned(),
        to_host: ctx.required("toShardHost")?.str()?.to_owned(),
        epoch: ctx.body().get_object_id("epoch").map_err(bad_value)?,
        lastmod: ctx.body().get_timestamp("lastmod").map_err(bad_value)?,
        wait_for_delete: match ctx.field("waitForDelete") {
            Some(field) => field.bool()?,
            None => false,
        },
    };
    // On a task of its own: a connection that breaks must not leave the migration half done.
    tokio::spawn(async move { move_range(&role, request).await })
        .await
        .map_err(internal)??;
    Ok(rawdoc! { "ok": 1.0 })
}

fn donor(ctx: &CommandContext<'_>, role: &ShardRole) -> Result<Arc<DonorState>, CommandError> {
    let id = migration_id(ctx)?;
    let donor = role.donor.lock().clone().filter(|donor| donor.id == id);
    donor.ok_or_else(|| conflict(format!("no migration {id} is under way here")))
}

fn migration_id(ctx: &CommandContext<'_>) -> Result<ObjectId, CommandError> {
    ctx.body().get_object_id("migrationId").map_err(bad_value)
}

/// The next documents of a part of the range, in the order of the shard key's index.
async fn clone(ctx: &CommandContext<'_>) -> CommandResult {
    let role = ShardRole::of(ctx)?;
    let donor = donor(ctx, &role)?;
    let min = ctx.required("min")?.document()?;
    let max = ctx.required("max")?.document()?;
    let part = ChunkRange::parse(&donor.pattern, min, max).map_err(bad_value)?;
    let key = ctx.body().get_binary("afterKey").ok();
    let record = ctx.body().get("afterRecord").ok().flatten();
    let record = record.and_then(RecordId::from_bson);
    let after = key.zip(record).map(|(key, id)| (key.bytes.to_vec(), id));
    let work = move || clone_batch(&role, &donor, &part, after);
    tokio::task::spawn_blocking(work).await.map_err(internal)?
}

fn clone_batch(
    role: &ShardRole,
    donor: &DonorState,
    part: &ChunkRange,
    after: Option<(Vec<u8>, RecordId)>,
) -> Result<RawDocumentBuf, CommandError> {
    let mut out = DocumentWriter::with_capacity(BATCH_BYTES / 4);
    out.begin_array("objects");
    let mut last: Option<(Vec<u8>, RecordId)> = None;
    let mut done = true;
    if let Some(view) = KeyView::open(role.node(), &donor.ns, &donor.pattern)? {
        let mut documents = 0;
        let after = after.as_ref().map(|(key, record)| (key.as_slice(), record));
        for entry in view.scan_after(part, after) {
            let (key, record) = entry?;
            let Some(document) = view.record(&record)? else {
                continue;
            };
            let full = documents > 0
                && (documents >= BATCH_DOCUMENTS
                    || out.len() + document.as_bytes().len() > BATCH_BYTES);
            if full {
                done = false;
                break;
            }
            out.push(RawBsonRef::Document(&document));
            documents += 1;
            last = Some((key, record));
        }
    }
    out.end();
    if let Some((key, record)) = &last {
        out.append("lastKey", generic(key));
        out.append("lastRecord", record.to_bson());
    }
    out.append_bool("done", done);
    out.append_f64("ok", 1.0);
    Ok(out.finish())
}

/// What has changed in the range since the last time.
async fn transfer_mods(ctx: &CommandContext<'_>) -> CommandResult {
    let role = ShardRole::of(ctx)?;
    let donor = donor(ctx, &role)?;
    let work = move || {
        let ids = donor.capture.take(CHANGES);
        let node = role.node();
        let (ns, pattern, range) = (&donor.ns, &donor.pattern, &donor.range);
        // The snapshot is taken after the ids: it holds all the changes that they stand for.
        let present = documents_in_range(node, ns, pattern, range, &ids)?;
        let mut out = DocumentWriter::new();
        out.begin_array("reload");
        let mut served = ids.len();
        for position in 0..ids.len() {
            let Some(document) = present.get(&position) else {
                continue;
            };
            if out.len() > 16 && out.len() + document.as_bytes().len() > BATCH_BYTES {
                served = position;
                break;
            }
            out.push(RawBsonRef::Document(document));
        }
        out.end();
        out.begin_array("deleted");
        for (position, id) in ids.iter().enumerate().take(served) {
            if !present.contains_key(&position) {
                out.push(id.as_raw_bson_ref());
            }
        }
        out.end();
        donor
            .capture
            .put_back(ids.get(served..).unwrap_or_default());
        out.append_f64("ok", 1.0);
        Ok(out.finish())
    };
    tokio::task::spawn_blocking(work).await.map_err(internal)?
}

/// What sessions have done since a given time.
async fn session_mods(ctx: &CommandContext<'_>) -> CommandResult {
    let role = ShardRole::of(ctx)?;
    donor(ctx, &role)?;
    let since = ctx.body().get_timestamp("since").map_err(bad_value)?;
    let after = match ctx.field("after") {
        Some(_) => {
            let after = ctx.body().get_binary("after").map_err(bad_value)?;
            let session = SessionId::from_bytes(after.bytes);
            Some(session.ok_or_else(|| bad_value("'after' names no session"))?)
        }
        None => None,
    };
    let work = move || {
        let since = clock::to_bits(since);
        let page = role
            .node()
            .replica
            .histories_since(since, after, BATCH_BYTES)?;
        let mut out = DocumentWriter::new();
        out.begin_array("histories");
        for history in &page.histories {
            out.push(generic(history));
        }
        out.end();
        let as_of = clock::from_bits(page.as_of);
        out.append("asOf", RawBsonRef::Timestamp(as_of));
        if let Some(session) = &page.after {
            out.append("after", generic(&session.bytes()));
        }
        out.append_f64("ok", 1.0);
        Ok(out.finish())
    };
    tokio::task::spawn_blocking(work).await.map_err(internal)?
}

fn generic(bytes: &[u8]) -> RawBsonRef<'_> {
    RawBsonRef::Binary(RawBinaryRef {
        subtype: BinarySubtype::Generic,
        bytes,
    })
}

async fn is_open(ctx: &CommandContext<'_>) -> CommandResult {
    let role = ShardRole::of(ctx)?;
    // A note of an earlier primary that has not been settled counts as open, so settle it.
    role.recover_migrations(role.term()).await?;
    let open = recovery::is_open(&role, migration_id(ctx)?).await?;
    Ok(rawdoc! { "open": open, "ok": 1.0 })
}
