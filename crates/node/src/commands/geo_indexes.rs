//! What the specification of an index over shapes or points may say.

use banyan_document::Number;
use banyan_document::key::SPHERE_OF_COLUMN;
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
pub fn check_collation(key: &RawDocument, collation: &RawDocument) -> Result<(), CommandError> {
    let mut orders = key.iter().flatten().map(|(_, order)| order);
    let of_points = ["2d", SPHERE_OF_COLUMN];
    let kind = orders.find_map(|order| {
        let mut kinds = of_points.into_iter();
        kinds.find(|kind| order == RawBsonRef::String(kind))
    });
    match kind {
        Some(kind) => Err(CommandError::new(
            ErrorCode::CannotCreateIndex,
            format!(
                "Index type '{kind}' does not support collation: {}",
                errors::shown(RawBsonRef::Document(collation))
            ),
        )),
        None => Ok(()),
    }
}

/// The version of an index over shapes on the sphere: the newest, unless another one is asked for.
pub fn sphere_version(key: &RawDocument, asked: Option<i64>) -> Result<i32, CommandError> {
    let mut orders = key.iter().flatten().map(|(_, order)| order);
    let is_of_columns = orders.any(|order| order == RawBsonRef::String(SPHERE_OF_COLUMN));
    match asked {
        Some(1 | 2) if is_of_columns => refuse_version(asked, "[3]"),
        None | Some(3) => Ok(3),
        Some(2) => Ok(2),
        Some(1) => Ok(1),
        other if is_of_columns => refuse_version(other, "[3]"),
        other => refuse_version(other, "[1,2,3]"),
    }
}

fn refuse_version(asked: Option<i64>, supported: &str) -> Result<i32, CommandError> {
    Err(CommandError::new(
        ErrorCode::CannotCreateIndex,
        format!(
            "unsupported geo index version {{ 2dsphereIndexVersion : {} }}, only versions: \
             {supported} are supported",
            asked.unwrap_or_default()
        ),
    ))
}
