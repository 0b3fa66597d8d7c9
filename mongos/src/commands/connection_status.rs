//! `connectionStatus`: who is logged in.

use banyan_access::check::Access;
use banyan_access::login;

use crate::context::{CommandResult, CommandSpec, Context, run};
use crate::fields;

pub const SPEC: CommandSpec =
    CommandSpec::new("connectionStatus", "who is logged in", run!(run)).access(Access::Anyone);

async fn run(context: &Context<'_>) -> CommandResult {
    let identity = context.router.users.identity(context.connection).await;
    let show_privileges = fields::get_flag(&context.request.body, "showPrivileges");
    Ok(login::connection_status(&identity, show_privileges))
}
