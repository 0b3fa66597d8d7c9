//! Users, as `admin.system.users` holds them.

use std::fmt;

use bson::spec::BinarySubtype;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, Uuid, cstr};

use crate::field::{self, DefinitionError};
use crate::restriction::Restrictions;
use crate::role::RoleName;
use crate::scram::{Credentials, Mechanism};

/// Users who authenticate with something that is not kept here, such as a certificate.
pub const EXTERNAL: &str = "$external";

/// A user is named within the database that it authenticates against.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UserName {
    pub user: String,
    pub database: String,
}

impl UserName {
    pub fn new(user: impl Into<String>, database: impl Into<String>) -> UserName {
        UserName {
            user: user.into(),
            database: database.into(),
        }
    }
}

impl fmt::Display for UserName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.user, self.database)
    }
}

/// A user.
#[derive(Clone, Debug, PartialEq)]
pub struct UserDefinition {
    pub name: UserName,
    /// Tells a user from a later one of the same name.
    pub id: Uuid,
    pub credentials: Credentials,
    pub custom_data: Option<RawDocumentBuf>,
    pub roles: Vec<RoleName>,
    pub restrictions: Restrictions,
}

impl UserDefinition {
    /// Reads a document of `admin.system.users`.
    ///
    /// # Errors
    /// A missing, unknown or ill-typed field, or credentials that are damaged.
    pub fn parse(document: &RawDocument) -> Result<UserDefinition, DefinitionError> {
        let (mut user, mut database, mut id) = (None, None, None);
        let (mut credentials, mut roles, mut restrictions) = (None, None, None);
        let mut custom_data = None;
        for item in field::fields(document) {
            let (name, value) = item?;
            match name {
                "_id" => {}
                "user" => user = Some(field::string(name, value)?),
                "db" => database = Some(field::string(name, value)?),
                "userId" => id = Some(uuid(name, value)?),
                "credentials" => credentials = Some(field::document(name, value)?),
                "customData" => custom_data = Some(field::document(name, value)?.to_owned()),
                "roles" => roles = Some(field::array(name, value)?),
                "authenticationRestrictions" => restrictions = Some(field::array(name, value)?),
                _ => return Err(field::unknown("user document", name)),
            }
        }
        let required = |field: &str| field::missing("user document", field);
        let database = database.ok_or_else(|| required("db"))?;
        let credentials = credentials.ok_or_else(|| required("credentials"))?;
        Ok(UserDefinition {
            name: UserName::new(user.ok_or_else(|| required("user"))?, database),
            id: id.ok_or_else(|| required("userId"))?,
            credentials: Credentials::parse(credentials)?,
            custom_data,
            roles: RoleName::parse_all(roles.ok_or_else(|| required("roles"))?, database)?,
            restrictions: match restrictions {
                Some(restrictions) => Restrictions::parse(restrictions)?,
                None => Restrictions::default(),
            },
        })
    }

    /// As `admin.system.users` holds it; `_id` is the database, a dot and the user.
    pub fn to_document(&self) -> RawDocumentBuf {
        let mut document = RawDocumentBuf::new();
        let id = format!("{}.{}", self.name.database, self.name.user);
        document.append(cstr!("_id"), id);
        document.append(cstr!("userId"), bson::Binary::from(self.id));
        document.append(cstr!("user"), self.name.user.as_str());
        document.append(cstr!("db"), self.name.database.as_str());
        document.append(cstr!("credentials"), self.credentials.to_document());
        if let Some(custom_data) = &self.custom_data {
            document.append(cstr!("customData"), custom_data.clone());
        }
        document.append(cstr!("roles"), RoleName::array(&self.roles));
        if !self.restrictions.is_empty() {
            document.append(
                cstr!("authenticationRestrictions"),
                self.restrictions.to_array(),
            );
        }
        document
    }

    /// The names of the mechanisms by which the user can authenticate, as `usersInfo` and
    /// `saslSupportedMechs` tell them.
    pub fn mechanisms(&self) -> Vec<&'static str> {
        if self.name.database == EXTERNAL {
            return vec!["external"];
        }
        Mechanism::ALL
            .iter()
            .filter(|mechanism| self.credentials.get(**mechanism).is_some())
            .map(|mechanism| mechanism.name())
            .collect()
    }
}

fn uuid(name: &str, value: RawBsonRef<'_>) -> Result<Uuid, DefinitionError> {
    let bytes = match value {
        RawBsonRef::Binary(binary) if binary.subtype == BinarySubtype::Uuid => {
            <[u8; 16]>::try_from(binary.bytes).ok()
        }
        _ => None,
    };
    bytes
        .map(Uuid::from_bytes)
        .ok_or_else(|| field::wrong_type(name, "a UUID", value))
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;
    use crate::scram::Credential;

    #[test]
    fn a_user_is_read_as_it_was_written() {
        let credential = Credential::new(Mechanism::Sha256, "alice", "secret", vec![7; 28], 5000)
            .expect("a password");
        let mut credentials = Credentials::default();
        credentials.set(Mechanism::Sha256, credential);
        let user = UserDefinition {
            name: UserName::new("alice", "test"),
            id: Uuid::from_bytes([3; 16]),
            credentials,
            custom_data: Some(rawdoc! { "team": "a" }),
            roles: vec![RoleName::new("read", "test")],
            restrictions: Restrictions::default(),
        };
        let document = user.to_document();
        assert_eq!(document.get_str("_id").expect("a string"), "test.alice");
        assert_eq!(UserDefinition::parse(&document), Ok(user.clone()));
        assert_eq!(user.mechanisms(), ["SCRAM-SHA-256"]);
        for field in ["userId", "user", "db", "credentials", "roles"] {
            let mut without = RawDocumentBuf::new();
            for item in document.iter() {
                let (name, value) = item.expect("a valid document");
                if name.as_str() != field {
                    without.append(name, value);
                }
            }
            UserDefinition::parse(&without).expect_err(field);
        }
    }
}
