//! `getMore`.

use banyan_access::api_version::ApiParameters;
use banyan_access::check::Access;
use banyan_wire::{CommandError, ErrorCode};
use bson::RawBsonRef;
use tokio::time::Instant;

use crate::context::{CommandResult, CommandSpec, Context, run};
use crate::cursors::{Source, forward_get_more, reply, with_cursor_id};
use crate::errors::expired;
use crate::fields;

pub const SPEC: CommandSpec =
    CommandSpec::new("getMore", "the next batch of a cursor", run!(run)).access(Access::LoggedIn);

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
    let mut taken = context
        .router
        .cursors
        .take(id, &ns, context.owner().as_ref())?;
    let Some(cursor) = taken.cursor() else {
        return Err(CommandError::new(
            ErrorCode::CursorNotFound,
            "cursor not found",
        ));
    };
    if let Err(error) = ApiParameters::of(&request.body).check_continued(cursor.api) {
        taken.put_back().await;
        return Err(error);
    }
    let deadline = cursor.deadline(&context.router.fail_points);
    if let Source::Forwarded(remote) = &cursor.source {
        let asked = in_time(deadline, forward_get_more(remote, &request.body));
        let answer = match asked.await {
            Some(answer) => answer?,
            None => {
                taken.give_up();
                return Err(expired());
            }
        };
        cursor.keep_time(deadline);
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
    if let Source::Piped(pipeline) = &cursor.source {
        pipeline.ending.asked_by(context.connection, deadline);
    }
    let batch = in_time(deadline, cursor.batch(batch_size)).await;
    let batch = match batch.unwrap_or_else(|| Err(expired())) {
        Ok(batch) => batch,
        Err(error) => {
            taken.give_up();
            return Err(error);
        }
    };
    cursor.keep_time(deadline);
    if cursor.is_done() {
        return Ok(reply("nextBatch", &batch, 0, &ns));
    }
    taken.put_back().await;
    Ok(reply("nextBatch", &batch, id, &ns))
}

/// What the future brings, unless the deadline comes first.
async fn in_time<T>(deadline: Option<Instant>, work: impl Future<Output = T>) -> Option<T> {
    match deadline {
        // What is ready is no answer either once the time is over.
        Some(deadline) if deadline <= Instant::now() => None,
        Some(deadline) => tokio::time::timeout_at(deadline, work).await.ok(),
        None => Some(work.await),
    }
}
