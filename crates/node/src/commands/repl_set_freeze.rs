//! `replSetFreeze`: this member does not ask to become the primary for a while.

use std::time::Duration;

use banyan_wire::{CommandError, ErrorCode};
use bson::{cstr, rawdoc};

use super::table::{CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;
use crate::params;

pub static SPEC: CommandSpec = CommandSpec::new("replSetFreeze", Run::Inline(run))
    .aliases(&["replsetfreeze"])
    .needs(Needs::Any)
    .admin_only()
    .help("keeps this member from becoming the primary for some seconds");

fn run(ctx: &CommandContext<'_>) -> CommandResult {
    let replication = &ctx.node.replication;
    replication.require_config()?;
    let seconds = ctx
        .argument()
        .and_then(params::number)
        .and_then(|n| u32::try_from(n).ok());
    let seconds = seconds.ok_or_else(|| {
        CommandError::new(
            ErrorCode::BadValue,
            "replSetFreeze takes a number of seconds, from 0 on",
        )
    })?;
    let info = replication.freeze(Duration::from_secs(seconds.into()))?;
    let mut out = rawdoc! {};
    if !info.is_empty() {
        out.append(cstr!("info"), info);
    }
    out.append(cstr!("ok"), 1.0);
    Ok(out)
}
