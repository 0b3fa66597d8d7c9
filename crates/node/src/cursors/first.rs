//! The first reply of a cursor command, and the cursor behind it if it was not all.

use std::sync::Arc;

use banyan_access::identity::UserDigest;
use banyan_execution::Listed;
use banyan_execution::{InterruptSlot, Row};
use banyan_query::Context;
use banyan_query::filter::Filter;
use banyan_query::pipeline::names_where;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawDocument, RawDocumentBuf};

use super::batch::{Batch, FIRST_BATCH_DEFAULT};
use super::{Cursor, Opener, Tail};
use crate::context::CommandContext;
use crate::params;
use crate::profiling;

/// What the client said about batches.
#[derive(Debug, Clone, Copy, Default)]
pub struct BatchOptions {
    pub size: Option<u64>,
    /// Whatever does not fit is not wanted.
    pub single: bool,
}

impl BatchOptions {
    /// From `cursor: {batchSize}`, as `aggregate` and the list commands have it.
    pub fn from_cursor_field(
        command: &'static str,
        body: &RawDocument,
    ) -> Result<BatchOptions, CommandError> {
        Ok(BatchOptions {
            size: params::cursor_batch_size(command, body)?,
            single: false,
        })
    }
}

/// Fills the first batch and keeps the cursor for the rest.
pub fn reply(
    ctx: &CommandContext<'_>,
    mut cursor: Cursor,
    options: BatchOptions,
) -> Result<RawDocumentBuf, CommandError> {
    cursor.at_cluster_time = ctx.at_cluster_time();
    if let Some(stats) = &cursor.stats {
        ctx.run_plan(stats);
    }
    let mut batch = Batch::first(4096);
    batch.at_cluster_time = cursor.at_cluster_time;
    let ended = cursor.fill(&mut batch, options.size.unwrap_or(FIRST_BATCH_DEFAULT))?;
    ctx.work.returned.add(batch.count());
    profiling::note_stages(ctx, &*cursor.rows);
    let namespace = cursor.namespace.clone();
    let ended = ended && cursor.tail == Tail::Ends;
    let invalidated = cursor.conclude(&mut batch);
    if ended || invalidated || options.single {
        return batch.finish(0, &namespace);
    }
    cursor.slot.set(None);
    cursor.opener = Opener {
        user: user(ctx),
        session: ctx.session,
        api: ctx.api,
    };
    cursor.origin = Some(profiling::origin(ctx));
    cursor.note_batch(batch.count());
    cursor.recording = ctx.query.recording().cloned();
    cursor.time_left = match cursor.tail {
        Tail::Waits => None,
        _ => ctx
            .deadline
            .map(|at| at.saturating_duration_since(std::time::Instant::now())),
    };
    let id = ctx.node.cursors.open(cursor)?;
    batch.finish(id, &namespace)
}

/// Whom a cursor of this command belongs to.
pub fn user(ctx: &CommandContext<'_>) -> Option<UserDigest> {
    ctx.owner.as_ref().map(|owner| owner.digest())
}

/// What fits into one batch, whatever its items are.
const LIST_BYTES_MAX: usize = banyan_document::MAX_DOCUMENT_BYTES / 2;

/// A result that was computed as a whole, such as a list of collections.
pub fn reply_with_list(
    ctx: &CommandContext<'_>,
    namespace: String,
    documents: Vec<RawDocumentBuf>,
) -> Result<RawDocumentBuf, CommandError> {
    let mut options = BatchOptions::default();
    if let Some(cursor) = ctx.field("cursor").filter(|cursor| !cursor.is_null()) {
        options.size = params::batch_size_of(cursor)?;
    }
    // What fits into one batch needs no other to tell that it was all.
    let bytes: usize = documents.iter().map(|listed| listed.as_bytes().len()).sum();
    let is_wanted = |size| documents.len() as u64 <= size;
    options.single = options.size.is_some_and(is_wanted) && bytes < LIST_BYTES_MAX;
    let rows = documents
        .into_iter()
        .map(|document| Ok(Row::Owned(document)));
    let slot = Arc::new(InterruptSlot::default());
    reply(
        ctx,
        Cursor::new(namespace, Box::new(Listed(rows)), slot),
        options,
    )
}

/// What the filters of lists are parsed in that may run scripts: where that holds up nobody.
pub fn scripted(ctx: &CommandContext<'_>) -> Context {
    Context {
        javascript: ctx.node.javascript(ctx.interrupt()),
        ..Context::default()
    }
}

/// The `filter` of the list commands.
pub fn list_filter(
    ctx: &CommandContext<'_>,
    context: &Context,
) -> Result<Option<Filter>, CommandError> {
    match ctx.field("filter") {
        Some(field) if !field.is_null() => {
            let filter = field.document()?;
            if names_where(filter) {
                return Err(CommandError::new(
                    ErrorCode::BadValue,
                    "$where is not allowed in this context",
                ));
            }
            let filter = Filter::parse(filter, context);
            filter.map(Some).map_err(crate::errors::query)
        }
        _ => Ok(None),
    }
}

/// Whether an entry of such a list is asked for.
pub fn is_listed(filter: Option<&Filter>, described: &RawDocument) -> Result<bool, CommandError> {
    match filter {
        Some(filter) => filter.try_matches(described).map_err(crate::errors::query),
        None => Ok(true),
    }
}
