//! `dropDatabase`: carried out by the config servers.

use banyan_access::check::Access;
use banyan_security::Action;
use banyan_wire::{CommandError, ErrorCode};
use bson::rawdoc;

use crate::context::{CommandResult, CommandSpec, Context, run};

pub const SPEC: CommandSpec = CommandSpec::new("dropDatabase", "drops a database", run!(run))
    .access(Access::Database(Action::DropDatabase))
    .aliases(&["dropdatabase"]);

async fn run(context: &Context<'_>) -> CommandResult {
    let name = context.request.database.as_str();
    if matches!(name, "admin" | "config" | "local") {
        let text = format!("Dropping the '{name}' database is prohibited.");
        return Err(CommandError::new(ErrorCode::IllegalOperation, text));
    }
    let command = rawdoc! {"_configsvrDropDatabase": name};
    let outcome = context.router.on_config("admin", &command).await;
    context.router.catalog.forget_database(name);
    outcome
}
