//! `usersInfo`: the users of this database, of all of them, or those that are named.

use banyan_access::administration::{self, user_name};
use banyan_access::check::Access;
use banyan_access::copies::without;
use banyan_document::is_true;
use banyan_query::Context;
use banyan_security::role::Granted;
use banyan_security::{Restrictions, RoleName, UserDefinition};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

use super::table::{CommandResult, CommandSpec, Run};
use crate::access::changes;
use crate::access::stored::{Stored, USERS, refused};
use crate::context::CommandContext;
use crate::cursors::first::{is_listed, list_filter};

pub static SPEC: CommandSpec = CommandSpec::new("usersInfo", Run::Inline(run))
    .access(Access::Checked(administration::users_info))
    .help("shows users")
    .fields(&[
        "showCredentials",
        "showCustomData",
        "showPrivileges",
        "showAuthenticationRestrictions",
        "filter",
    ])
    .computes();

/// What of a user is shown.
struct Shown {
    credentials: bool,
    custom_data: bool,
    privileges: bool,
    restrictions: bool,
}

fn run(ctx: &CommandContext<'_>) -> CommandResult {
    let flag = |name, default| match ctx.field(name) {
        Some(field) => field.bool(),
        None => Ok(default),
    };
    let shown = Shown {
        credentials: flag("showCredentials", false)?,
        custom_data: flag("showCustomData", true)?,
        privileges: flag("showPrivileges", false)?,
        restrictions: flag("showAuthenticationRestrictions", false)?,
    };
    let filter = list_filter(ctx, &Context::default())?;
    if filter.is_some() && (shown.privileges || shown.restrictions) {
        return Err(exact_match());
    }
    let mut users = RawArrayBuf::new();
    for user in found(ctx, &shown)? {
        let described = describe(&changes::stored(ctx), &user, &shown)?;
        if is_listed(filter.as_ref(), &described)? {
            users.push(described);
        }
    }
    Ok(rawdoc! { "users": users, "ok": 1.0 })
}

fn found(ctx: &CommandContext<'_>, shown: &Shown) -> Result<Vec<UserDefinition>, CommandError> {
    let named: Vec<RawBsonRef<'_>> = match ctx.argument() {
        Some(RawBsonRef::Array(names)) => names.into_iter().flatten().collect(),
        Some(RawBsonRef::Document(all))
            if banyan_document::field(all, "forAllDBs").is_some_and(is_true) =>
        {
            return all_of(ctx, None, shown);
        }
        Some(value @ (RawBsonRef::String(_) | RawBsonRef::Document(_))) => vec![value],
        Some(value) if crate::params::number(value) == Some(1) => {
            return all_of(ctx, Some(ctx.database()), shown);
        }
        _ => return Err(bad("UserName must be either a string or an object")),
    };
    if named.is_empty() && !shown.privileges && !shown.restrictions {
        return Err(bad("$and/$or/$nor must be a nonempty array"));
    }
    let stored = changes::stored(ctx);
    let mut users: Vec<UserDefinition> = Vec::new();
    for value in named {
        if let RawBsonRef::Document(document) = value {
            check_fields(document)?;
        }
        let name = user_name(value, ctx.database())
            .ok_or_else(|| bad("UserName must be either a string or an object"))?;
        if users.iter().all(|user| user.name != name) {
            users.extend(stored.user(&name)?);
        }
    }
    Ok(users)
}

fn check_fields(name: &RawDocument) -> Result<(), CommandError> {
    for element in banyan_document::elements(name) {
        if !matches!(element.name(), "user" | "db") {
            let field = element.name();
            return Err(bad(format!(
                "UserName contains an unknown field named: '{field}'"
            )));
        }
    }
    for field in ["user", "db"] {
        if banyan_document::field(name, field)
            .and_then(|value| value.as_str())
            .is_none()
        {
            return Err(bad(format!("UserName must contain a field named: {field}")));
        }
    }
    Ok(())
}

fn all_of(
    ctx: &CommandContext<'_>,
    database: Option<&str>,
    shown: &Shown,
) -> Result<Vec<UserDefinition>, CommandError> {
    if shown.privileges || shown.restrictions {
        return Err(exact_match());
    }
    let found = changes::listed(ctx, USERS, database)?;
    let parse = |document: RawDocumentBuf| UserDefinition::parse(&document).map_err(refused);
    found.into_iter().map(parse).collect()
}

fn describe(
    stored: &Stored,
    user: &UserDefinition,
    shown: &Shown,
) -> Result<RawDocumentBuf, CommandError> {
    let mut hidden = Vec::new();
    for (field, is_shown) in [
        ("credentials", shown.credentials),
        ("customData", shown.custom_data),
        ("authenticationRestrictions", shown.restrictions),
    ] {
        if !is_shown {
            hidden.push(field);
        }
    }
    let mut document = without(&user.to_document(), &hidden);
    let mechanisms: RawArrayBuf = user.mechanisms().into_iter().collect();
    document.append(cstr!("mechanisms"), mechanisms);
    if shown.restrictions && user.restrictions.is_empty() {
        document.append(cstr!("authenticationRestrictions"), RawArrayBuf::new());
    }
    if shown.privileges || shown.restrictions {
        let granted = stored.reachable(&user.roles)?.granted(&user.roles);
        append_granted(&mut document, &granted, &granted.roles);
        append_restrictions(&mut document, &granted.restrictions);
    }
    Ok(document)
}

/// What somebody has through roles.
pub fn append_granted(document: &mut RawDocumentBuf, granted: &Granted, roles: &[RoleName]) {
    document.append(cstr!("inheritedRoles"), RoleName::array(roles));
    document.append(
        cstr!("inheritedPrivileges"),
        granted.privileges().to_array(),
    );
}

pub fn append_restrictions(document: &mut RawDocumentBuf, restrictions: &[Restrictions]) {
    let mut all = RawArrayBuf::new();
    for restriction in restrictions {
        all.push(restriction.to_array());
    }
    document.append(cstr!("inheritedAuthenticationRestrictions"), all);
}

fn exact_match() -> CommandError {
    CommandError::new(
        ErrorCode::IllegalOperation,
        "Privilege or restriction details require exact-match usersInfo queries",
    )
}

fn bad(message: impl Into<String>) -> CommandError {
    CommandError::new(ErrorCode::BadValue, message)
}
