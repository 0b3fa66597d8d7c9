//! Commands that are made of others.

use banyan_wire::{CommandError, ErrorCode, Request};
use bson::RawDocumentBuf;

use crate::context::Context;

/// Runs a command of this router's own; its failure is an error.
pub async fn run(
    context: &Context<'_>,
    database: &str,
    body: RawDocumentBuf,
) -> Result<RawDocumentBuf, CommandError> {
    let request = Request::command(database, body);
    let inner = Context {
        request: &request,
        ..*context
    };
    let Some((_, spec)) = context.commands.find(&request.name) else {
        return Err(CommandError::new(
            ErrorCode::CommandNotFound,
            request.name.clone(),
        ));
    };
    let reply = (spec.run)(&inner).await?;
    match CommandError::from_reply(&reply) {
        Some(error) => Err(error),
        None => Ok(reply),
    }
}
