//! The operand of `$near`, `$nearSphere` and `$geoNear` (the operator), in all of its forms.

use bson::{RawBsonRef, RawDocument};

use crate::parse::{GeoError, Values, asked_point, bad, number};
use crate::plane::PlanePoint;
use crate::shape::{Place, System};

/// What lies near a point, the closest first.
#[derive(Debug, Clone, PartialEq)]
pub struct Near {
    pub center: Place,
    /// In meters if `unit` says so, else in radians or in the plane's units.
    pub min_distance: f64,
    pub max_distance: f64,
    pub unit: Unit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// On the sphere, from a GeoJSON point.
    Meters,
    /// On the sphere, from a coordinate pair.
    Radians,
    /// On the plane.
    Flat,
}

/// The names of the operator.
pub fn is_near(name: &str) -> bool {
    matches!(name, "$near" | "$nearSphere" | "$geoNear")
}

/// Reads all of the operators at a path, of which the first is one of [`is_near`].
pub fn near(operators: &RawDocument) -> Result<Near, GeoError> {
    let (center, is_sphere, min_distance, max_distance) = match legacy(operators)? {
        Some(legacy) => legacy,
        None => {
            let (center, min, max) = current(operators)?;
            (center, false, min, max)
        }
    };
    let unit = match (is_sphere, center.system) {
        (_, System::Sphere) => Unit::Meters,
        (true, System::Plane) if center.on_sphere().is_none() => {
            return bad("Legacy point is out of bounds for spherical query");
        }
        (true, System::Plane) => Unit::Radians,
        (false, System::Plane) => Unit::Flat,
    };
    Ok(Near {
        center,
        min_distance,
        max_distance,
        unit,
    })
}

/// Not a number is none.
fn is_distance(value: f64) -> bool {
    value >= 0.0
}

fn location<T>(code: i32, message: &str) -> Result<T, GeoError> {
    Err(GeoError::Location(code, message.to_owned()))
}

/// `{$near: [0, 0], $maxDistance: 1}`: center, whether `$nearSphere`, least and greatest distance.
/// `None` if there is no point in it.
fn legacy(operators: &RawDocument) -> Result<Option<(Place, bool, f64, f64)>, GeoError> {
    let mut center = None;
    let (mut min, mut max) = (0.0, f64::MAX);
    for (name, value) in operators.into_iter().flatten() {
        match name.as_str() {
            name if is_near(name) => {
                if Values::of(value).is_none() {
                    return Ok(None);
                }
                let found = match asked_point(value) {
                    Ok(place) => Some(place),
                    Err(_) => with_distance(value).map(|(place, distance)| {
                        max = distance;
                        place
                    }),
                };
                if let Some(place) = found {
                    if !is_distance(max) {
                        return location(18522, "max distance must be non-negative");
                    }
                    center = Some((place, name == "$nearSphere"));
                }
            }
            "$minDistance" => {
                let Some(distance) = number(value) else {
                    return location(16893, "$minDistance must be a number");
                };
                min = distance;
                if !is_distance(min) {
                    return location(16894, "$minDistance must be non-negative");
                }
            }
            "$maxDistance" => {
                let Some(distance) = number(value) else {
                    return location(16895, "$maxDistance must be a number");
                };
                max = distance;
                if !is_distance(max) {
                    return location(16896, "$maxDistance must be non-negative");
                }
            }
            "$uniqueDocs" => {}
            name => {
                let message = format!("invalid argument in geo near query: {name}");
                return location(34413, &message);
            }
        }
    }
    Ok(center.map(|(place, is_sphere)| (place, is_sphere, min, max)))
}

/// `[x, y, maxDistance]`
fn with_distance(value: RawBsonRef<'_>) -> Option<(Place, f64)> {
    let mut values = Values::of(value)?.map(number);
    let (x, y, distance) = (values.next()??, values.next()??, values.next()??);
    let place = Place {
        flat: PlanePoint::new(x, y),
        system: System::Plane,
    };
    values.next().is_none().then_some((place, distance))
}

/// `{$near: {$geometry: ..., $maxDistance: 1}}`
fn current(operators: &RawDocument) -> Result<(Place, f64, f64), GeoError> {
    let mut operators = operators.into_iter().flatten();
    let Some((_, operand)) = operators.next() else {
        return bad("empty geo near query object");
    };
    if operators.next().is_some() {
        return bad("geo near accepts just one argument when querying for a GeoJSON point.");
    }
    let RawBsonRef::Document(operand) = operand else {
        return match operand {
            RawBsonRef::Array(_) => bad("invalid argument in geo near query: 0"),
            _ => bad("geo near query argument is not an object"),
        };
    };
    let mut center = None;
    let (mut min, mut max) = (0.0, f64::MAX);
    for (name, value) in operand.into_iter().flatten() {
        match name.as_str() {
            "$geometry" => {
                if Values::of(value).is_none() {
                    continue;
                }
                let place = asked_point(value)?;
                if place.system != System::Sphere {
                    return bad("$near requires geojson point");
                }
                center = Some(place);
            }
            "$minDistance" => min = distance("$minDistance", value)?,
            "$maxDistance" => max = distance("$maxDistance", value)?,
            name => return bad(format!("invalid argument in geo near query: {name}")),
        }
    }
    match center {
        Some(center) => Ok((center, min, max)),
        None => bad("$geometry is required for geo near query"),
    }
}

fn distance(name: &str, value: RawBsonRef<'_>) -> Result<f64, GeoError> {
    match number(value) {
        None => bad(format!("{name} must be a number")),
        Some(distance) if distance >= 0.0 && distance.is_finite() => Ok(distance),
        Some(_) => bad(format!("{name} must be non-negative")),
    }
}
