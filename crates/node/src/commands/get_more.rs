//! `getMore`: the next batch of a cursor.

use std::time::{Duration, Instant};

use banyan_access::check::Access;
use banyan_execution::Cause;
use banyan_wire::{CommandError, ErrorCode};
use bson::RawBsonRef;
use tokio::sync::watch;

use super::table::{BoxFuture, CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;
use crate::cursors::batch::{Batch, Filled};
use crate::cursors::{Cursor, Opener, Tail, Taken, first, not_found, read_ahead};
use crate::errors;
use crate::params::{self, Field};
use crate::profiling;

pub static SPEC: CommandSpec = CommandSpec::new("getMore", Run::Future(run))
    .access(Access::LoggedIn)
    .aliases(&["getmore"])
    .needs(Needs::Data)
    .in_transaction()
    .fields(&["collection", "batchSize"])
    .required(&["collection"])
    .ignored(&[
        "term",
        "lastKnownCommittedOpTime",
        "includeQueryStatsMetrics",
    ])
    .form(check_form);

/// What fields of all commands have to be that the parser of this one reads as its own.
fn check_form(field: Field<'_>) -> Result<(), CommandError> {
    match field.name {
        "maxTimeMS" if !field.is_null() => field.i64().map(drop),
        "lastKnownCommittedOpTime" => check_time(field),
        "term" => match field.value {
            RawBsonRef::Int64(_) => Ok(()),
            _ if field.is_null() => Ok(()),
            _ => Err(field.wrong_type("type 'long'")),
        },
        _ => Ok(()),
    }
}

/// A place in an oplog, as members tell of it.
fn check_time(field: Field<'_>) -> Result<(), CommandError> {
    let Some(time) = field.document_or_null()? else {
        return Ok(());
    };
    for part in ["ts", "t"] {
        if banyan_document::field(time, part).is_none() {
            return Err(params::missing_field("OpTimeBase", part));
        }
    }
    Ok(())
}

/// How long a `getMore` on a waiting cursor stays when the client names no time.
const AWAIT_DEFAULT: Duration = Duration::from_secs(1);

/// What the full name of what the profiler has kept ends with.
const PROFILE_SUFFIX: &str = ".system.profile";

struct Parameters {
    id: i64,
    namespace: String,
    batch_size: Option<u64>,
}

impl Parameters {
    /// How many documents are asked for at most.
    fn documents(&self) -> u64 {
        self.batch_size.unwrap_or(u64::MAX)
    }
}

fn parse(ctx: &CommandContext<'_>) -> Result<Parameters, CommandError> {
    let id = match ctx.argument() {
        Some(RawBsonRef::Int64(id)) => id,
        Some(value) if params::is_null(value) => {
            return Err(params::missing_field("getMore", "getMore"));
        }
        Some(value) => {
            let field = Field {
                command: "getMore",
                name: "getMore",
                value,
            };
            return Err(field.wrong_type("type 'long'"));
        }
        None => {
            return Err(CommandError::new(
                ErrorCode::TypeMismatch,
                "BSON field 'getMore.getMore' is the wrong type, expected type 'long'",
            ));
        }
    };
    let collection = ctx.required("collection")?.str()?;
    if collection.is_empty() {
        return Err(CommandError::new(
            ErrorCode::InvalidNamespace,
            format!("Invalid namespace for getMore: {}.", ctx.database()),
        ));
    }
    let batch_size = match ctx.field("batchSize") {
        Some(field) if !field.is_null() => {
            // 0 means no limit here, as for a legacy getMore.
            Some(field.unsigned()?).filter(|size| *size > 0)
        }
        _ => None,
    };
    let namespace = format!("{}.{collection}", ctx.database());
    Ok(Parameters {
        id,
        namespace,
        batch_size,
    })
}

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move {
        let parameters = parse(ctx)?;
        let node = ctx.node;
        let mut cursor = check_out(ctx, &parameters).await?;
        if ctx.generic.max_time_ms.is_some() && cursor.tail != Tail::Waits {
            node.cursors.put_back(parameters.id, cursor)?;
            return Err(CommandError::new(
                ErrorCode::BadValue,
                "cannot set maxTimeMS on getMore command for a non-awaitData cursor",
            ));
        }
        let guard = node.cursors.guard(parameters.id);
        if let Some(error) = ctx.failing().after_checkout(&parameters.namespace) {
            return Err(error);
        }
        ctx.query.go_on(&cursor.recording);
        if let Some(stats) = &cursor.stats {
            ctx.run_plan(stats);
        }
        let result = continue_cursor(ctx, &parameters, &mut cursor).await;
        cursor.slot.set(None);
        if ctx.node.profiler.is_on() {
            ctx.notes.lock().origin.clone_from(&cursor.origin);
        }
        profiling::note_stages(ctx, &*cursor.rows);
        let (batch, ended) = result?;
        ctx.work.returned.add(batch.count());
        let mut id = 0;
        if !ended {
            cursor.note_batch(batch.count());
            let documents = parameters.documents();
            read_ahead::put_back(ctx, parameters.id, cursor, batch.bytes(), documents)?;
            guard.given_back();
            id = parameters.id;
        }
        batch.finish(id, &parameters.namespace)
    })
}

/// Takes the cursor out, once its next batch is read if that is going on.
async fn check_out(
    ctx: &CommandContext<'_>,
    parameters: &Parameters,
) -> Result<Box<Cursor>, CommandError> {
    let cursors = &ctx.node.cursors;
    let taken = cursors.take(
        parameters.id,
        &parameters.namespace,
        ctx.interrupt(),
        |opener| check_opener(ctx, parameters, opener),
    )?;
    let (back, reading) = match taken {
        Taken::Here(cursor) => return Ok(cursor),
        Taken::Lent { back, interrupt } => (back, interrupt),
    };
    let guard = cursors.guard(parameters.id);
    match ctx.interrupt().within(back).await {
        Ok(Ok(cursor)) => {
            guard.given_back();
            Ok(cursor)
        }
        // Whoever read has failed.
        Ok(Err(_)) => Err(not_found(parameters.id)),
        Err(error) => {
            reading.raise(Cause::CursorKilled);
            Err(errors::query(error))
        }
    }
}

/// A cursor belongs to the user and the session that it was opened by, and keeps to its API.
fn check_opener(
    ctx: &CommandContext<'_>,
    parameters: &Parameters,
    opener: &Opener,
) -> Result<(), CommandError> {
    if ctx.owner.is_some() && opener.user != first::user(ctx) {
        return Err(CommandError::new(
            ErrorCode::Unauthorized,
            format!(
                "cursor id {} was not created by the authenticated user",
                parameters.id
            ),
        ));
    }
    ctx.api.check_continued(opener.api)?;
    let (code, how) = match (opener.session, ctx.session) {
        (opened, asking) if opened == asking => return Ok(()),
        (None, Some(asking)) => (
            50736,
            format!("not created in a session, in session {asking}"),
        ),
        (Some(opened), None) => (
            50737,
            format!("created in session {opened}, without an lsid"),
        ),
        (Some(opened), Some(asking)) => (
            50738,
            format!("created in session {opened}, in session {asking}"),
        ),
        (None, None) => return Ok(()),
    };
    Err(CommandError::new(
        ErrorCode::Location(code),
        format!(
            "Cannot run getMore on cursor {}, which was {how}",
            parameters.id
        ),
    ))
}

async fn continue_cursor(
    ctx: &CommandContext<'_>,
    parameters: &Parameters,
    cursor: &mut Cursor,
) -> Result<(Batch, bool), CommandError> {
    let started = Instant::now();
    let deadline = ctx.node.fail_points.deadline(started, cursor.time_left);
    let interrupt = ctx.interrupt().with_deadline(deadline);
    interrupt.check().map_err(errors::query)?;
    cursor.slot.set(Some(interrupt));
    cursor.rows.check_collection().map_err(errors::query)?;
    let documents = parameters.documents();
    let (mut batch, filled) = match cursor.take_ahead(documents) {
        Some(ahead) => (ahead.batch, ahead.filled?),
        None => {
            let mut batch = Batch::next(4096);
            batch.limit_bytes(cursor.batch_bytes(documents));
            (batch, Filled::Stopped)
        }
    };
    batch.at_cluster_time = cursor.at_cluster_time;
    if parameters.batch_size.is_none() {
        cursor.grow_batches();
    }
    // Before the first look, so that nothing comes unnoticed between the two.
    let waits = cursor.tail == Tail::Waits;
    let is_profile = parameters.namespace.ends_with(PROFILE_SUFFIX);
    let mut applied = waits.then(|| match is_profile {
        true => ctx.node.profiler.watch(),
        false => ctx.node.replica.machine.applied_watch(),
    });
    let ended = match filled {
        Filled::Stopped => fill(ctx, &mut batch, cursor, documents).await?,
        Filled::Full => false,
        Filled::Ended => true,
    };
    cursor.note_time(started.elapsed());
    if cursor.tail == Tail::Ends {
        return Ok((batch, ended));
    }
    let until = match asked_not_to_wait(ctx) {
        true => started,
        false => ctx.started + ctx.generic.time_max().unwrap_or(AWAIT_DEFAULT),
    };
    if let Some(applied) = &mut applied {
        while batch.count() == 0 && !cursor.is_invalidated() && Instant::now() < until {
            if cursor.is_behind() {
                ctx.interrupt()
                    .with_deadline(None)
                    .check()
                    .map_err(errors::query)?;
                fill(ctx, &mut batch, cursor, documents).await?;
            } else if wait(ctx, applied, until).await? {
                if cursor.rows.may_have_more() {
                    fill(ctx, &mut batch, cursor, documents).await?;
                }
            } else {
                break;
            }
        }
    }
    // It stays also where its limit is used up, as MongoDB's does.
    let ended = cursor.conclude(&mut batch);
    Ok((batch, ended))
}

/// Elsewhere no milliseconds mean no limit.
fn asked_not_to_wait(ctx: &CommandContext<'_>) -> bool {
    let limit = banyan_document::field(ctx.body(), "maxTimeMS");
    limit.and_then(params::number) == Some(0)
}

/// Handing this worker's other connections to another costs more than a few entries do.
async fn fill(
    ctx: &CommandContext<'_>,
    batch: &mut Batch,
    cursor: &mut Cursor,
    documents: u64,
) -> Result<bool, CommandError> {
    if cursor.is_close() {
        cursor.fill(batch, documents)
    } else {
        ctx.compute(|| cursor.fill(batch, documents)).await
    }
}

/// Waits until something has been applied; false if there is no point in waiting any longer.
async fn wait(
    ctx: &CommandContext<'_>,
    applied: &mut watch::Receiver<u64>,
    until: Instant,
) -> Result<bool, CommandError> {
    let interrupt = ctx.interrupt().with_deadline(None);
    let began = Instant::now();
    let more = tokio::select! {
        changed = applied.changed() => Ok(changed.is_ok()),
        () = interrupt.raised() => interrupt.check().map(|()| false).map_err(errors::query),
        () = ctx.conn.closed().cancelled() => Ok(false),
        () = ctx.node.info.stop.cancelled() => Ok(false),
        () = tokio::time::sleep_until(until.into()) => Ok(false),
    };
    ctx.note_wait(began.elapsed());
    more
}
