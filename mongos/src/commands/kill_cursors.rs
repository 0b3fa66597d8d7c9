//! `killCursors`.

use banyan_wire::{CommandError, ErrorCode};
use bson::{RawArrayBuf, RawBsonRef, rawdoc};

use crate::context::{CommandResult, CommandSpec, Context, run};
use crate::fields;

pub const SPEC: CommandSpec = CommandSpec::new("killCursors", "closes cursors", run!(run));

async fn run(context: &Context<'_>) -> CommandResult {
    let wrong = || {
        let text = "BSON field 'killCursors.cursors' is the wrong type, expected an array of longs";
        CommandError::new(ErrorCode::TypeMismatch, text)
    };
    let RawBsonRef::Array(ids) = fields::required(context.request, "cursors")? else {
        return Err(wrong());
    };
    let ids = ids
        .into_iter()
        .map(|id| id.ok().and_then(|id| id.as_i64()).ok_or_else(wrong))
        .collect::<Result<Vec<i64>, _>>()?;
    let (killed, missing) = context.router.cursors.kill(&ids).await;
    Ok(rawdoc! {
        "cursorsKilled": RawArrayBuf::from_iter(killed),
        "cursorsNotFound": RawArrayBuf::from_iter(missing),
        "cursorsAlive": RawArrayBuf::new(),
        "cursorsUnknown": RawArrayBuf::new(),
        "ok": 1.0,
    })
}
