//! `getCmdLineOpts`: how the process was started.

use banyan_access::check::Access;
use banyan_security::Action;
use bson::{RawArrayBuf, rawdoc};

use super::table::{CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;

pub static SPEC: CommandSpec = CommandSpec::new("getCmdLineOpts", Run::Inline(run))
    .access(Access::Cluster(Action::GetCmdLineOpts))
    .needs(Needs::Any)
    .admin_only();

fn run(ctx: &CommandContext<'_>) -> CommandResult {
    let argv: RawArrayBuf = ctx.node.info.argv.iter().map(String::as_str).collect();
    Ok(rawdoc! { "argv": argv, "parsed": ctx.node.info.parsed.clone(), "ok": 1.0 })
}
