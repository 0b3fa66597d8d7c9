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
    items(field, "type 'object'", |item| {
        matches!(item, RawBsonRef::Document(_))
    })
}

/// An array of whole numbers of 64 bits. Nulls in it are passed over.
pub fn longs(field: Field<'_>) -> Result<(), CommandError> {
    items(field, "type 'long'", |item| {
        matches!(item, RawBsonRef::Int64(_))
    })
}

/// An array of whole numbers of 32 bits.
pub fn ints(field: Field<'_>) -> Result<(), CommandError> {
    items(field, "type 'int'", |item| {
        matches!(item, RawBsonRef::Int32(_))
    })
}

fn items(
    field: Field<'_>,
    wanted: &str,
    is_wanted: fn(RawBsonRef<'_>) -> bool,
) -> Result<(), CommandError> {
    array(field)?;
    for (at, item) in field.array()?.into_iter().flatten().enumerate() {
        if !is_wanted(item) && !params::is_null(item) {
            let name = &format!("{}.{at}", field.name);
            let item = Field {
                name,
                value: item,
                ..field
            };
            return Err(item.wrong_type(wanted));
        }
    }
    Ok(())
}

/// A generic field inside of an explained read.
pub fn of_explained_read(field: Field<'_>) -> Result<(), CommandError> {
    match field.name {
        "maxTimeMS" => params::max_time_ms(field).map(drop),
        "readConcern" => field.document_or_null().map(drop),
        _ => Ok(()),
    }
}

/// A generic field inside of an explained write.
pub fn of_explained_write(field: Field<'_>) -> Result<(), CommandError> {
    match (field.name, field.value) {
        ("stmtId", RawBsonRef::Int32(_)) => Ok(()),
        ("stmtId", _) if !field.is_null() => Err(field.wrong_type("type 'int'")),
        ("stmtIds", _) => ints(field),
        _ => Ok(()),
    }
}
