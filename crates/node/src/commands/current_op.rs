//! `currentOp`: what is running now.

use banyan_wire::{CommandError, ErrorCode};
use bson::{RawArrayBuf, RawDocument, RawDocumentBuf, cstr, rawdoc};

use super::table::{CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;
use crate::errors;
use crate::operations;

pub static SPEC: CommandSpec = CommandSpec::new("currentOp", Run::Inline(run))
    .aliases(&["currentop"])
    .needs(Needs::Any)
    .admin_only()
    .lenient();

fn run(ctx: &CommandContext<'_>) -> CommandResult {
    // The asking command is listed too, as in MongoDB.
    ctx.interrupt();
    let filter = filter_of(ctx.body());
    let filter =
        banyan_query::filter::Filter::parse(&filter, &Default::default()).map_err(errors::query)?;
    let mut in_progress = RawArrayBuf::new();
    for operation in ctx.node.operations.all() {
        let mut described = operations::describe(&operation);
        described.append(cstr!("host"), ctx.node.info.address.as_str());
        if filter.try_matches(&described).map_err(errors::query)? {
            in_progress.push(described);
        }
    }
    Ok(rawdoc! { "inprog": in_progress, "ok": 1.0 })
}

/// Every field that is not an option of the command narrows the list.
fn filter_of(body: &RawDocument) -> RawDocumentBuf {
    let mut filter = RawDocumentBuf::new();
    for (name, value) in body.iter().skip(1).flatten() {
        let option = matches!(
            name.as_str(),
            "lsid"
                | "$ownOps"
                | "$all"
                | "$truncateOps"
                | "comment"
                | "maxTimeMS"
                | "$db"
                | "$readPreference"
                | "$clusterTime"
                | "readConcern"
                | "writeConcern"
        );
        if !option {
            filter.append(name, value);
        }
    }
    filter
}

pub static KILL_SPEC: CommandSpec = CommandSpec::new("killOp", Run::Inline(kill))
    .aliases(&["killop"])
    .needs(Needs::Any)
    .admin_only()
    .fields(&["op"]);

/// `killOp`: ends one of them.
fn kill(ctx: &CommandContext<'_>) -> CommandResult {
    let op = ctx
        .field("op")
        .ok_or_else(|| CommandError::new(ErrorCode::NoSuchKey, "Missing expected field \"op\""))?;
    let id = op.i64()?;
    let id = i32::try_from(id)
        .map_err(|_| CommandError::new(ErrorCode::Location(26823), format!("invalid op : {id}")))?;
    // Asking to end what has ended already is no error.
    ctx.node
        .operations
        .kill(id, banyan_execution::Cause::Killed);
    Ok(rawdoc! { "info": "attempting to kill op", "ok": 1.0 })
}
