//! `ping`: the server is there.

use banyan_access::check::Access;
use bson::rawdoc;

use super::table::{CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;

pub static SPEC: CommandSpec = CommandSpec::new("ping", Run::Inline(run))
    .access(Access::Anyone)
    .needs(Needs::Any)
    .vital();

fn run(_: &CommandContext<'_>) -> CommandResult {
    Ok(rawdoc! { "ok": 1.0 })
}
