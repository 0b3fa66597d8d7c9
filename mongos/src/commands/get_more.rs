//! `getMore`.

use banyan_wire::{CommandError, ErrorCode};
use bson::RawBsonRef;

use super::{CommandResult, CommandSpec, Context, run};
use crate::cursors::{Source, forward_get_more, reply, with_cursor_id};
use crate::fields;

pub const SPEC: CommandSpec = CommandSpec::new("getMore", "the next batch of a cursor", run!(run));

async fn run(context: &Context<'_>) -> CommandResult {
    let request = context.request;
    let id = match request.first_value() {
        Some(RawBsonRef::Int64(id)) => id,
        _ => {
            let text = "BSON field 'getMore.getMore' is the wrong type, expected type 'long'";
            return Err(CommandError::new(ErrorCode::TypeMismatch, text));
        }
    };
    let collection = match fields::required(request, "collection")? {
        RawBsonRef::String(name) => name,
        _ => {
            let text = "BSON field 'getMore.collection' is the wrong type, expected type 'string'";
            return Err(CommandError::new(ErrorCode::TypeMismatch, text));
        }
    };
    let ns = format!("{}.{collection}", request.database);
    let batch_size = match fields::get_number(&request.body, "batchSize") {
        Some(size) if size < 0 => {
            let text = format!("BSON field 'batchSize' value must be >= 0, actual value '{size}'");
            return Err(CommandError::new(ErrorCode::Location(51024), text));
        }
        // Zero asks for a batch of the usual size.
        Some(size) if size > 0 => usize::try_from(size).unwrap_or(usize::MAX),
        _ => usize::MAX,
    };
    let mut taken = context.router.cursors.take(id, &ns)?;
    let Some(cursor) = taken.cursor() else {
        return Err(CommandError::new(
            ErrorCode::CursorNotFound,
            "cursor not found",
        ));
    };
    if let Source::Forwarded(remote) = &cursor.source {
        let answer = forward_get_more(remote, &request.body).await?;
        let open = match fields::get(&answer, "cursor") {
            Some(RawBsonRef::Document(cursor)) => fields::get_number(cursor, "id") != Some(0),
            _ => false,
        };
        if !open {
            return Ok(answer);
        }
        taken.put_back().await;
        return Ok(with_cursor_id(answer, id));
    }
    let batch = match cursor.batch(batch_size).await {
        Ok(batch) => batch,
        Err(error) => {
            cursor.kill().await;
            return Err(error);
        }
    };
    if cursor.is_done() {
        return Ok(reply("nextBatch", &batch, 0, &ns));
    }
    taken.put_back().await;
    Ok(reply("nextBatch", &batch, id, &ns))
}
