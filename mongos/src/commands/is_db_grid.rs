//! `isdbgrid`: whether this is a router.

use bson::rawdoc;

use super::host_info;
use crate::context::{CommandResult, CommandSpec, Context, run};

pub const SPEC: CommandSpec =
    CommandSpec::new("isdbgrid", "whether this is a router", run!(run)).aliases(&["isDbGrid"]);

async fn run(_: &Context<'_>) -> CommandResult {
    Ok(rawdoc! {"isdbgrid": 1, "hostname": host_info::hostname(), "ok": 1.0})
}
