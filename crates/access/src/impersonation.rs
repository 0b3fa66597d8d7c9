//! Whom a router sends a request for.
//!
//! Every request of a router comes from `__system`, who may do everything: the router has checked
//! what its client may do. `$audit` names the client's users, as in MongoDB, so that cursors,
//! sessions and operations on shards belong to them. Nobody else may send it.

use std::sync::Arc;

use banyan_document::field;
use banyan_security::{RoleName, UserName};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawArrayBuf, RawBsonRef, RawDocumentBuf, rawdoc};

use crate::administration::user_name;
use crate::identity::{Identity, Owner};

/// The field of a request.
pub const FIELD: &str = banyan_wire::behalf::FIELD;

const USERS: &str = "$impersonatedUsers";
const ROLES: &str = "$impersonatedRoles";
/// A connection has at most one user of each database.
const USERS_MAX: usize = 10_000;

/// What is sent along for a client; `None` for one that has not logged in.
pub fn of(identity: &Identity) -> Option<RawDocumentBuf> {
    if !identity.is_authenticated() {
        return None;
    }
    let mut users = RawArrayBuf::new();
    let mut roles: Vec<RoleName> = Vec::new();
    for user in &identity.users {
        users.push(rawdoc! { "user": user.name.user.as_str(), "db": user.name.database.as_str() });
        for role in &user.roles {
            if !roles.contains(role) {
                roles.push(role.clone());
            }
        }
    }
    Some(rawdoc! {
        "$impersonatedUsers": users,
        "$impersonatedRoles": RoleName::array(&roles),
    })
}

/// Whom the value of the field names; `None`: nobody.
pub fn parse(value: RawBsonRef<'_>) -> Result<Option<Arc<Owner>>, CommandError> {
    let wrong = |message: String| Err(CommandError::new(ErrorCode::TypeMismatch, message));
    let RawBsonRef::Document(metadata) = value else {
        return wrong(format!("BSON field '{FIELD}' is the wrong type"));
    };
    let users = match field(metadata, USERS) {
        None => return Ok(None),
        Some(RawBsonRef::Array(users)) => users,
        Some(_) => return wrong(format!("BSON field '{FIELD}.{USERS}' is the wrong type")),
    };
    let mut names: Vec<UserName> = Vec::new();
    for user in users {
        let name = user.ok().and_then(|user| user_name(user, ""));
        match name {
            Some(name) if names.len() < USERS_MAX => names.push(name),
            _ => return wrong(format!("BSON field '{FIELD}.{USERS}' names no users")),
        }
    }
    Ok((!names.is_empty()).then(|| Arc::new(Owner::new(names))))
}

/// Their roles, for whoever notes what they do; none if they cannot be read.
pub fn roles(value: RawBsonRef<'_>) -> Vec<RoleName> {
    let named = match value {
        RawBsonRef::Document(metadata) => field(metadata, ROLES),
        _ => None,
    };
    match named {
        Some(RawBsonRef::Array(roles)) => RoleName::parse_all(roles, "").unwrap_or_default(),
        _ => Vec::new(),
    }
}

/// A field that only members of the cluster may send.
pub fn refused() -> CommandError {
    CommandError::new(
        ErrorCode::Unauthorized,
        "Unauthorized use of impersonation metadata.",
    )
}

#[cfg(test)]
mod tests {
    use banyan_security::Restrictions;
    use bson::RawBson;

    use super::*;
    use crate::identity::AuthorizedUser;

    fn user(name: &str, database: &str) -> Arc<AuthorizedUser> {
        Arc::new(AuthorizedUser {
            name: UserName::new(name, database),
            id: None,
            roles: vec![RoleName::new("read", "a")],
            granted: Default::default(),
            restrictions: Restrictions::default(),
        })
    }

    #[test]
    fn who_is_named_is_who_logged_in() {
        let identity = Identity::new(vec![user("x", "a"), user("y", "b")], 1);
        let sent = of(&identity).expect("somebody");
        let read = parse(RawBsonRef::Document(&sent))
            .unwrap()
            .expect("somebody");
        assert_eq!(*read, **identity.owner());
        assert_eq!(read.names().len(), 2);
        let roles = roles(RawBsonRef::Document(&sent));
        assert_eq!(roles, [RoleName::new("read", "a")]);
        assert_eq!(of(&Identity::default()), None);
        let none = rawdoc! { "$impersonatedUsers": [] };
        assert_eq!(parse(RawBsonRef::Document(&none)).unwrap(), None);
    }

    #[test]
    fn what_names_nobody_is_refused() {
        let wrong: [RawBson; 4] = [
            "x".into(),
            rawdoc! { "$impersonatedUsers": 1 }.into(),
            rawdoc! { "$impersonatedUsers": [{ "user": "x" }] }.into(),
            rawdoc! { "$impersonatedUsers": [1] }.into(),
        ];
        for value in &wrong {
            let error = parse(value.as_raw_bson_ref()).unwrap_err();
            assert_eq!(error.code, ErrorCode::TypeMismatch, "{value:?}");
        }
    }
}
