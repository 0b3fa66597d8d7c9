//! `bulkWrite`: inserts, updates and deletes of several collections in one command.
//!
//! The router runs the write commands that it comes to ([`banyan_query::bulk_write`]), one after
//! another, each on the shards that it concerns.

use banyan_access::check::Access;
use banyan_access::reads_and_writes;
use banyan_document::DocumentWriter;
use banyan_query::bulk_write::{BulkWrite, Failure, Outcome};
use banyan_wire::{Doc, ErrorCode, Request};
use bson::RawBsonRef;

use crate::context::{CommandResult, CommandSpec, Context, run};
use crate::cursors::{Cursor, Source, reply};
use crate::errors::query_error;
use crate::{fields, scripting};

pub const SPEC: CommandSpec =
    CommandSpec::new("bulkWrite", "writes to several collections", run!(run))
        .access(Access::Checked(reads_and_writes::bulk_write))
        .admin_only()
        .retryable();

/// What a cursor over the results calls itself.
const NAMESPACE: &str = "admin.$cmd.bulkWrite";

async fn run(context: &Context<'_>) -> CommandResult {
    let request = context.request;
    let (ops, ns_info) = (request.batch("ops")?, request.batch("nsInfo")?);
    let bulk = BulkWrite::parse(&request.body, ops, ns_info).map_err(query_error)?;
    let mut outcome = Outcome::new(&bulk);
    let mut at = 0;
    while at < bulk.len() && !outcome.is_over() {
        // Several statements may go to several shards, which refuse them one by one.
        let Some(mut part) = bulk.part(at, false) else {
            break;
        };
        let inner = Request::command(part.database, std::mem::take(&mut part.body));
        match write(context, &inner).await {
            Ok(reply) => outcome.take(&part, &reply),
            Err(error) if error.code.is_retryable() || ends(error.code) => return Err(error),
            Err(error) => {
                let failure = Failure {
                    code: error.code.code(),
                    message: &error.message,
                    extra: error.extra.as_deref().map(|extra| &**extra),
                };
                outcome.refuse(&part, &failure);
            }
        }
        at = part.operations.end;
    }
    respond(context, outcome).await
}

async fn write(context: &Context<'_>, request: &Request) -> CommandResult {
    if !context.router.identity.scripting {
        scripting::check(request)?;
    }
    let inner = Context {
        request,
        ..*context
    };
    match context.commands.find(&request.name) {
        Some((_, spec)) => (spec.run)(&inner).await,
        None => Err(banyan_wire::CommandError::new(
            ErrorCode::CommandNotFound,
            request.name.clone(),
        )),
    }
}

/// Errors that concern the whole command.
fn ends(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::MaxTimeMSExpired | ErrorCode::Interrupted | ErrorCode::ClientDisconnect
    )
}

async fn respond(context: &Context<'_>, mut outcome: Outcome) -> CommandResult {
    let body = &context.request.body;
    let size = match fields::get(body, "cursor") {
        Some(RawBsonRef::Document(cursor)) => fields::get_number(cursor, "batchSize"),
        _ => None,
    };
    // All that fits, unless the client wants less.
    let size = size.and_then(|size| usize::try_from(size).ok());
    let items: Vec<Doc> = std::mem::take(&mut outcome.items)
        .into_iter()
        .map(Doc::from)
        .collect();
    let source = Source::Listed(items.into_iter());
    let mut cursor = Cursor::new(NAMESPACE.to_owned(), source, body).owned_by(context.owner());
    let batch = cursor.batch(size.unwrap_or(usize::MAX)).await?;
    let id = match cursor.is_done() {
        true => 0,
        false => context
            .router
            .cursors
            .insert(cursor.within(context.deadline)),
    };
    let first = reply("firstBatch", &batch, id, NAMESPACE);
    let mut out = DocumentWriter::new();
    if let Some(cursor) = fields::get(&first, "cursor") {
        out.append("cursor", cursor);
    }
    outcome.append_to(&mut out);
    Ok(out.finish())
}
