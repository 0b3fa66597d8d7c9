//! The names that a stage may give to the fields of its results.

use crate::error::QueryError;
use crate::expression::value::error;

pub(super) fn check_field_name(name: &str) -> Result<(), QueryError> {
    if name.contains('.') {
        return error(40235, format!("The field name '{name}' cannot contain '.'"));
    }
    if name.starts_with('$') {
        return error(
            40236,
            format!("The field name '{name}' cannot be an operator name"),
        );
    }
    Ok(())
}
