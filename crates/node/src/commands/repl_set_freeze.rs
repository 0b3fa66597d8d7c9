//! `replSetFreeze`: this member does not ask to become the primary for a while.

use std::time::Duration;

use banyan_access::check::Access;
use banyan_replication::set::lead::Frozen;
use banyan_security::Action;
use bson::rawdoc;

use super::table::{CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;
use crate::params;

const SECONDS_MAX: i64 = i32::MAX as i64;

pub static SPEC: CommandSpec = CommandSpec::new("replSetFreeze", Run::Inline(run))
    .access(Access::Cluster(Action::ReplSetStateChange))
    .aliases(&["replsetfreeze"])
    .needs(Needs::Any)
    .admin_only()
    .lenient()
    .help("keeps this member from becoming the primary for some seconds");

fn run(ctx: &CommandContext<'_>) -> CommandResult {
    // As in MongoDB: what is not a number is 0, and ends a freeze.
    let seconds = ctx.argument().and_then(params::number).unwrap_or(0);
    let seconds = if seconds < 0 {
        SECONDS_MAX
    } else {
        seconds.min(SECONDS_MAX)
    };
    let frozen = ctx
        .node
        .replication
        .freeze(Duration::from_secs(seconds.unsigned_abs()))?;
    Ok(match frozen {
        Frozen::NoMore => rawdoc! { "info": "unfreezing", "ok": 1.0 },
        Frozen::ForOneSecond => rawdoc! {
            "warning": "you really want to freeze for only 1 second?",
            "ok": 1.0,
        },
        Frozen::ForAWhile => rawdoc! { "ok": 1.0 },
    })
}
