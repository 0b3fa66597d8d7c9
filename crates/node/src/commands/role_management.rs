//! `createRole`, `updateRole`, `dropRole` and what else changes user-defined roles.

use banyan_access::administration;
use banyan_access::check::Access;
use banyan_security::{Privileges, RoleDefinition, RoleName, builtin};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, rawdoc};

use super::table::{CommandResult, CommandSpec, Run, boxed};
use super::user_management::{check_form, restrictions, roles, some_roles};
use crate::access::changes;
use crate::access::stored::{ROLES, Stored, refused};
use crate::context::CommandContext;
use crate::params::Field;

pub static CREATE: CommandSpec =
    CommandSpec::new("createRole", Run::Future(|ctx| boxed(create(ctx))))
        .access(Access::Checked(administration::create_role))
        .help("makes a role of this database")
        .writes()
        .fields(&["privileges", "roles", "authenticationRestrictions"])
        .form(check_form);

pub static UPDATE: CommandSpec =
    CommandSpec::new("updateRole", Run::Future(|ctx| boxed(update(ctx))))
        .access(Access::Checked(administration::update_role))
        .help("changes a role of this database")
        .writes()
        .fields(&["privileges", "roles", "authenticationRestrictions"])
        .form(check_form);

pub static DROP: CommandSpec =
    CommandSpec::new("dropRole", Run::Future(|ctx| boxed(drop_one(ctx))))
        .access(Access::Checked(administration::drop_role))
        .help("removes a role of this database, from whoever has it as well")
        .writes();

pub static DROP_ALL: CommandSpec = CommandSpec::new(
    "dropAllRolesFromDatabase",
    Run::Future(|ctx| boxed(drop_all(ctx))),
)
.access(Access::Checked(administration::drop_role))
.help("removes all user-defined roles of this database")
.writes();

pub static GRANT_ROLES: CommandSpec = CommandSpec::new(
    "grantRolesToRole",
    Run::Future(|ctx| boxed(grant_roles(ctx))),
)
.access(Access::Checked(administration::grant_to_role))
.help("has a role inherit others")
.writes()
.fields(&["roles"])
.form(check_form);

pub static REVOKE_ROLES: CommandSpec = CommandSpec::new(
    "revokeRolesFromRole",
    Run::Future(|ctx| boxed(revoke_roles(ctx))),
)
.access(Access::Checked(administration::revoke_from_role))
.help("has a role inherit others no longer")
.writes()
.fields(&["roles"])
.form(check_form);

pub static GRANT_PRIVILEGES: CommandSpec = CommandSpec::new(
    "grantPrivilegesToRole",
    Run::Future(|ctx| boxed(grant_privileges(ctx))),
)
.access(Access::Checked(administration::grant_to_role))
.help("gives privileges to a role")
.writes()
.fields(&["privileges"])
.form(check_form);

pub static REVOKE_PRIVILEGES: CommandSpec = CommandSpec::new(
    "revokePrivilegesFromRole",
    Run::Future(|ctx| boxed(revoke_privileges(ctx))),
)
.access(Access::Checked(administration::revoke_from_role))
.help("takes privileges from a role")
.writes()
.fields(&["privileges"])
.form(check_form);

fn bad(message: impl Into<String>) -> CommandError {
    CommandError::new(ErrorCode::BadValue, message)
}

fn invalid(message: impl Into<String>) -> CommandError {
    CommandError::new(ErrorCode::InvalidRoleModification, message)
}

/// The role that the command's own field names.
fn named(ctx: &CommandContext<'_>) -> Result<RoleName, CommandError> {
    let field = Field {
        command: ctx.spec.name,
        name: ctx.spec.name,
        value: ctx.argument().unwrap_or(RawBsonRef::Null),
    };
    Ok(RoleName::new(field.str()?, ctx.database()))
}

fn privileges(field: Field<'_>) -> Result<Privileges, CommandError> {
    Privileges::parse(field.array()?).map_err(refused)
}

/// Refuses to give a role of one database what is beyond it.
fn check_reach(role: &RoleName, privileges: &Privileges) -> Result<(), CommandError> {
    let beyond = |database: Option<&str>| database != Some(&role.database);
    let reaches_out = privileges
        .iter()
        .any(|privilege| beyond(privilege.resource.database()));
    match role.database != "admin" && reaches_out {
        true => Err(invalid(format!(
            "Roles on the '{}' database cannot be granted privileges that target other databases \
             or the cluster",
            role.database
        ))),
        false => Ok(()),
    }
}

fn some_privileges(ctx: &CommandContext<'_>) -> Result<Privileges, CommandError> {
    let privileges = privileges(ctx.required("privileges")?)?;
    if privileges.is_empty() {
        let command = ctx.spec.name;
        return Err(bad(format!(
            "{command} command requires a non-empty \"privileges\" array"
        )));
    }
    Ok(privileges)
}

/// Refuses to have a role inherit itself, whether or not it exists.
fn refuse_itself(role: &RoleName, parents: &[RoleName]) -> Result<(), CommandError> {
    match parents.contains(role) {
        true => Err(invalid(format!("Cannot grant role {role} to itself."))),
        false => Ok(()),
    }
}

/// What can be said against a role inheriting others.
fn check_inherits(
    stored: &Stored,
    role: &RoleName,
    parents: &[RoleName],
) -> Result<(), CommandError> {
    refuse_itself(role, parents)?;
    for parent in parents {
        if role.database != "admin" && parent.database != role.database {
            return Err(invalid(format!(
                "Roles on the '{}' database cannot be granted roles from other databases",
                role.database
            )));
        }
        if !stored.role_exists(parent)? {
            return Err(CommandError::new(
                ErrorCode::RoleNotFound,
                format!("Cannot grant roles to '{role}': Could not find role: {parent}"),
            ));
        }
    }
    if stored.reachable(parents)?.would_circle(role, parents) {
        return Err(invalid(format!(
            "Granting roles to {role} would introduce a cycle in the role graph"
        )));
    }
    Ok(())
}

/// A role that is to be changed.
fn existing(stored: &Stored, name: &RoleName) -> Result<RoleDefinition, CommandError> {
    if builtin::exists(name) {
        return Err(bad(format!(
            "{name} is a built-in role and cannot be modified"
        )));
    }
    stored
        .role(name)?
        .ok_or_else(|| CommandError::new(ErrorCode::RoleNotFound, format!("Role {name} not found")))
}

async fn create(ctx: &CommandContext<'_>) -> CommandResult {
    let name = named(ctx)?;
    let parents = roles(ctx, ctx.required("roles")?.array()?)?;
    let given = ctx.required("privileges")?;
    if name.role.is_empty() {
        return Err(bad("Role name must be non-empty"));
    }
    if matches!(&*name.database, "local" | "$external") {
        let database = &name.database;
        return Err(bad(format!(
            "Cannot create roles in the {database} database"
        )));
    }
    if builtin::exists(&name) {
        return Err(bad(
            "Cannot create roles with the same name as a built-in role",
        ));
    }
    let privileges = privileges(given)?;
    check_reach(&name, &privileges)?;
    let definition = RoleDefinition {
        privileges,
        restrictions: restrictions(ctx)?.unwrap_or_default(),
        roles: parents,
        name,
    };
    let _turn = changes::begin(ctx).await?;
    check_inherits(&changes::stored(ctx), &definition.name, &definition.roles)?;
    let exists = || {
        let name = &definition.name;
        CommandError::new(
            ErrorCode::Location(51002),
            format!("Role \"{name}\" already exists"),
        )
    };
    changes::insert(ctx, ROLES, definition.to_document(), exists).await?;
    Ok(rawdoc! { "ok": 1.0 })
}

/// Reads a role, changes it, and writes it back.
async fn change(
    ctx: &CommandContext<'_>,
    name: &RoleName,
    with: impl FnOnce(&Stored, &mut RoleDefinition) -> Result<(), CommandError>,
) -> CommandResult {
    let _turn = changes::begin(ctx).await?;
    let stored = changes::stored(ctx);
    let mut role = existing(&stored, name)?;
    with(&stored, &mut role)?;
    changes::replace(ctx, ROLES, role.to_document()).await?;
    Ok(rawdoc! { "ok": 1.0 })
}

async fn update(ctx: &CommandContext<'_>) -> CommandResult {
    let name = named(ctx)?;
    let (parents, given) = (ctx.field("roles"), ctx.field("privileges"));
    let restrictions = restrictions(ctx)?;
    if parents.is_none() && given.is_none() && restrictions.is_none() {
        return Err(bad(
            "Must specify at least one field to update in updateRole",
        ));
    }
    let parents = parents
        .map(|field| roles(ctx, field.array()?))
        .transpose()?;
    let given = given.map(privileges).transpose()?;
    change(ctx, &name, |stored, role| {
        if let Some(parents) = parents {
            check_inherits(stored, &role.name, &parents)?;
            role.roles = parents;
        }
        if let Some(given) = given {
            check_reach(&role.name, &given)?;
            role.privileges = given;
        }
        if let Some(restrictions) = restrictions {
            role.restrictions = restrictions;
        }
        Ok(())
    })
    .await
}

async fn grant_roles(ctx: &CommandContext<'_>) -> CommandResult {
    let (name, roles) = (named(ctx)?, some_roles(ctx)?);
    refuse_itself(&name, &roles)?;
    change(ctx, &name, |stored, role| {
        check_inherits(stored, &role.name, &roles)?;
        for parent in roles {
            if !role.roles.contains(&parent) {
                role.roles.push(parent);
            }
        }
        Ok(())
    })
    .await
}

async fn revoke_roles(ctx: &CommandContext<'_>) -> CommandResult {
    let (name, roles) = (named(ctx)?, some_roles(ctx)?);
    change(ctx, &name, |_, role| {
        role.roles.retain(|parent| !roles.contains(parent));
        Ok(())
    })
    .await
}

async fn grant_privileges(ctx: &CommandContext<'_>) -> CommandResult {
    let name = named(ctx)?;
    let given = some_privileges(ctx)?;
    change(ctx, &name, |_, role| {
        check_reach(&role.name, &given)?;
        role.privileges.add_all(&given);
        Ok(())
    })
    .await
}

async fn revoke_privileges(ctx: &CommandContext<'_>) -> CommandResult {
    let name = named(ctx)?;
    let taken = some_privileges(ctx)?;
    change(ctx, &name, |_, role| {
        for privilege in taken.iter() {
            role.privileges.remove(privilege);
        }
        Ok(())
    })
    .await
}

async fn drop_one(ctx: &CommandContext<'_>) -> CommandResult {
    let name = named(ctx)?;
    let _turn = changes::begin(ctx).await?;
    if builtin::exists(&name) {
        return Err(bad(format!(
            "{name} is a built-in role and cannot be modified"
        )));
    }
    if changes::stored(ctx).role(&name)?.is_none() {
        return Err(changes::no_role(&name));
    }
    // What would still have it would get another one of the name that is made later.
    changes::take_roles(ctx, &name.database, std::slice::from_ref(&name.role)).await?;
    let query = rawdoc! { "role": name.role.as_str(), "db": name.database.as_str() };
    changes::remove(ctx, ROLES, query).await?;
    Ok(rawdoc! { "ok": 1.0 })
}

async fn drop_all(ctx: &CommandContext<'_>) -> CommandResult {
    let _turn = changes::begin(ctx).await?;
    let database = ctx.database();
    let documents = changes::listed(ctx, ROLES, Some(database))?;
    let names = documents
        .iter()
        .filter_map(|role| role.get_str("role").ok());
    let names: Vec<String> = names.map(str::to_owned).collect();
    if !names.is_empty() {
        changes::take_roles(ctx, database, &names).await?;
    }
    let n = changes::remove(ctx, ROLES, rawdoc! { "db": database }).await?;
    Ok(rawdoc! { "n": n, "ok": 1.0 })
}
