//! `enableSharding`: makes the database known, and says on which shard it is at home.

use banyan_access::check::Access;
use banyan_access::sharding;
use banyan_document::DocumentWriter;
use bson::rawdoc;

use crate::context::{CommandResult, CommandSpec, Context, run};
use crate::fields;

pub const SPEC: CommandSpec = CommandSpec::new(
    "enableSharding",
    "lets a database's collections be sharded",
    run!(run),
)
.access(Access::Checked(sharding::enable_sharding))
.aliases(&["enablesharding"])
.admin_only();

async fn run(context: &Context<'_>) -> CommandResult {
    let name = fields::first_string(context.request)?;
    let mut command = DocumentWriter::new();
    command.append_str("_configsvrCreateDatabase", name);
    command.append_bool("enableSharding", true);
    if let Some(primary) = context.request.get("primaryShard") {
        command.append("primaryShard", primary);
    }
    context.router.on_config("admin", &command.finish()).await?;
    context.router.catalog.forget_database(name);
    Ok(rawdoc! {"ok": 1.0})
}
