//! `killCursors`.

use banyan_access::check::{self, Access};
use banyan_security::{Action, Resource};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawArrayBuf, RawBsonRef, rawdoc};

use crate::context::{CommandResult, CommandSpec, Context, run};
use crate::fields;

pub const SPEC: CommandSpec =
    CommandSpec::new("killCursors", "closes cursors", run!(run)).access(Access::LoggedIn);

async fn run(context: &Context<'_>) -> CommandResult {
    let wrong = || {
        let text = "BSON field 'killCursors.cursors' is the wrong type, expected an array of longs";
        CommandError::new(ErrorCode::TypeMismatch, text)
    };
    let RawBsonRef::Array(ids) = fields::required(context.request, "cursors")? else {
        return Err(wrong());
    };
    // Nulls among them are passed over.
    let ids = ids
        .into_iter()
        .flatten()
        .filter(|id| !matches!(id, RawBsonRef::Null | RawBsonRef::Undefined))
        .map(|id| id.as_i64().ok_or_else(wrong))
        .collect::<Result<Vec<i64>, _>>()?;
    check_owner(context, &ids)?;
    let cursors = &context.router.cursors;
    let there = match context.namespace()? {
        // The legacy opcode knows ids alone.
        ns if ns == "admin.$cmd" => ids.clone(),
        ns => cursors.on(&ns, &ids),
    };
    let (killed, mut missing) = cursors.kill(&there).await;
    missing.extend(ids.iter().filter(|id| !there.contains(id)));
    Ok(rawdoc! {
        "cursorsKilled": RawArrayBuf::from_iter(killed),
        "cursorsNotFound": RawArrayBuf::from_iter(missing),
        "cursorsAlive": RawArrayBuf::new(),
        "cursorsUnknown": RawArrayBuf::new(),
        "ok": 1.0,
    })
}

/// Other users' cursors take a privilege; none is killed if one of them may not be.
fn check_owner(context: &Context<'_>, ids: &[i64]) -> Result<(), CommandError> {
    let Some(identity) = context.identity() else {
        return Ok(());
    };
    let collection = fields::collection(context.request)?;
    let on_collection = Resource::Collection {
        database: &context.request.database,
        collection,
    };
    if identity.allows(Action::KillAnyCursor, Resource::Cluster)
        || identity.allows(Action::KillAnyCursor, on_collection)
    {
        return Ok(());
    }
    let user = identity.owner().digest();
    let cursors = &context.router.cursors;
    match ids
        .iter()
        .any(|id| cursors.is_owned(*id, &user) == Some(false))
    {
        true => Err(check::denied(context.request)),
        false => Ok(()),
    }
}
