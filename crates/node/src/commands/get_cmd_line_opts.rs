//! `getCmdLineOpts`: how the process was started.

use bson::{RawArrayBuf, rawdoc};

use super::table::{CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;

pub static SPEC: CommandSpec = CommandSpec::new("getCmdLineOpts", Run::Inline(run))
    .needs(Needs::Any)
    .admin_only()
    .lenient();

fn run(ctx: &CommandContext<'_>) -> CommandResult {
    let argv: RawArrayBuf = ctx.node.info.argv.iter().map(String::as_str).collect();
    Ok(rawdoc! { "argv": argv, "parsed": ctx.node.info.parsed.clone(), "ok": 1.0 })
}
