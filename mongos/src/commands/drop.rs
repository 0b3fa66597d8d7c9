//! `drop`: carried out by the config servers, which know all shards of a collection.

use banyan_access::check::Access;
use banyan_security::Action;
use bson::rawdoc;

use super::forward;
use crate::context::{CommandResult, CommandSpec, Context, run};
use crate::shards::CONFIG;

pub const SPEC: CommandSpec = CommandSpec::new("drop", "drops a collection", run!(run))
    .access(Access::Collection(Action::DropCollection));

async fn run(context: &Context<'_>) -> CommandResult {
    let ns = context.namespace()?;
    let router = context.router;
    if let Some(route) = router.catalog.route(&ns).await?
        && &*route.database.primary == CONFIG
    {
        return Ok(forward::forward(context, &route, CONFIG, true).await?.reply);
    }
    let command = rawdoc! {"_configsvrDropCollection": ns.as_str()};
    let outcome = router.on_config("admin", &command).await;
    router.catalog.forget(&ns);
    outcome
}
