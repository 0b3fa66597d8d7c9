//! Users and roles of the cluster: the config servers keep and change them.

use banyan_access::administration;
use banyan_access::check::{Access, Check};
use banyan_security::Action;
use banyan_wire::RequestOptions;
use bson::rawdoc;

use super::pass;
use crate::context::{CommandResult, CommandSpec, Context, run};

const fn changing(
    name: &'static str,
    help: &'static str,
    check: fn(&Check<'_>) -> bool,
) -> CommandSpec {
    CommandSpec::new(name, help, run!(change)).access(Access::Checked(check))
}

pub const SPECS: &[CommandSpec] = &[
    changing("createUser", "makes a user", administration::create_user),
    changing("updateUser", "changes a user", administration::update_user),
    changing("dropUser", "removes a user", administration::drop_user),
    changing(
        "dropAllUsersFromDatabase",
        "removes all users of a database",
        administration::drop_user,
    ),
    changing(
        "grantRolesToUser",
        "gives roles to a user",
        administration::grant_to_user,
    ),
    changing(
        "revokeRolesFromUser",
        "takes roles from a user",
        administration::revoke_from_user,
    ),
    changing("createRole", "makes a role", administration::create_role),
    changing("updateRole", "changes a role", administration::update_role),
    changing("dropRole", "removes a role", administration::drop_role),
    changing(
        "dropAllRolesFromDatabase",
        "removes all roles of a database",
        administration::drop_role,
    ),
    changing(
        "grantRolesToRole",
        "has a role inherit others",
        administration::grant_to_role,
    ),
    changing(
        "revokeRolesFromRole",
        "has a role inherit others no longer",
        administration::revoke_from_role,
    ),
    changing(
        "grantPrivilegesToRole",
        "gives privileges to a role",
        administration::grant_to_role,
    ),
    changing(
        "revokePrivilegesFromRole",
        "takes privileges from a role",
        administration::revoke_from_role,
    ),
    CommandSpec::new("usersInfo", "shows users", run!(show))
        .access(Access::Checked(administration::users_info)),
    CommandSpec::new("rolesInfo", "shows roles", run!(show))
        .access(Access::Checked(administration::roles_info)),
    CommandSpec::new(
        "invalidateUserCache",
        "has users and roles read anew",
        run!(forget),
    )
    .access(Access::Cluster(Action::InvalidateUserCache)),
];

/// A change is not sent again when nobody knows whether it was made: the second one would fail.
async fn change(context: &Context<'_>) -> CommandResult {
    let reply = pass::as_it_is(context, RequestOptions::write()).await;
    context.router.users.access.forget_users();
    reply
}

async fn show(context: &Context<'_>) -> CommandResult {
    pass::as_it_is(context, RequestOptions::write().idempotent()).await
}

async fn forget(context: &Context<'_>) -> CommandResult {
    context.router.users.access.forget_users();
    Ok(rawdoc! { "ok": 1.0 })
}
