//! `rolesInfo`: the roles of this database, or those that are named.

use banyan_access::administration;
use banyan_access::check::Access;
use banyan_access::copies::without;
use banyan_security::role::Granted;
use banyan_security::{RoleDefinition, RoleName, builtin};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawArrayBuf, RawBsonRef, RawDocumentBuf, cstr, rawdoc};

use super::table::{CommandResult, CommandSpec, Run};
use super::users_info::{append_granted, append_restrictions};
use crate::access::changes;
use crate::access::stored::{ROLES, Stored, refused};
use crate::context::CommandContext;
use crate::errors;
use crate::params::Field;

pub static SPEC: CommandSpec = CommandSpec::new("rolesInfo", Run::Inline(run))
    .access(Access::Checked(administration::roles_info))
    .help("shows roles")
    .fields(&[
        "showPrivileges",
        "showAuthenticationRestrictions",
        "showBuiltinRoles",
    ])
    .computes();

struct Shown {
    privileges: bool,
    restrictions: bool,
}

fn run(ctx: &CommandContext<'_>) -> CommandResult {
    let flag = |name| match ctx.field(name) {
        Some(field) => field.bool(),
        None => Ok(false),
    };
    let privileges = ctx.field("showPrivileges");
    let as_fragment =
        privileges.is_some_and(|field| field.value.as_str() == Some("asUserFragment"));
    if let Some(field) = privileges.filter(|field| !as_fragment && is_no_flag(*field)) {
        return Err(CommandError::new(
            ErrorCode::BadValue,
            format!(
                "Failed to parse 'showPrivileges'. 'showPrivileges' should either be a boolean or \
                 the string 'asUserFragment', given: showPrivileges: {}",
                errors::shown(field.value)
            ),
        ));
    }
    if as_fragment && ctx.argument().and_then(crate::params::number) == Some(1) {
        return Err(CommandError::new(
            ErrorCode::IllegalOperation,
            "Cannot get user fragment for all roles in a database",
        ));
    }
    let shown = Shown {
        privileges: !as_fragment && flag("showPrivileges")?,
        restrictions: flag("showAuthenticationRestrictions")?,
    };
    let stored = changes::stored(ctx);
    let names = names(ctx, flag("showBuiltinRoles")?)?;
    if as_fragment {
        let granted = stored.reachable(&names)?.granted(&names);
        let mut fragment = rawdoc! { "roles": RoleName::array(&names) };
        append_granted(&mut fragment, &granted, &granted.roles);
        return Ok(rawdoc! { "userFragment": fragment, "ok": 1.0 });
    }
    let mut roles = RawArrayBuf::new();
    for name in names {
        if let Some(described) = describe(&stored, &name, &shown)? {
            roles.push(described);
        }
    }
    Ok(rawdoc! { "roles": roles, "ok": 1.0 })
}

fn is_no_flag(field: Field<'_>) -> bool {
    field.is_null() || field.bool().is_err()
}

fn names(ctx: &CommandContext<'_>, built_in: bool) -> Result<Vec<RoleName>, CommandError> {
    let database = ctx.database();
    let one = |value| RoleName::parse(value, database).map_err(refused);
    match ctx.argument() {
        Some(RawBsonRef::Array(names)) => names.into_iter().flatten().map(one).collect(),
        Some(value @ (RawBsonRef::String(_) | RawBsonRef::Document(_))) => Ok(vec![one(value)?]),
        Some(value) if crate::params::number(value) == Some(1) => {
            let mut names = Vec::new();
            if built_in {
                let all = builtin::IN_EVERY_DATABASE.iter().chain(builtin::IN_ADMIN);
                let all = all.map(|role| RoleName::new(*role, database));
                names.extend(all.filter(builtin::exists));
            }
            for document in changes::listed(ctx, ROLES, Some(database))? {
                names.push(RoleDefinition::parse(&document).map_err(refused)?.name);
            }
            Ok(names)
        }
        _ => Err(CommandError::new(
            ErrorCode::BadValue,
            "RoleName must be either a string or an object",
        )),
    }
}

fn describe(
    stored: &Stored,
    name: &RoleName,
    shown: &Shown,
) -> Result<Option<RawDocumentBuf>, CommandError> {
    let mut document = match stored.role(name)? {
        Some(role) => {
            let hidden: &[&str] = match shown.privileges {
                true => &["authenticationRestrictions"],
                false => &["authenticationRestrictions", "privileges"],
            };
            let mut document = without(&role.to_document(), hidden);
            if shown.restrictions {
                let own = match role.restrictions.is_empty() {
                    true => RawArrayBuf::new(),
                    false => RawArrayBuf::from_iter([role.restrictions.to_array()]),
                };
                document.append(cstr!("authenticationRestrictions"), own);
            }
            append_inherited(stored, &role, shown, &mut document)?;
            document
        }
        None => {
            let Some(privileges) = builtin::privileges(name) else {
                return Ok(None);
            };
            let mut document = rawdoc! {
                "db": name.database.as_str(),
                "role": name.role.as_str(),
                "roles": [],
            };
            if shown.privileges {
                document.append(cstr!("privileges"), privileges.to_array());
            }
            if shown.restrictions {
                document.append(cstr!("authenticationRestrictions"), RawArrayBuf::new());
            }
            document.append(cstr!("inheritedRoles"), RawArrayBuf::new());
            if shown.privileges {
                document.append(cstr!("inheritedPrivileges"), privileges.to_array());
            }
            if shown.restrictions {
                append_restrictions(&mut document, &[]);
            }
            document
        }
    };
    document.append(cstr!("isBuiltin"), builtin::exists(name));
    Ok(Some(document))
}

fn append_inherited(
    stored: &Stored,
    role: &RoleDefinition,
    shown: &Shown,
    document: &mut RawDocumentBuf,
) -> Result<(), CommandError> {
    let own = std::slice::from_ref(&role.name);
    let granted: Granted = stored.reachable(own)?.granted(own);
    let inherited: Vec<RoleName> = granted.roles.iter().skip(1).cloned().collect();
    document.append(cstr!("inheritedRoles"), RoleName::array(&inherited));
    if shown.privileges {
        document.append(
            cstr!("inheritedPrivileges"),
            granted.privileges().to_array(),
        );
    }
    if shown.restrictions {
        append_restrictions(document, &granted.restrictions);
    }
    Ok(())
}
