//! `$out` and `$merge`: what a pipeline's results become, by way of the write commands.
//!
//! A secondary may be asked for one: it reads, and has the primary write.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use banyan_document::Collator;
use banyan_query::pipeline::{Merge, Output, WhenNotMatched, with_id};
use banyan_replication::time_series;
use banyan_replication::write::catalog_ops::independent_spec;
use banyan_replication::write::context::WriteContext;
use banyan_replication::write::shard_rules::Versions;
use banyan_storage::Namespace;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawArrayBuf, RawDocument, RawDocumentBuf, cstr, rawdoc};

use super::insert::Loading;
use super::validation;
use crate::context::CommandContext;
use crate::errors;
use crate::names::{check_collection_name, check_database_name, check_outline};
use crate::read_concern;
use crate::views;
use banyan_execution::{InterruptSlot, Row, Rows};

/// Results are written in batches of at most this many documents and about this many bytes.
const BATCH_DOCUMENTS: usize = 1000;
const BATCH_BYTES: usize = 8 * 1024 * 1024;
const ROWS_AT_ONCE: usize = 64;
/// Who wants the new collection to go, as with its database, waits no longer for its lock.
const HOLDS_LOCK_MAX: Duration = Duration::from_millis(500);
/// A snapshot keeps in memory whatever is written meanwhile: it is released after so long.
const HOLDS_SNAPSHOT_MAX: Duration = Duration::from_secs(1);

/// What is to be written.
pub struct Results {
    rows: Rows,
    slot: Arc<InterruptSlot>,
    /// The pipeline reads where it writes: it keeps to one state, or would read what it has written.
    reads_target: bool,
    /// Since when they are read from the same snapshot.
    since: Instant,
}

impl Results {
    pub fn new(rows: Rows, slot: Arc<InterruptSlot>, reads_target: bool) -> Results {
        Results {
            rows,
            slot,
            reads_target,
            since: Instant::now(),
        }
    }

    /// Up to a batch of rows; empty at the end.
    fn next_batch(&mut self) -> Result<Vec<Row>, CommandError> {
        let mut batch = VecDeque::new();
        let mut bytes = 0;
        while batch.len() < BATCH_DOCUMENTS && bytes < BATCH_BYTES {
            let before = batch.len();
            // As many as those before let expect to fit.
            let each = (bytes / before.max(1)).max(1);
            let fit = match before {
                0 => 1,
                _ => (BATCH_BYTES - bytes).div_ceil(each).min(ROWS_AT_ONCE),
            };
            let wanted = fit.min(BATCH_DOCUMENTS - before);
            self.rows
                .next_batch(wanted, &mut batch)
                .map_err(errors::query)?;
            if batch.len() == before {
                break;
            }
            let come = batch.range(before..);
            bytes += come.map(|row| row.as_bytes().len()).sum::<usize>();
        }
        if !self.reads_target && self.since.elapsed() >= HOLDS_SNAPSHOT_MAX {
            self.rows.save();
            self.slot.rest();
            self.since = Instant::now();
        }
        Ok(batch.into())
    }
}

pub async fn write(
    ctx: &CommandContext<'_>,
    output: &Output,
    collator: Option<&Collator>,
    results: Results,
) -> Result<(), CommandError> {
    let (database, collection) = output.target();
    let database = database.unwrap_or(ctx.database());
    check_outline(database, collection)?;
    check_database_name(database)?;
    let elsewhere = !ctx.node.replica.is_primary();
    if elsewhere {
        // The target's options and indexes are looked up here.
        let reply = on_primary(ctx, "admin", rawdoc! { "ping": 1 }).await?;
        catch_up(ctx, &reply).await?;
    }
    match output {
        Output::Replace { .. } => replace(ctx, database, collection, results).await,
        Output::Merge(merge) => merge_into(ctx, database, merge, collator, results).await,
    }?;
    if elsewhere {
        // Whoever asked here looks for the result here.
        let written = on_primary(ctx, "admin", rawdoc! { "ping": 1 }).await?;
        let _ = tokio::time::timeout(CATCH_UP_MAX, catch_up(ctx, &written)).await;
    }
    Ok(())
}

/// What was written is there, whether or not this member gets to see it soon.
const CATCH_UP_MAX: Duration = Duration::from_secs(10);
/// For one batch, if the client has set no limit.
const BATCH_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs one of the commands that write: here, or on the primary if that is another member.
async fn run(
    ctx: &CommandContext<'_>,
    database: &str,
    mut body: RawDocumentBuf,
) -> Result<RawDocumentBuf, CommandError> {
    if ctx.node.replica.is_primary() {
        return ctx.nested(database, body).await;
    }
    if let Some(concern) = ctx.generic.write_concern {
        body.append(cstr!("writeConcern"), concern.to_owned());
    }
    let reply = on_primary(ctx, database, body).await?;
    match CommandError::from_write_reply(&reply) {
        Some(error) => Err(error),
        None => Ok(reply),
    }
}

async fn on_primary(
    ctx: &CommandContext<'_>,
    database: &str,
    body: RawDocumentBuf,
) -> Result<RawDocumentBuf, CommandError> {
    ctx.check_interrupt()?;
    let left = ctx
        .deadline
        .map(|deadline| deadline.saturating_duration_since(std::time::Instant::now()));
    let timeout = left.unwrap_or(BATCH_TIMEOUT);
    let replication = &ctx.node.replication;
    let reply = replication.ask_primary_in(database, &body, timeout).await;
    // If the time is over, that is what there is to say.
    reply.or_else(|error| ctx.check_interrupt().and(Err(error)))
}

/// Waits until what the primary had done by that reply is applied here.
async fn catch_up(ctx: &CommandContext<'_>, reply: &RawDocument) -> Result<(), CommandError> {
    match reply.get_timestamp("operationTime") {
        Ok(time) => read_concern::wait_until_applied(ctx, time).await,
        Err(_) => Ok(()),
    }
}

/// Everything goes into a new collection, which takes the target's place at the end.
async fn replace(
    ctx: &CommandContext<'_>,
    database: &str,
    collection: &str,
    results: Results,
) -> Result<(), CommandError> {
    let staging = format!("tmp.agg_out.{}", uuid::Uuid::new_v4());
    let outcome = replace_by(ctx, database, collection, &staging, results).await;
    if outcome.is_err() {
        discard(ctx, database, &staging).await;
    }
    outcome
}

async fn replace_by(
    ctx: &CommandContext<'_>,
    database: &str,
    collection: &str,
    staging: &str,
    results: Results,
) -> Result<(), CommandError> {
    prepare(ctx, database, collection, staging).await?;
    fill(ctx, database, staging, results).await?;
    check_target(database, collection)?;
    let rename = rawdoc! {
        "renameCollection": format!("{database}.{staging}"),
        "to": format!("{database}.{collection}"),
        "dropTarget": true,
    };
    run(ctx, "admin", rename).await.map(drop)
}

/// Whether the new collection can be called that, which is told once it is full.
fn check_target(database: &str, collection: &str) -> Result<(), CommandError> {
    let refuse = |what: &str| {
        Err(CommandError::new(
            ErrorCode::IllegalOperation,
            format!("error with target namespace: {what}"),
        ))
    };
    match check_collection_name(database, collection) {
        Err(error) => refuse(&error.message),
        Ok(()) if collection.contains('$') => {
            refuse(&format!("Invalid collection name: {collection}"))
        }
        Ok(()) => Ok(()),
    }
}

/// Drops what was not finished, also when the command has been told to end.
async fn discard(ctx: &CommandContext<'_>, database: &str, staging: &str) {
    let drop = rawdoc! { "drop": staging };
    let dropped = match ctx.node.replica.is_primary() {
        true => ctx.nested_to_the_end(database, drop).await,
        false => {
            let replication = &ctx.node.replication;
            replication
                .ask_primary_in(database, &drop, BATCH_TIMEOUT)
                .await
        }
    };
    // The error that led here is the one to tell.
    if let Err(error) = dropped
        && error.code != ErrorCode::NamespaceNotFound
    {
        tracing::warn!(database, staging, %error, "an unfinished output could not be dropped");
    }
}

/// Creates the new collection with the options and indexes of the one it will replace.
async fn prepare(
    ctx: &CommandContext<'_>,
    database: &str,
    collection: &str,
    staging: &str,
) -> Result<(), CommandError> {
    views::refuse(&ctx.node.replica, &Namespace::new(database, collection))?;
    let catalog = ctx.node.replica.store.catalog();
    let target = catalog.get(database, collection);
    let mut create = rawdoc! { "create": staging };
    let mut indexes = RawArrayBuf::new();
    if let Some(target) = target {
        if time_series::of(target).is_some() {
            return Err(CommandError::new(
                ErrorCode::Location(17_385),
                format!("Can't $out to special collection: {collection}"),
            ));
        }
        if target.is_capped {
            return Err(CommandError::new(
                ErrorCode::Location(17152),
                format!(
                    "namespace '{database}.{collection}' is capped so it can't be used for $out"
                ),
            ));
        }
        for (name, value) in target.options.iter().flatten() {
            create.append(name, value);
        }
        for index in target.indexes.iter().filter(|index| !index.is_id()) {
            indexes.push(independent_spec(&index.spec));
        }
    }
    run(ctx, database, create).await?;
    if indexes.is_empty() {
        return Ok(());
    }
    let create_indexes = rawdoc! { "createIndexes": staging, "indexes": indexes };
    run(ctx, database, create_indexes).await.map(drop)
}

async fn fill(
    ctx: &CommandContext<'_>,
    database: &str,
    collection: &str,
    results: Results,
) -> Result<(), CommandError> {
    match ctx.node.replica.is_primary() {
        true => fill_here(ctx, database, collection, results).await,
        false => fill_on_primary(ctx, database, collection, results).await,
    }
}

/// One batch is staged while the one before it is committed.
async fn fill_here(
    ctx: &CommandContext<'_>,
    database: &str,
    collection: &str,
    mut results: Results,
) -> Result<(), CommandError> {
    let context = WriteContext {
        database,
        // Those of the aggregation, which reads something else.
        versions: Versions::default(),
        session: None,
        txn_number: None,
        bypass_validation: validation::is_bypassed(ctx)?,
        ..ctx.write_context()
    };
    let mut loading = Loading::open(ctx, context, collection).await?;
    let mut since = Instant::now();
    loop {
        let batch = match ctx.compute(|| results.next_batch()).await {
            Ok(batch) => batch,
            Err(error) => return loading.fail(error).await,
        };
        if batch.is_empty() {
            return loading.finish().await;
        }
        let documents: Vec<_> = batch.iter().map(|row| with_id(row)).collect();
        let documents: Vec<&RawDocument> = documents.iter().map(|document| &**document).collect();
        if let Err(error) = loading.insert(&documents).await {
            return loading.fail(error).await;
        }
        if since.elapsed() >= HOLDS_LOCK_MAX {
            loading.finish().await?;
            loading = Loading::open(ctx, context, collection).await?;
            since = Instant::now();
        }
    }
}

async fn fill_on_primary(
    ctx: &CommandContext<'_>,
    database: &str,
    collection: &str,
    mut results: Results,
) -> Result<(), CommandError> {
    loop {
        let batch = ctx.compute(|| results.next_batch()).await?;
        if batch.is_empty() {
            return Ok(());
        }
        let mut documents = RawArrayBuf::new();
        batch.iter().for_each(|row| documents.push(&*with_id(row)));
        let mut insert = rawdoc! { "insert": collection, "documents": documents };
        validation::pass_on(ctx, &mut insert)?;
        run(ctx, database, insert).await?;
    }
}

async fn merge_into(
    ctx: &CommandContext<'_>,
    database: &str,
    merge: &Merge,
    collator: Option<&Collator>,
    mut results: Results,
) -> Result<(), CommandError> {
    let must_match = merge.when_not_matched == WhenNotMatched::Fail;
    let catalog = ctx.node.replica.store.catalog();
    let target = catalog.get(database, &merge.collection);
    let indexes = target.into_iter().flat_map(|target| &target.indexes);
    let specs = indexes.map(|index| &*index.spec);
    merge.finds_one(specs, collator).map_err(errors::query)?;
    drop(catalog);
    loop {
        let batch = ctx.compute(|| results.next_batch()).await?;
        if batch.is_empty() {
            return Ok(());
        }
        let documents = batch.iter().map(|row| &**row);
        let mut write = merge.command(documents).map_err(errors::query)?;
        validation::pass_on(ctx, &mut write)?;
        let reply = run(ctx, database, write).await?;
        let matched = reply.get_i32("n").unwrap_or(0);
        if must_match && matched < i32::try_from(batch.len()).unwrap_or(i32::MAX) {
            return Err(CommandError::new(
                ErrorCode::MergeStageNoMatchingDocument,
                "$merge could not find a matching document in the target collection for at least \
                 one document in the source collection",
            ));
        }
    }
}
