//! `isdbgrid`: whether this is a router.

use banyan_access::check::Access;
use banyan_process::machine;
use bson::rawdoc;

use crate::context::{CommandResult, CommandSpec, Context, run};

pub const SPEC: CommandSpec = CommandSpec::new("isdbgrid", "whether this is a router", run!(run))
    .access(Access::Anyone)
    .aliases(&["isDbGrid"]);

async fn run(_: &Context<'_>) -> CommandResult {
    Ok(rawdoc! {"isdbgrid": 1, "hostname": machine::hostname(), "ok": 1.0})
}
