//! `bulkWrite`: inserts, updates and deletes of several collections in one command.
//!
//! It runs the write commands that it comes to ([`banyan_query::bulk_write`]), one after another.

use std::sync::Arc;

use banyan_access::check::Access;
use banyan_access::reads_and_writes;
use banyan_document::DocumentWriter;
use banyan_execution::{InterruptSlot, Listed, Row};
use banyan_query::bulk_write::{BulkWrite, FIELDS, Failure, Kind, Outcome};
use banyan_wire::CommandError;

use super::table::{BoxFuture, CommandResult, CommandSpec, Run};
use super::write_report;
use crate::context::CommandContext;
use crate::cursors::Cursor;
use crate::cursors::first::{self, BatchOptions};
use crate::errors;

pub static SPEC: CommandSpec = CommandSpec::new("bulkWrite", Run::Future(run))
    .access(Access::Checked(reads_and_writes::bulk_write))
    .help("writes to several collections")
    .writes_statements("ops")
    .admin_only()
    .fields(FIELDS)
    .computes();

/// What a cursor over the results calls itself.
const NAMESPACE: &str = "admin.$cmd.bulkWrite";

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(bulk_write(ctx))
}

async fn bulk_write(ctx: &CommandContext<'_>) -> CommandResult {
    let (ops, ns_info) = (ctx.request.batch("ops")?, ctx.request.batch("nsInfo")?);
    let bulk = BulkWrite::parse(ctx.body(), ops, ns_info).map_err(errors::query)?;
    let mut options = BatchOptions::from_cursor_field("bulkWrite", ctx.body())?;
    // All that fits, unless the client wants less.
    options.size.get_or_insert(u64::MAX);
    let mut outcome = Outcome::new(&bulk);
    let mut at = 0;
    // What was refused together is tried one by one up to here: only one of them may be wrong.
    let mut singly_until = 0;
    while at < bulk.len() && !outcome.is_over() {
        let together = bulk.errors_only && at >= singly_until;
        let Some(mut part) = bulk.part(at, together) else {
            break;
        };
        let body = std::mem::take(&mut part.body);
        match ctx.nested_write(part.database, body).await {
            Ok(reply) => outcome.take(&part, &reply),
            Err(error) if write_report::ends_command(ctx, &error) || error.code.is_retryable() => {
                return Err(error);
            }
            Err(_) if part.kind != Kind::Insert && part.operations.len() > 1 => {
                singly_until = part.operations.end;
                continue;
            }
            Err(error) => outcome.refuse(&part, &failure(&error)),
        }
        at = part.operations.end;
    }
    let rows = std::mem::take(&mut outcome.items).into_iter();
    let rows = rows.map(|item| Ok(Row::Owned(item)));
    let slot = Arc::new(InterruptSlot::default());
    let cursor = Cursor::new(NAMESPACE.to_owned(), Box::new(Listed(rows)), slot);
    let first = first::reply(ctx, cursor, options)?;
    let mut reply = DocumentWriter::new();
    if let Some(cursor) = banyan_document::field(&first, "cursor") {
        reply.append("cursor", cursor);
    }
    outcome.append_to(&mut reply);
    Ok(reply.finish())
}

fn failure(error: &CommandError) -> Failure<'_> {
    Failure {
        code: error.code.code(),
        message: &error.message,
        extra: error.extra.as_deref().map(|extra| &**extra),
    }
}
