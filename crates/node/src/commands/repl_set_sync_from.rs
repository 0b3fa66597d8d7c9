//! `replSetSyncFrom`: an operator would like this member to follow another one.

use banyan_access::check::Access;
use banyan_security::Action;
use banyan_wire::{CommandError, ErrorCode};
use bson::{cstr, rawdoc};

use super::table::{CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;

pub static SPEC: CommandSpec = CommandSpec::new("replSetSyncFrom", Run::Inline(run))
    .access(Access::Cluster(Action::ReplSetStateChange))
    .aliases(&["replsetsyncfrom"])
    .needs(Needs::Any)
    .admin_only()
    .help("notes whom this member should follow; it always follows the primary");

fn run(ctx: &CommandContext<'_>) -> CommandResult {
    let replication = &ctx.node.replication;
    replication.require_config()?;
    let host = ctx.argument().and_then(|value| value.as_str());
    let host = host.unwrap_or_default();
    if host.is_empty() {
        return Err(CommandError::new(
            ErrorCode::FailedToParse,
            "Empty host component parsing HostAndPort from \"\"",
        ));
    }
    let before = replication.sync_from(host)?;
    let mut out = rawdoc! { "syncFromRequested": host };
    if let Some(before) = before {
        out.append(cstr!("prevSyncTarget"), before);
    }
    if replication.primary().as_deref() != Some(host) {
        out.append(
            cstr!("warning"),
            "every member follows the primary; the request is noted and changes nothing",
        );
    }
    out.append(cstr!("ok"), 1.0);
    Ok(out)
}
