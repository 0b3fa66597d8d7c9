//! `setParameter`: changes parameters while the server runs.

use banyan_access::check::Access;
use banyan_security::Action;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBson, cstr, rawdoc};

use super::table::{CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;

pub static SPEC: CommandSpec = CommandSpec::new("setParameter", Run::Inline(run))
    .access(Access::Cluster(Action::SetParameter))
    .aliases(&["setparameter"])
    .needs(Needs::Any)
    .admin_only()
    .lenient();

/// Generic fields that are no parameter's name.
const GENERIC: &[&str] = &[
    "lsid",
    "comment",
    "apiVersion",
    "apiStrict",
    "apiDeprecationErrors",
    "maxTimeMS",
    "writeConcern",
    "readConcern",
    "txnNumber",
];

fn run(ctx: &CommandContext<'_>) -> CommandResult {
    let mut was: Option<RawBson> = None;
    for (name, value) in ctx.body().iter().skip(1).flatten() {
        let name = name.as_str();
        if name.starts_with('$') || GENERIC.contains(&name) {
            continue;
        }
        let before = ctx.node.parameters.set(name, value, false)?;
        was.get_or_insert(before);
    }
    let Some(was) = was else {
        return Err(CommandError::new(
            ErrorCode::InvalidOptions,
            "no option found to set, use help:true to see options ",
        ));
    };
    let idle_max_ms = ctx
        .node
        .parameters
        .value("cursorTimeoutMillis")
        .unsigned_abs();
    ctx.node
        .cursors
        .set_idle_max(std::time::Duration::from_millis(idle_max_ms));
    let mut reply = rawdoc! { "was": was };
    reply.append(cstr!("ok"), 1.0);
    Ok(reply)
}
