//! `hostInfo`: the machine.

use banyan_access::check::Access;
use banyan_security::Action;
use bson::cstr;

use super::table::{CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;
use crate::info;

pub static SPEC: CommandSpec = CommandSpec::new("hostInfo", Run::Inline(run))
    .access(Access::Cluster(Action::HostInfo))
    .needs(Needs::Any);

fn run(_: &CommandContext<'_>) -> CommandResult {
    let mut reply = info::host_info();
    reply.append(cstr!("ok"), 1.0);
    Ok(reply)
}
