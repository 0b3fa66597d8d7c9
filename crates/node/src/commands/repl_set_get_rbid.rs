//! `replSetGetRBID`: counts how often this member has rolled writes back, from 1 on. What was once
//! shown here is never taken back, so it stays at that.

use banyan_access::check::Access;
use bson::rawdoc;

use super::table::{CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;

pub static SPEC: CommandSpec = CommandSpec::new("replSetGetRBID", Run::Inline(run))
    .access(Access::Member)
    .needs(Needs::Any)
    .admin_only()
    .help("counts this member's rollbacks; there are none");

const NEVER_ROLLED_BACK: i32 = 1;

fn run(ctx: &CommandContext<'_>) -> CommandResult {
    ctx.node.replication.require_config()?;
    Ok(rawdoc! { "rbid": NEVER_ROLLED_BACK, "ok": 1.0 })
}
