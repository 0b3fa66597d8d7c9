//! What a collection and a database may be called.

use banyan_wire::{CommandError, ErrorCode};
use bson::RawBsonRef;

/// A command's own value where it has to be a collection's name.
pub fn collection_name(value: RawBsonRef<'_>) -> Result<&str, CommandError> {
    match value {
        RawBsonRef::String(name) => Ok(name),
        other => Err(CommandError::new(
            ErrorCode::InvalidNamespace,
            format!(
                "collection name has invalid type {}",
                banyan_document::kind::name(&other)
            ),
        )),
    }
}

const NAMESPACE_BYTES_MAX: usize = 255;

/// What MongoDB takes for no name at all.
pub fn check_outline(database: &str, name: &str) -> Result<(), CommandError> {
    if name.is_empty() || name.starts_with('.') || name.contains('\0') {
        return Err(CommandError::new(
            ErrorCode::InvalidNamespace,
            format!("Invalid namespace specified '{database}.{name}'"),
        ));
    }
    Ok(())
}

/// What MongoDB refuses as a collection's name.
pub fn check_collection_name(database: &str, name: &str) -> Result<(), CommandError> {
    let invalid = |message: String| Err(CommandError::new(ErrorCode::InvalidNamespace, message));
    check_outline(database, name)?;
    let is_own = name == "$cmd.aggregate" || (database == "local" && name == "oplog.$main");
    if name.contains('$') && !is_own {
        return invalid(format!(
            "Invalid collection name specified '{database}.{name}'"
        ));
    }
    if database.len() + 1 + name.len() > NAMESPACE_BYTES_MAX {
        return invalid(format!(
            "Fully qualified namespace is too long. Namespace: {database}.{name} Max: \
             {NAMESPACE_BYTES_MAX}"
        ));
    }
    check_database_name(database)
}

/// What MongoDB refuses as a database's name.
pub fn check_database_name(name: &str) -> Result<(), CommandError> {
    let bad = |c: char| matches!(c, '/' | '\\' | '.' | ' ' | '"' | '$' | '\0');
    if name.is_empty() || name.len() > 63 || (name.contains(bad) && name != "$external") {
        return Err(CommandError::new(
            ErrorCode::InvalidNamespace,
            format!("Invalid database name: '{name}'"),
        ));
    }
    Ok(())
}
