//! `split`: cuts a chunk, at its middle or where it says.

use banyan_access::check::Access;
use banyan_access::sharding;
use bson::rawdoc;

use super::pass;
use crate::context::{CommandResult, CommandSpec, Context, run};
use crate::fields;

pub const SPEC: CommandSpec = CommandSpec::new("split", "cuts a chunk", run!(run))
    .access(Access::Checked(sharding::split))
    .admin_only();

async fn run(context: &Context<'_>) -> CommandResult {
    let ns = fields::full_name(context.request)?;
    pass::to_config(context, "_configsvrSplitChunk", &[]).await?;
    context.router.catalog.forget(&ns);
    Ok(rawdoc! {"ok": 1.0})
}
