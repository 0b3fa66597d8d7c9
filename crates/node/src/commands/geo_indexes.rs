//! What the specification of an index over shapes or points may say.

use banyan_document::Number;
use banyan_geo::grid::GridError;
use banyan_storage::kind;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBson, RawBsonRef, RawDocument};

use crate::errors;
use crate::params::Field;

/// A number, of which `bits` drops what is behind the point.
pub fn plane_option(field: Field<'_>) -> Result<RawBson, CommandError> {
    let number = number(field)?;
    Ok(match field.name {
        "bits" => {
            let bits = number.to_i64_saturating();
            RawBson::Int32(i32::try_from(bits).unwrap_or(if bits < 0 {
                i32::MIN
            } else {
                i32::MAX
            }))
        }
        _ if number.is_nan() => RawBson::Double(0.0),
        _ => RawBson::Double(number.to_f64()),
    })
}

/// A number without what is behind the point.
pub fn whole(field: Field<'_>) -> Result<i64, CommandError> {
    number(field).map(Number::to_i64_saturating)
}

fn number(field: Field<'_>) -> Result<Number, CommandError> {
    Number::from_raw(field.value).ok_or_else(|| {
        CommandError::new(
            ErrorCode::TypeMismatch,
            format!(
                "The field '{}' must be a number, but got {}",
                field.name,
                banyan_document::kind::name(&field.value)
            ),
        )
    })
}

/// Whether the options give a square that can be cut.
pub fn check_grid(options: &RawDocument) -> Result<(), CommandError> {
    let refused = |error: GridError| {
        let code = match error {
            GridError::Bits(_) | GridError::Region(..) => ErrorCode::InvalidOptions,
            GridError::TooLarge => ErrorCode::Location(4799400),
        };
        CommandError::new(code, error.to_string())
    };
    kind::grid_of(options).map(drop).map_err(refused)
}

/// The points of an index are compared by no collation, and neither is what is beside them.
pub fn check_plane(key: &RawDocument, collation: &RawDocument) -> Result<(), CommandError> {
    let mut fields = key.iter().flatten();
    match fields.any(|(_, value)| value == RawBsonRef::String("2d")) {
        true => Err(CommandError::new(
            ErrorCode::CannotCreateIndex,
            format!(
                "Index type '2d' does not support collation: {}",
                errors::shown(RawBsonRef::Document(collation))
            ),
        )),
        false => Ok(()),
    }
}

/// The version of an index over shapes on the sphere: the newest, unless another one is asked for.
pub fn sphere_version(asked: Option<i64>) -> Result<i32, CommandError> {
    match asked {
        None | Some(3) => Ok(3),
        Some(2) => Ok(2),
        Some(1) => Ok(1),
        Some(other) => Err(CommandError::new(
            ErrorCode::CannotCreateIndex,
            format!(
                "unsupported geo index version {{ 2dsphereIndexVersion : {other} }}, only \
                 versions: [1,2,3] are supported"
            ),
        )),
    }
}
