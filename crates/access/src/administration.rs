//! What managing users and roles needs. Who gives a role or a privilege away has to be allowed to
//! in the database that it belongs to.

use banyan_security::{Action, Privilege, ResourcePattern, RoleName, UserName};
use bson::{RawBsonRef, RawDocument};

use crate::check::Check;

/// The database in which what reaches beyond one is given away.
const ADMIN: &str = "admin";

/// The action in the database of each role that a field names. A name that cannot be read is
/// refused by the command itself.
fn on_roles(check: &Check<'_>, field: &str, action: Action) -> bool {
    match check.get(field) {
        None | Some(RawBsonRef::Null) => true,
        Some(RawBsonRef::Array(names)) => {
            names
                .into_iter()
                .flatten()
                .all(|name| match RoleName::parse(name, check.database) {
                    Ok(role) => check.on_database(&role.database, action),
                    Err(_) => true,
                })
        }
        Some(_) => true,
    }
}

fn on_privileges(check: &Check<'_>, field: &str, action: Action) -> bool {
    let allowed = |document: &RawDocument| match Privilege::parse(document) {
        Ok(privilege) => check.on_database(owner(&privilege.resource), action),
        Err(_) => true,
    };
    match check.get(field) {
        Some(RawBsonRef::Array(privileges)) => privileges
            .into_iter()
            .flatten()
            .all(|privilege| privilege.as_document().is_none_or(allowed)),
        _ => true,
    }
}

fn owner(resource: &ResourcePattern) -> &str {
    resource.database().unwrap_or(ADMIN)
}

fn on_own(check: &Check<'_>, action: Action) -> bool {
    check.on_database(check.database, action)
}

fn restricts(check: &Check<'_>) -> bool {
    check.get("authenticationRestrictions").is_none()
        || on_own(check, Action::SetAuthenticationRestriction)
}

pub fn create_user(check: &Check<'_>) -> bool {
    on_own(check, Action::CreateUser)
        && on_roles(check, "roles", Action::GrantRole)
        && restricts(check)
}

/// Users may change their own passwords and data where they have been allowed to.
pub fn update_user(check: &Check<'_>) -> bool {
    let is_own = check
        .named()
        .is_some_and(|user| check.is_user(&UserName::new(user, check.database)));
    let changes = |field, action, on_itself| {
        check.get(field).is_none() || on_own(check, action) || (is_own && on_own(check, on_itself))
    };
    changes("pwd", Action::ChangePassword, Action::ChangeOwnPassword)
        && changes(
            "customData",
            Action::ChangeCustomData,
            Action::ChangeOwnCustomData,
        )
        && (check.get("roles").is_none()
            || (check.everywhere(Action::RevokeRole)
                && on_roles(check, "roles", Action::GrantRole)))
        && restricts(check)
        && check.identity.is_authenticated()
}

pub fn drop_user(check: &Check<'_>) -> bool {
    on_own(check, Action::DropUser)
}

pub fn grant_to_user(check: &Check<'_>) -> bool {
    on_roles(check, "roles", Action::GrantRole) && check.identity.is_authenticated()
}

pub fn revoke_from_user(check: &Check<'_>) -> bool {
    on_roles(check, "roles", Action::RevokeRole) && check.identity.is_authenticated()
}

pub fn users_info(check: &Check<'_>) -> bool {
    let one = |value: RawBsonRef<'_>| match user_name(value, check.database) {
        Some(name) => check.is_user(&name) || check.on_database(&name.database, Action::ViewUser),
        None => check.identity.is_authenticated(),
    };
    match banyan_document::first_value(check.body) {
        Some(RawBsonRef::Array(names)) => names.into_iter().flatten().all(one),
        Some(RawBsonRef::Document(all)) if banyan_document::field(all, "forAllDBs").is_some() => {
            check.cluster(Action::ViewUser)
        }
        Some(value @ (RawBsonRef::String(_) | RawBsonRef::Document(_))) => one(value),
        _ => on_own(check, Action::ViewUser),
    }
}

/// `"user"`, or `{user: "…", db: "…"}`.
pub fn user_name(value: RawBsonRef<'_>, here: &str) -> Option<UserName> {
    match value {
        RawBsonRef::String(user) => Some(UserName::new(user, here)),
        RawBsonRef::Document(document) => {
            let part = |name| banyan_document::field(document, name)?.as_str();
            Some(UserName::new(part("user")?, part("db")?))
        }
        _ => None,
    }
}

pub fn roles_info(check: &Check<'_>) -> bool {
    let one = |value: RawBsonRef<'_>| match RoleName::parse(value, check.database) {
        Ok(name) => check.has_role(&name) || check.on_database(&name.database, Action::ViewRole),
        Err(_) => check.identity.is_authenticated(),
    };
    match banyan_document::first_value(check.body) {
        Some(RawBsonRef::Array(names)) => names.into_iter().flatten().all(one),
        Some(value @ (RawBsonRef::String(_) | RawBsonRef::Document(_))) => one(value),
        _ => on_own(check, Action::ViewRole),
    }
}

pub fn create_role(check: &Check<'_>) -> bool {
    on_own(check, Action::CreateRole)
        && on_roles(check, "roles", Action::GrantRole)
        && on_privileges(check, "privileges", Action::GrantRole)
        && restricts(check)
}

/// What the role had is taken from it, wherever that was.
pub fn update_role(check: &Check<'_>) -> bool {
    check.everywhere(Action::RevokeRole)
        && on_roles(check, "roles", Action::GrantRole)
        && on_privileges(check, "privileges", Action::GrantRole)
        && restricts(check)
}

pub fn drop_role(check: &Check<'_>) -> bool {
    on_own(check, Action::DropRole)
}

pub fn grant_to_role(check: &Check<'_>) -> bool {
    on_roles(check, "roles", Action::GrantRole)
        && on_privileges(check, "privileges", Action::GrantRole)
        && check.identity.is_authenticated()
}

pub fn revoke_from_role(check: &Check<'_>) -> bool {
    on_roles(check, "roles", Action::RevokeRole)
        && on_privileges(check, "privileges", Action::RevokeRole)
        && check.identity.is_authenticated()
}
