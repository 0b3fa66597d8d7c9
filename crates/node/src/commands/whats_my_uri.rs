//! `whatsmyuri`: the client's address as the server sees it.

use banyan_access::check::Access;
use bson::rawdoc;

use super::table::{CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;

pub static SPEC: CommandSpec = CommandSpec::new("whatsmyuri", Run::Inline(run))
    .access(Access::Anyone)
    .needs(Needs::Any)
    .lenient();

fn run(ctx: &CommandContext<'_>) -> CommandResult {
    Ok(rawdoc! { "you": ctx.conn.peer.to_string(), "ok": 1.0 })
}
