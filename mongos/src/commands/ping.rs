//! `ping`.

use banyan_access::check::Access;
use bson::rawdoc;

use crate::context::{CommandResult, CommandSpec, Context, run};

pub const SPEC: CommandSpec = CommandSpec::new("ping", "answers", run!(run)).access(Access::Anyone);

async fn run(_: &Context<'_>) -> CommandResult {
    Ok(rawdoc! {"ok": 1.0})
}
