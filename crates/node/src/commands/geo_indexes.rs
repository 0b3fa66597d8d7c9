//! What the specification of an index over shapes or points may say.

use banyan_document::Number;
use banyan_document::key::SPHERE_OF_COLUMN;
use banyan_geo::grid::{DEFAULT_MAX, DEFAULT_MIN, GridError};
use banyan_storage::kind;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBson, RawBsonRef, RawDocument};

use crate::errors;
use crate::params::{self, Field};

/// All longs up to here are doubles as well; MongoDB keeps none beyond as a bound.
const EXACT_MAX: i64 = 1 << 53;

/// A number, of which `bits` drops what is behind the point.
pub fn plane_option(field: Field<'_>) -> Result<RawBson, CommandError> {
    let number = number(field)?;
    Ok(match field.name {
        "bits" => RawBson::Int32(clamped(whole(field)?)),
        _ => RawBson::Double(kept_bound(number)),
    })
}

/// A bound of the square as it is kept.
pub fn kept_bound(number: Number) -> f64 {
    match number {
        Number::Int64(long) => long.clamp(-EXACT_MAX, EXACT_MAX) as f64,
        number if number.is_nan() => 0.0,
        number => number.to_f64(),
    }
}

/// A whole number, as commands read them.
pub fn whole(field: Field<'_>) -> Result<i64, CommandError> {
    number(field)?;
    Ok(params::number(field.value).unwrap_or_default())
}

/// The nearest int.
pub fn clamped(number: i64) -> i32 {
    let limit = if number < 0 { i32::MIN } else { i32::MAX };
    i32::try_from(number).unwrap_or(limit)
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

pub const COARSEST: &str = "coarsestIndexedLevel";
pub const FINEST: &str = "finestIndexedLevel";
/// Those of an index that does not say.
const COARSEST_DEFAULT: i32 = 2;
const FINEST_DEFAULT: i32 = 16;
const FINEST_MAX: i32 = 30;

/// A level of cells, of an index that may have none: only one on the sphere has to be right about it.
pub fn level(field: Field<'_>) -> Result<RawBson, CommandError> {
    if let RawBsonRef::Boolean(flag) = field.value {
        return Ok(RawBson::Boolean(flag));
    }
    Ok(RawBson::Int32(clamped(whole(field)?)))
}

/// Whether the levels of an index on the sphere are levels, and follow each other.
pub fn check_levels(spec: &RawDocument) -> Result<(), CommandError> {
    let level = |name: &'static str, default| match banyan_document::field(spec, name) {
        Some(value) => exact_level(Field {
            command: "createIndexes.indexes",
            name,
            value,
        }),
        None => Ok(default),
    };
    let finest = level(FINEST, FINEST_DEFAULT)?;
    let coarsest = level(COARSEST, COARSEST_DEFAULT)?;
    let refuse = |code, message: &str| {
        let code = ErrorCode::Location(code);
        Err(CommandError::new(code, message))
    };
    if coarsest < 0 {
        refuse(16747, "coarsestIndexedLevel must be >= 0")
    } else if finest > FINEST_MAX {
        refuse(16748, "finestIndexedLevel must be <= 30")
    } else if finest < coarsest {
        let message = "finestIndexedLevel must be >= coarsestIndexedLevel";
        refuse(16749, message)
    } else {
        Ok(())
    }
}

fn exact_level(field: Field<'_>) -> Result<i32, CommandError> {
    let Some(number) = Number::from_raw(field.value) else {
        return Err(CommandError::new(
            ErrorCode::TypeMismatch,
            format!(
                "Expected field \"{}\" to have numeric type, but found {}",
                field.name,
                banyan_document::kind::name(&field.value)
            ),
        ));
    };
    check_whole(field)?;
    // MongoDB keeps the lower half of larger ones.
    #[expect(clippy::cast_possible_truncation)]
    Ok(number.to_i64_saturating() as i32)
}

/// A number that is to have no fraction.
pub fn check_whole(field: Field<'_>) -> Result<(), CommandError> {
    let number = Number::from_raw(field.value);
    match number.is_some_and(|number| number.to_i64_exact().is_none()) {
        true => Err(CommandError::new(
            ErrorCode::BadValue,
            format!(
                "Expected field \"{0}\" to have a value exactly representable as a 64-bit \
                 integer, but found {0}: {1}",
                field.name,
                errors::shown(field.value)
            ),
        )),
        false => Ok(()),
    }
}

/// Whether the options of an index over points of a plane give a square that can be cut.
pub fn check_plane(spec: &RawDocument) -> Result<(), CommandError> {
    let key = spec.get_document("key").into_iter();
    let mut orders = key.flat_map(|key| key.iter().flatten());
    match orders.any(|(_, order)| order == RawBsonRef::String("2d")) {
        true => check_grid(spec),
        false => Ok(()),
    }
}

/// Bounds that are not numbers are kept as zero, but bound no square.
pub fn check_bounds(spec: &RawDocument) -> Result<(), CommandError> {
    let bound = |name, default| {
        let given = banyan_document::field(spec, name).and_then(Number::from_raw);
        given.map_or(default, Number::to_f64)
    };
    let (min, max) = (bound("min", DEFAULT_MIN), bound("max", DEFAULT_MAX));
    match min.is_nan() || max.is_nan() {
        true => Err(refused(GridError::Region(min, max))),
        false => Ok(()),
    }
}

fn refused(error: GridError) -> CommandError {
    let code = match error {
        GridError::Bits(_) | GridError::Region(..) => ErrorCode::InvalidOptions,
        GridError::TooLarge => ErrorCode::Location(4799400),
    };
    CommandError::new(code, error.to_string())
}

fn check_grid(options: &RawDocument) -> Result<(), CommandError> {
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
