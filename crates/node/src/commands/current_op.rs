//! `currentOp`: what is running now.

use std::collections::HashSet;
use std::sync::Arc;

use banyan_access::check::{self, Access, is_true};
use banyan_access::identity::{self, Owner};
use banyan_access::reads_and_writes;
use banyan_security::{Action, Resource};
use banyan_wire::{CommandError, ErrorCode, OWN_CONNECTION_ID};
use bson::{RawArrayBuf, RawDocument, RawDocumentBuf, cstr, rawdoc};

use super::table::{CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;
use crate::errors;
use crate::operations::{self, Operation};

pub static SPEC: CommandSpec = CommandSpec::new("currentOp", Run::Inline(run))
    .access(Access::Checked(reads_and_writes::current_op))
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
    let asked = ctx.field("$ownOps");
    let is_process = ctx.conn.id == OWN_CONNECTION_ID;
    let may_see_all = || identity::known(ctx.conn).allows(Action::Inprog, Resource::Cluster);
    let only_own = asked.is_some_and(|field| is_true(field.value))
        || (ctx.node.access.is_enforced() && !is_process && !may_see_all());
    let host = &*ctx.node.info.address;
    let all = ctx.node.operations.all();
    let shown = all.iter().filter(|one| !only_own || is_own(ctx, one));
    let mut described: Vec<_> = shown.map(|one| operations::describe(one, host)).collect();
    if ctx.field("$all").is_some_and(|field| is_true(field.value)) {
        described.extend(idle_connections(ctx, only_own, &all));
    }
    for described in described {
        if filter.try_matches(&described).map_err(errors::query)? {
            in_progress.push(described);
        }
    }
    let mut reply = rawdoc! { "inprog": in_progress };
    if ctx.node.write_gate.is_closed() {
        reply.append(cstr!("fsyncLock"), true);
        reply.append(
            cstr!("info"),
            "use db.fsyncUnlock() to terminate the fsync write/snapshot lock",
        );
    }
    reply.append(cstr!("ok"), 1.0);
    Ok(reply)
}

/// Whether the client's user runs the operation. Where access is not controlled, all are nobody's.
pub fn is_own(ctx: &CommandContext<'_>, operation: &Operation) -> bool {
    belongs(ctx, operation.owner.as_ref())
}

fn belongs(ctx: &CommandContext<'_>, theirs: Option<&Arc<Owner>>) -> bool {
    if !ctx.node.access.is_enforced() {
        return true;
    }
    let theirs = theirs.filter(|owner| !owner.is_nobody());
    theirs.is_some() && theirs == ctx.owner.as_ref()
}

/// The connections, or the client's own, that wait for none of the `running` operations.
pub fn idle_connections(
    ctx: &CommandContext<'_>,
    only_own: bool,
    running: &[Arc<Operation>],
) -> Vec<RawDocumentBuf> {
    let Some(presence) = ctx.node.info.presence.get() else {
        return Vec::new();
    };
    let running = running.iter().filter_map(|one| one.connection.as_ref());
    let busy: HashSet<u64> = running.map(|connection| connection.id).collect();
    let connections = presence.connections().into_iter();
    let idle = connections.filter(|connection| !busy.contains(&connection.id));
    let described = idle.filter_map(|connection| {
        let identity = identity::known(&connection);
        let owner = identity.owner();
        let is_shown = !only_own || belongs(ctx, Some(owner));
        is_shown.then(|| operations::describe_idle(&connection, owner, &ctx.node.info.address))
    });
    described.collect()
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
                | "$audit"
                | "mayBypassWriteBlocking"
                | "$db"
                | "$readPreference"
                | "$clusterTime"
                | "readConcern"
                | "writeConcern"
                | "apiVersion"
                | "apiStrict"
                | "apiDeprecationErrors"
        );
        if !option {
            filter.append(name, value);
        }
    }
    filter
}

pub static KILL_SPEC: CommandSpec = CommandSpec::new("killOp", Run::Inline(kill))
    .access(Access::LoggedIn)
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
    let may_kill_any = || identity::known(ctx.conn).allows(Action::Killop, Resource::Cluster);
    if ctx.node.access.is_enforced() && !may_kill_any() {
        let all = ctx.node.operations.all();
        let named = all.iter().find(|operation| operation.id == id);
        if !named.is_some_and(|operation| is_own(ctx, operation)) {
            return Err(check::denied(ctx.request));
        }
    }
    // Asking to end what has ended already is no error.
    ctx.node
        .operations
        .kill(id, banyan_execution::Cause::Killed);
    Ok(rawdoc! { "info": "attempting to kill op", "ok": 1.0 })
}
