//! `connectionStatus`: who the client is, and what it may do.

use banyan_access::check::Access;
use banyan_access::login;

use super::table::{CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;

pub static SPEC: CommandSpec = CommandSpec::new("connectionStatus", Run::Inline(run))
    .access(Access::Anyone)
    .needs(Needs::Any)
    .fields(&["showPrivileges"]);

fn run(ctx: &CommandContext<'_>) -> CommandResult {
    let identity = ctx.node.users().identity(ctx.conn)?;
    let shown = ctx.field("showPrivileges").map(|field| field.bool());
    let show_privileges = shown.transpose()?.unwrap_or(false);
    Ok(login::connection_status(&identity, show_privileges))
}
