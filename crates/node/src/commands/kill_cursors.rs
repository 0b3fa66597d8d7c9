//! `killCursors`: the client wants no more of them.

use banyan_access::check::Access;
use banyan_access::{check, identity};
use banyan_security::{Action, Resource};
use banyan_wire::CommandError;
use bson::{RawArrayBuf, rawdoc};

use super::table::{CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;
use crate::cursors::first;
use crate::forms;
use crate::params::Field;

pub static SPEC: CommandSpec = CommandSpec::new("killCursors", Run::Inline(run))
    .access(Access::LoggedIn)
    .aliases(&["killcursors"])
    .needs(Needs::Any)
    .in_transaction()
    .fields(&["cursors"])
    .required(&["cursors"])
    .form(check_form);

/// What a field has to be, whatever the others are.
fn check_form(field: Field<'_>) -> Result<(), CommandError> {
    match field.name {
        "cursors" => forms::longs(field),
        _ => Ok(()),
    }
}

fn run(ctx: &CommandContext<'_>) -> CommandResult {
    let collection = ctx.existing_collection()?;
    let namespace = format!("{}.{collection}", ctx.database());
    // The legacy opcode knows ids alone.
    let is_legacy = namespace == "admin.$cmd";
    check_owner(ctx, collection)?;
    let user = first::user(ctx);
    // What a user may do to others' cursors may be a matter of one collection; an own cursor is found
    // by its id, whatever collection is named.
    let is_own = |id| {
        let owned = user
            .as_ref()
            .map(|user| ctx.node.cursors.is_owned(id, user));
        owned.is_none_or(|owned| owned == Some(true))
    };
    let mut killed = RawArrayBuf::new();
    let mut not_found = RawArrayBuf::new();
    for id in ids(ctx)? {
        let found = match is_legacy || is_own(id) {
            true => ctx.node.cursors.kill_any(id),
            false => ctx.node.cursors.kill(id, &namespace),
        };
        if found {
            killed.push(id)
        } else {
            not_found.push(id)
        }
    }
    Ok(rawdoc! {
        "cursorsKilled": killed,
        "cursorsNotFound": not_found,
        "cursorsAlive": RawArrayBuf::new(),
        "cursorsUnknown": RawArrayBuf::new(),
        "ok": 1.0,
    })
}

/// Other users' cursors take a privilege; none is killed if one of them may not be.
fn check_owner(ctx: &CommandContext<'_>, collection: &str) -> Result<(), CommandError> {
    let Some(user) = first::user(ctx) else {
        return Ok(());
    };
    let identity = identity::known(ctx.conn);
    let on_collection = Resource::Collection {
        database: ctx.database(),
        collection,
    };
    if identity.allows(Action::KillAnyCursor, Resource::Cluster)
        || identity.allows(Action::KillAnyCursor, on_collection)
    {
        return Ok(());
    }
    for id in ids(ctx)? {
        if ctx.node.cursors.is_owned(id, &user) == Some(false) {
            return Err(check::denied(ctx.request));
        }
    }
    Ok(())
}

/// The cursors that it names. Nulls among them are passed over.
fn ids<'a>(ctx: &CommandContext<'a>) -> Result<impl Iterator<Item = i64> + use<'a>, CommandError> {
    let ids = ctx.required("cursors")?.array()?;
    Ok(ids.into_iter().flatten().filter_map(|id| id.as_i64()))
}
