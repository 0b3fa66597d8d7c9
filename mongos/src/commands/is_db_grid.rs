//! `isdbgrid`: whether this is a router.

use bson::rawdoc;

use super::{CommandResult, CommandSpec, Context, host_info, run};

pub const SPEC: CommandSpec =
    CommandSpec::new("isdbgrid", "whether this is a router", run!(run)).aliases(&["isDbGrid"]);

async fn run(_: &Context<'_>) -> CommandResult {
    Ok(rawdoc! {"isdbgrid": 1, "hostname": host_info::hostname(), "ok": 1.0})
}
