//! `connectionStatus`: who the client is, and what it may do.

use banyan_security::{Privileges, RoleName};
use bson::{RawArrayBuf, cstr, rawdoc};

use super::table::{CommandResult, CommandSpec, Needs, Run};
use crate::access::check::Access;
use crate::context::CommandContext;

pub static SPEC: CommandSpec = CommandSpec::new("connectionStatus", Run::Inline(run))
    .access(Access::Anyone)
    .needs(Needs::Any)
    .fields(&["showPrivileges"]);

fn run(ctx: &CommandContext<'_>) -> CommandResult {
    let identity = ctx.node.access.identity(&ctx.node.replica, ctx.conn)?;
    let mut users = RawArrayBuf::new();
    let mut roles: Vec<RoleName> = Vec::new();
    let mut privileges = Privileges::default();
    for user in &identity.users {
        users.push(rawdoc! { "user": user.name.user.as_str(), "db": user.name.database.as_str() });
        for role in &user.granted.roles {
            if !roles.contains(role) {
                roles.push(role.clone());
            }
        }
        privileges.add_all(&user.granted.privileges);
    }
    let mut auth = rawdoc! {
        "authenticatedUsers": users,
        "authenticatedUserRoles": RoleName::array(&roles),
    };
    if ctx
        .field("showPrivileges")
        .map(|field| field.bool())
        .transpose()?
        .unwrap_or(false)
    {
        auth.append(cstr!("authenticatedUserPrivileges"), privileges.to_array());
    }
    Ok(rawdoc! { "authInfo": auth, "ok": 1.0 })
}
