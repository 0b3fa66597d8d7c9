//! What a role is called.

use std::collections::HashSet;
use std::fmt;

use bson::{RawArray, RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, cstr};

use crate::field::{self, DefinitionError};
/// A role is named within a database.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RoleName {
    pub role: String,
    pub database: String,
}

impl RoleName {
    pub fn new(role: impl Into<String>, database: impl Into<String>) -> RoleName {
        RoleName {
            role: role.into(),
            database: database.into(),
        }
    }

    /// Reads `"role"`, a role of the database `here`, or `{role: "…", db: "…"}`.
    ///
    /// # Errors
    /// A value that is neither, or an empty name.
    pub fn parse(value: RawBsonRef<'_>, here: &str) -> Result<RoleName, DefinitionError> {
        let name = match value {
            RawBsonRef::String(role) => RoleName::new(role, here),
            RawBsonRef::Document(document) => RoleName::parse_document(document)?,
            _ => {
                return Err(DefinitionError::Invalid(
                    "Role name must be either a document or string".to_owned(),
                ));
            }
        };
        if name.role.is_empty() || name.database.is_empty() {
            return Err(DefinitionError::Invalid(
                "role names and their databases must not be empty".to_owned(),
            ));
        }
        Ok(name)
    }

    fn parse_document(document: &RawDocument) -> Result<RoleName, DefinitionError> {
        let (mut role, mut database) = (None, None);
        for item in field::fields(document) {
            let (name, value) = item?;
            match name {
                "role" => role = Some(value.as_str().ok_or_else(|| lacks("role"))?),
                "db" => database = Some(value.as_str().ok_or_else(|| lacks("db"))?),
                _ => {}
            }
        }
        match (role, database) {
            (Some(role), Some(database)) => Ok(RoleName::new(role, database)),
            (None, _) => Err(lacks("role")),
            (_, None) => Err(lacks("db")),
        }
    }

    /// Reads an array of names, each once.
    ///
    /// # Errors
    /// As [`RoleName::parse`].
    pub fn parse_all(array: &RawArray, here: &str) -> Result<Vec<RoleName>, DefinitionError> {
        let mut names = Vec::new();
        let mut seen = HashSet::new();
        for value in field::elements(array) {
            let name = RoleName::parse(value?, here)?;
            if seen.insert(name.clone()) {
                names.push(name);
            }
        }
        Ok(names)
    }

    pub fn to_document(&self) -> RawDocumentBuf {
        let mut document = RawDocumentBuf::new();
        document.append(cstr!("role"), self.role.as_str());
        document.append(cstr!("db"), self.database.as_str());
        document
    }

    pub fn array(names: &[RoleName]) -> RawArrayBuf {
        let mut array = RawArrayBuf::new();
        for name in names {
            array.push(name.to_document());
        }
        array
    }
}

fn lacks(field: &str) -> DefinitionError {
    DefinitionError::Invalid(format!("RoleName must contain a field named: {field}"))
}

impl fmt::Display for RoleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.role, self.database)
    }
}
