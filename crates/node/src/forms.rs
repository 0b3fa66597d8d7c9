//! What fields of commands have to be, beyond their types.

use banyan_wire::CommandError;
use bson::RawBsonRef;

use crate::params::{self, Field};

/// An array, and not null.
pub fn array(field: Field<'_>) -> Result<(), CommandError> {
    if field.is_null() {
        return Err(params::no_array(field.name));
    }
    field.array().map(drop)
}

/// An array of documents. Nulls in it are passed over.
pub fn documents(field: Field<'_>) -> Result<(), CommandError> {
    array(field)?;
    for (at, item) in field.array()?.into_iter().flatten().enumerate() {
        if !matches!(item, RawBsonRef::Document(_)) && !params::is_null(item) {
            let name = &format!("{}.{at}", field.name);
            let item = Field {
                name,
                value: item,
                ..field
            };
            return Err(item.wrong_type("type 'object'"));
        }
    }
    Ok(())
}
