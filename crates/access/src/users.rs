//! Where users come from.

use std::sync::Arc;

use banyan_document::field;
use banyan_security::role::Granted;
use banyan_security::{
    DefinitionError, Privileges, Restrictions, RoleName, UserDefinition, UserName,
};
use banyan_wire::CommandError;
use bson::{RawBsonRef, RawDocument};

use crate::copies::without;
use crate::identity::AuthorizedUser;

/// Users as a conversation looks for them. A process that keeps them elsewhere fetches the one
/// that is named before it goes on with the conversation ([`Fetched`]).
pub trait Users {
    fn definition(&self, name: &UserName) -> Result<Option<UserDefinition>, CommandError>;

    /// The same user with what its roles grant.
    fn authorized(&self, name: &UserName) -> Result<Option<Arc<AuthorizedUser>>, CommandError>;
}

/// The one user that a conversation is about, if there is one.
#[derive(Default)]
pub struct Fetched(pub Option<FetchedUser>);

/// A user as the config servers tell of it.
#[derive(Debug, Clone)]
pub struct FetchedUser {
    pub definition: UserDefinition,
    pub authorized: Arc<AuthorizedUser>,
}

impl FetchedUser {
    /// Reads what `usersInfo` tells of one user, asked for everything.
    ///
    /// # Errors
    /// What of it is missing, or cannot be read.
    pub fn parse(document: &RawDocument) -> Result<FetchedUser, DefinitionError> {
        let definition = UserDefinition::parse(&without(document, INHERITED))?;
        let array = |name| match field(document, name) {
            Some(RawBsonRef::Array(array)) => Ok(array),
            _ => Err(DefinitionError::Invalid(format!(
                "usersInfo does not tell {name}"
            ))),
        };
        let mut restrictions = Vec::new();
        for one in array("inheritedAuthenticationRestrictions")? {
            match one {
                Ok(RawBsonRef::Array(one)) => restrictions.push(Restrictions::parse(one)?),
                _ => {
                    let text = "a restriction that is no array".to_owned();
                    return Err(DefinitionError::Invalid(text));
                }
            }
        }
        let granted = Granted::new(
            RoleName::parse_all(array("inheritedRoles")?, &definition.name.database)?,
            Privileges::parse(array("inheritedPrivileges")?)?,
            restrictions,
        );
        let authorized = AuthorizedUser {
            name: definition.name.clone(),
            id: Some(definition.id),
            roles: definition.roles.clone(),
            granted,
            restrictions: definition.restrictions.clone(),
        };
        Ok(FetchedUser {
            definition,
            authorized: Arc::new(authorized),
        })
    }
}

/// What `usersInfo` tells beside what is stored.
const INHERITED: &[&str] = &[
    "mechanisms",
    "inheritedRoles",
    "inheritedPrivileges",
    "inheritedAuthenticationRestrictions",
];

impl Users for Fetched {
    fn definition(&self, name: &UserName) -> Result<Option<UserDefinition>, CommandError> {
        let found = self.0.as_ref().filter(|user| user.definition.name == *name);
        Ok(found.map(|user| user.definition.clone()))
    }

    fn authorized(&self, name: &UserName) -> Result<Option<Arc<AuthorizedUser>>, CommandError> {
        let found = self.0.as_ref().filter(|user| user.authorized.name == *name);
        Ok(found.map(|user| user.authorized.clone()))
    }
}

#[cfg(test)]
mod tests {
    use bson::{RawDocumentBuf, rawdoc};

    use super::*;

    fn told() -> RawDocumentBuf {
        let find = rawdoc! {
            "resource": { "db": "t", "collection": "" }, "actions": ["find"],
        };
        rawdoc! {
            "_id": "t.a",
            "userId": bson::Binary::from(bson::Uuid::from_bytes([7; 16])),
            "user": "a",
            "db": "t",
            "credentials": { "external": true },
            "roles": [{ "role": "finder", "db": "t" }],
            "authenticationRestrictions": [],
            "mechanisms": ["external"],
            "inheritedRoles": [{ "role": "finder", "db": "t" }, { "role": "other", "db": "t" }],
            "inheritedPrivileges": [find],
            "inheritedAuthenticationRestrictions": [[{ "clientSource": ["127.0.0.1"] }]],
        }
    }

    #[test]
    fn what_the_config_servers_tell_of_a_user_is_read() {
        let user = FetchedUser::parse(&told()).unwrap();
        let name = UserName::new("a", "t");
        assert_eq!(user.definition.name, name);
        let granted = &user.authorized.granted;
        assert_eq!((granted.roles.len(), granted.restrictions.len()), (2, 1));
        assert_eq!(granted.privileges().iter().count(), 1);
        let fetched = Fetched(Some(user));
        assert!(fetched.definition(&name).unwrap().is_some());
        let other = UserName::new("a", "u");
        assert!(fetched.authorized(&other).unwrap().is_none());
    }

    #[test]
    fn a_user_of_whom_something_is_not_told_may_do_nothing() {
        for field in INHERITED.iter().skip(1).chain(&["credentials", "roles"]) {
            FetchedUser::parse(&without(&told(), &[field])).expect_err(field);
        }
    }
}
