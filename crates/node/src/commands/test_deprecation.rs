//! `testDeprecation`: does nothing, and is deprecated in the stable API: by it a driver's tests see
//! that `apiDeprecationErrors` arrives.

use banyan_access::check::Access;
use bson::rawdoc;

use super::table::{CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;

pub static SPEC: CommandSpec = CommandSpec::new("testDeprecation", Run::Inline(run))
    .access(Access::Anyone)
    .help("is deprecated in API Version 1")
    .needs(Needs::Any)
    .for_tests();

fn run(_: &CommandContext<'_>) -> CommandResult {
    Ok(rawdoc! { "ok": 1.0 })
}
