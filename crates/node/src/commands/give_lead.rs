//! `_giveLead`: another member, told to step up, asks the primary for the lead.

use banyan_access::check::Access;
use bson::rawdoc;

use super::table::{CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;
use crate::params;

pub static SPEC: CommandSpec = CommandSpec::new("_giveLead", Run::Inline(run))
    .access(Access::Member)
    .needs(Needs::Any)
    .admin_only()
    .help("internal: gives the lead to a member")
    .vital();

fn run(ctx: &CommandContext<'_>) -> CommandResult {
    let to = ctx.argument().and_then(params::number);
    let to = to.and_then(|id| u64::try_from(id).ok()).unwrap_or(0);
    ctx.node.replication.give_lead(&ctx.node.replica, to)?;
    Ok(rawdoc! { "ok": 1.0 })
}
