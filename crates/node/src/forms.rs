//! What fields of commands have to be, beyond their types.

use banyan_wire::{CommandError, ErrorCode};

use crate::params::Field;

/// An array. Null is no array, nor is it as if the field were not there.
pub fn array(field: Field<'_>) -> Result<(), CommandError> {
    if field.is_null() {
        return Err(CommandError::new(
            ErrorCode::Location(10065),
            format!("invalid parameter: expected an object ({})", field.name),
        ));
    }
    field.array().map(drop)
}
