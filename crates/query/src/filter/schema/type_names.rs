//! Names of types in schemas.

use std::collections::HashSet;

use banyan_document::element::items;
use bson::RawBsonRef;

use crate::error::{ErrorKind, QueryError};
use crate::filter::operator;
use crate::filter::type_set::TypeSet;

/// The types that `keyword` names; none where it names none.
pub(super) fn types<'d>(
    keyword: &str,
    value: RawBsonRef<'d>,
    name_of: impl Fn(&'d str) -> Result<&'d str, QueryError>,
) -> Result<Option<TypeSet>, QueryError> {
    let names = match value {
        RawBsonRef::String(name) => vec![name],
        RawBsonRef::Array(array) => {
            let wrong = || {
                QueryError::new(
                    ErrorKind::TypeMismatch,
                    format!("$jsonSchema keyword '{keyword}' array elements must be strings"),
                )
            };
            let names = items(array).map(|item| item.value().as_str().ok_or_else(wrong));
            names.collect::<Result<Vec<_>, _>>()?
        }
        _ => {
            return Err(QueryError::new(
                ErrorKind::TypeMismatch,
                format!(
                    "$jsonSchema keyword '{keyword}' must be either a string or an array of strings"
                ),
            ));
        }
    };
    let mut seen = HashSet::new();
    for name in &names {
        if *name == "integer" {
            return Err(QueryError::new(
                ErrorKind::FailedToParse,
                "$jsonSchema type 'integer' is not currently supported.",
            ));
        }
        if !seen.insert(name) {
            return Err(QueryError::new(
                ErrorKind::FailedToParse,
                format!("$jsonSchema keyword '{keyword}' has duplicate value: {name}"),
            ));
        }
    }
    let mut set = TypeSet::default();
    for name in &names {
        operator::add_type(RawBsonRef::String(name_of(name)?), &mut set)?;
    }
    Ok(Some(set).filter(|_| !names.is_empty()))
}
