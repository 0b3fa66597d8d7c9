//! `flushRouterConfig`: forgets what is known of a collection, a database, or all of them.

use banyan_access::check::Access;
use banyan_security::Action;
use bson::{RawBsonRef, rawdoc};

use crate::context::{CommandResult, CommandSpec, Context, run};

pub const SPEC: CommandSpec = CommandSpec::new(
    "flushRouterConfig",
    "reads the cluster's metadata anew",
    run!(run),
)
.access(Access::Cluster(Action::FlushRouterConfig))
.aliases(&["flushrouterconfig"])
.admin_only();

async fn run(context: &Context<'_>) -> CommandResult {
    let catalog = &context.router.catalog;
    match context.request.first_value() {
        Some(RawBsonRef::String(name)) if name.contains('.') => catalog.forget(name),
        Some(RawBsonRef::String(name)) => catalog.forget_database(name),
        _ => {
            catalog.forget_everything();
            context.router.shards.reload().await?;
        }
    }
    Ok(rawdoc! {"flushed": true, "ok": 1.0})
}
