//! `$querySettings`: all settings that there are.

use bson::{RawBsonRef, RawDocument, RawDocumentBuf, cstr};

use super::known::{Configuration, KnownSettings};
use crate::error::{ErrorKind, QueryError};
use crate::expression::value::type_name;
use crate::shape::{Names, QueryShape};

const STAGE: &str = "$querySettings";

/// What the stage yields for its argument.
pub fn documents(
    known: &KnownSettings,
    argument: &RawDocument,
) -> Result<Vec<RawDocumentBuf>, QueryError> {
    let mut shows_shapes = false;
    for option in banyan_document::elements(argument) {
        let field = format!("{STAGE}.{}", option.name());
        match (option.name(), option.value()) {
            ("showDebugQueryShape", RawBsonRef::Boolean(flag)) => shows_shapes = flag,
            ("showDebugQueryShape", value) => {
                return Err(QueryError::new(
                    ErrorKind::TypeMismatch,
                    format!(
                        "BSON field '{field}' is the wrong type '{}', expected type 'bool'",
                        type_name(Some(value))
                    ),
                ));
            }
            _ => {
                return Err(QueryError::new(
                    ErrorKind::Location(40415),
                    format!("BSON field '{field}' is an unknown field."),
                ));
            }
        }
    }
    let all = known.all().iter();
    Ok(all.map(|one| described(one, shows_shapes)).collect())
}

fn described(configuration: &Configuration, shows_shape: bool) -> RawDocumentBuf {
    let mut shown = configuration.to_document();
    let query = configuration.representative.as_ref();
    let shape = query.filter(|_| shows_shape).and_then(|query| {
        let database = query.get_str("$db").ok()?;
        QueryShape::of(database, query)
    });
    if let Some(shape) = shape {
        shown.append(cstr!("debugQueryShape"), shape.show(&Names::AsTheyAre));
    }
    shown
}
