//! From BSON to shapes: GeoJSON, coordinate pairs, and the operands of `$geoWithin` and
//! `$geoIntersects`. What is refused, and when, is as in MongoDB 6.0; every refusal is a
//! `BadValue` unless it says otherwise.

use bson::raw::RawIter;
use bson::{RawArray, RawBsonRef, RawDocument};
use s2::cap::Cap;
use s2::point::Point;
use s2::s1::{Angle, Rad};

use crate::line::Line;
use crate::meter::{Ended, Meter};
use crate::plane::{Circle, PlaneBox, PlanePoint, PlanePolygon};
use crate::polygon::Polygon;
use crate::ring::Ring;
use crate::shape::{Place, Shape, System, is_on_sphere, sphere_point};

/// Why a value is no shape.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GeoError {
    #[error("{0}")]
    BadValue(String),
    /// With a number of MongoDB's.
    #[error("{1}")]
    Location(i32, String),
    /// The meter ended it.
    #[error("operation was interrupted")]
    Ended,
}

impl From<Ended> for GeoError {
    fn from(_: Ended) -> GeoError {
        GeoError::Ended
    }
}

pub(crate) fn bad<T>(message: impl Into<String>) -> Result<T, GeoError> {
    Err(GeoError::BadValue(message.into()))
}

/// The values of an array or a document, in order.
pub(crate) struct Values<'a>(RawIter<'a>);

impl<'a> Values<'a> {
    /// `None` if it is neither.
    pub(crate) fn of(value: RawBsonRef<'a>) -> Option<Values<'a>> {
        as_object(value).map(|document| Values(document.iter_elements()))
    }
}

impl<'a> Iterator for Values<'a> {
    type Item = RawBsonRef<'a>;

    fn next(&mut self) -> Option<RawBsonRef<'a>> {
        self.0.find_map(|element| element.ok()?.value().ok())
    }
}

/// What GeoJSON says of a geometry, read in one pass. Of several fields with one name the first counts.
#[derive(Default)]
struct Geometry<'a> {
    kind: Option<RawBsonRef<'a>>,
    coordinates: Option<RawBsonRef<'a>>,
    system: Option<RawBsonRef<'a>>,
    geometries: Option<RawBsonRef<'a>>,
}

impl<'a> Geometry<'a> {
    fn read(document: &'a RawDocument) -> Geometry<'a> {
        let mut geometry = Geometry::default();
        for element in document.iter_elements().flatten() {
            let field = match element.key().as_str() {
                "type" => &mut geometry.kind,
                "coordinates" => &mut geometry.coordinates,
                "crs" => &mut geometry.system,
                "geometries" => &mut geometry.geometries,
                _ => continue,
            };
            if field.is_none() {
                *field = element.value().ok();
            }
        }
        geometry
    }
}

/// A number of any type.
pub fn number(value: RawBsonRef<'_>) -> Option<f64> {
    match value {
        RawBsonRef::Int32(value) => Some(f64::from(value)),
        RawBsonRef::Int64(value) => Some(value as f64),
        RawBsonRef::Double(value) => Some(value),
        RawBsonRef::Decimal128(value) => Some(value.to_string().parse().unwrap_or(f64::NAN)),
        _ => None,
    }
}

fn get<'a>(document: &'a RawDocument, name: &str) -> Option<RawBsonRef<'a>> {
    document.get(name).ok().flatten()
}

/// Whether a value is written in one of the older ways: an array, or a document whose first value
/// is a number.
pub(crate) fn is_legacy(value: RawBsonRef<'_>) -> bool {
    match value {
        RawBsonRef::Array(_) => true,
        RawBsonRef::Document(_) => Values::of(value)
            .and_then(|mut values| values.next())
            .is_some_and(|first| number(first).is_some()),
        _ => false,
    }
}

/// Two numbers. `more`: whatever follows them is passed over.
pub(crate) fn pair(value: Option<RawBsonRef<'_>>, more: bool) -> Result<PlanePoint, GeoError> {
    let Some(mut values) = value.and_then(Values::of) else {
        return bad("Point must be an array or object");
    };
    let mut coordinate = || values.next().and_then(number);
    let (Some(x), Some(y)) = (coordinate(), coordinate()) else {
        return bad("Point must only contain numeric elements");
    };
    if !more && values.next().is_some() {
        return bad("Point must only contain two numeric elements");
    }
    if !x.is_finite() || !y.is_finite() {
        return bad("Point coordinates must be finite numbers");
    }
    Ok(PlanePoint::new(x, y))
}

/// The values of an array or a document, in order; none of anything else.
pub fn members<'a>(value: RawBsonRef<'a>) -> impl Iterator<Item = RawBsonRef<'a>> {
    Values::of(value).into_iter().flatten()
}

/// The point that a `2d` index has of a value with members: its first two, with MongoDB's numbers
/// for what they are not.
pub fn indexed_point(value: RawBsonRef<'_>) -> Result<PlanePoint, GeoError> {
    let refuse = |code, message: &str| Err(GeoError::Location(code, message.to_owned()));
    let mut members = members(value);
    let (Some(x), y) = (members.next(), members.next()) else {
        return refuse(13067, "geo field is empty");
    };
    let Some(y) = y else {
        return refuse(13068, "geo field only has 1 element");
    };
    match (number(x), number(y)) {
        (Some(x), Some(y)) => Ok(PlanePoint::new(x, y)),
        _ => refuse(
            13026,
            "geo values must be 'legacy coordinate pairs' for 2d indexes",
        ),
    }
}

fn out_of_bounds<T>(at: &PlanePoint) -> Result<T, GeoError> {
    bad(format!(
        "longitude/latitude is out of bounds, lng: {} lat: {}",
        at.x, at.y
    ))
}

/// `[100.0, 0.0]`, with an altitude perhaps.
fn position(value: RawBsonRef<'_>) -> Result<Point, GeoError> {
    if !matches!(value, RawBsonRef::Array(_)) {
        return bad("GeoJSON coordinates must be an array");
    }
    let at = pair(Some(value), true)?;
    sphere_point(at.x, at.y).map_or_else(|| out_of_bounds(&at), Ok)
}

fn array<'a>(value: Option<RawBsonRef<'a>>, what: &str) -> Result<&'a RawArray, GeoError> {
    match value {
        Some(RawBsonRef::Array(array)) => Ok(array),
        _ => bad(format!("{what} must be an array")),
    }
}

fn positions(value: Option<RawBsonRef<'_>>, meter: Meter<'_>) -> Result<Vec<Point>, GeoError> {
    let array = array(value, "GeoJSON coordinates")?;
    let mut points = Vec::new();
    for value in Values::of(RawBsonRef::Array(array)).into_iter().flatten() {
        meter.spend(2)?;
        points.push(position(value)?);
    }
    Ok(points)
}

/// A closed chain. Its last position, which is its first, is left out.
fn ring(value: RawBsonRef<'_>, meter: Meter<'_>) -> Result<Ring, GeoError> {
    let mut points = positions(Some(value), meter)?;
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        return bad("Loop has no vertices");
    };
    if first != last {
        return bad("Loop is not closed, first vertex does not equal last vertex");
    }
    points.dedup();
    points.pop();
    if points.len() < 3 {
        return bad("Loop must have at least 3 different vertices");
    }
    let ring = Ring::new(points);
    match ring.validate(meter)? {
        Ok(()) => Ok(ring),
        Err(error) => bad(format!("Loop is not valid: {error}")),
    }
}

fn polygon(value: Option<RawBsonRef<'_>>, meter: Meter<'_>) -> Result<Polygon, GeoError> {
    let array = array(value, "Polygon coordinates")?;
    let mut rings = Vec::new();
    for value in Values::of(RawBsonRef::Array(array)).into_iter().flatten() {
        rings.push(ring(value, meter)?.normalized());
    }
    if rings.is_empty() {
        return bad("Polygon has no loops.");
    }
    Polygon::new(rings, meter)?.map_err(|error| GeoError::BadValue(error.to_string()))
}

fn big_polygon(value: Option<RawBsonRef<'_>>, meter: Meter<'_>) -> Result<Ring, GeoError> {
    let array = array(value, "Coordinates of polygon")?;
    let mut rings = Values::of(RawBsonRef::Array(array)).into_iter().flatten();
    match (rings.next(), rings.next()) {
        (Some(one), None) => ring(one, meter),
        _ => bad("Only one simple loop is allowed in a big polygon"),
    }
}

fn line(value: Option<RawBsonRef<'_>>, meter: Meter<'_>) -> Result<Line, GeoError> {
    let mut points = positions(value, meter)?;
    points.dedup();
    if points.len() < 2 {
        return bad("GeoJSON LineString must have at least 2 vertices");
    }
    match Line::new(points) {
        Some(line) => Ok(line),
        None => bad("GeoJSON LineString is not valid: adjacent vertices are antipodal"),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Winding {
    /// A ring encloses the smaller side.
    Any,
    /// A ring encloses what is to its left.
    Strict,
}

/// Names of the one reference system.
const SYSTEMS: &[&str] = &["urn:ogc:def:crs:OGC:1.3:CRS84", "EPSG:4326"];
const STRICT_SYSTEM: &str = "urn:x-mongodb:crs:strictwinding:EPSG:4326";

fn reference_system(geometry: &Geometry<'_>) -> Result<Winding, GeoError> {
    let Some(system) = geometry.system else {
        return Ok(Winding::Any);
    };
    let Some(system) = as_object(system) else {
        return bad("GeoJSON CRS must be an object");
    };
    if get(system, "type") != Some(RawBsonRef::String("name")) {
        return bad("GeoJSON CRS must have field \"type\": \"name\"");
    }
    let Some(properties) = get(system, "properties").and_then(as_object) else {
        return bad("CRS must have field \"properties\" which is an object");
    };
    match get(properties, "name") {
        Some(RawBsonRef::String(name)) if SYSTEMS.contains(&name) => Ok(Winding::Any),
        Some(RawBsonRef::String(STRICT_SYSTEM)) => Ok(Winding::Strict),
        Some(RawBsonRef::String(name)) => bad(format!("Unknown CRS name: {name}")),
        _ => bad("In CRS, \"properties.name\" must be a string"),
    }
}

/// For the kinds that are the same whichever way they are wound.
fn plain_system(geometry: &Geometry<'_>) -> Result<(), GeoError> {
    match reference_system(geometry)? {
        Winding::Any => Ok(()),
        Winding::Strict => bad("Strict winding order CRS is only supported by polygon"),
    }
}

/// Arrays are documents whose fields are named by position.
fn as_object(value: RawBsonRef<'_>) -> Option<&RawDocument> {
    match value {
        RawBsonRef::Document(document) => Some(document),
        RawBsonRef::Array(array) => RawDocument::from_bytes(array.as_bytes()).ok(),
        _ => None,
    }
}

/// A point, whatever its type says.
pub(crate) fn geojson_point(geometry: &RawDocument) -> Result<Place, GeoError> {
    point(&Geometry::read(geometry))
}

fn point(geometry: &Geometry<'_>) -> Result<Place, GeoError> {
    plain_system(geometry)?;
    let flat = pair(geometry.coordinates, true)?;
    if !is_on_sphere(flat.x, flat.y) {
        return out_of_bounds(&flat);
    }
    Ok(Place {
        flat,
        system: System::Sphere,
    })
}

fn sphere_place(value: RawBsonRef<'_>) -> Result<Shape, GeoError> {
    position(value)?;
    let flat = pair(Some(value), true)?;
    Ok(Shape::Point(Place {
        flat,
        system: System::Sphere,
    }))
}

/// Several of a kind, at least one.
fn several(
    geometry: &Geometry<'_>,
    parse: &mut dyn FnMut(RawBsonRef<'_>) -> Result<Shape, GeoError>,
) -> Result<Shape, GeoError> {
    plain_system(geometry)?;
    let array = array(geometry.coordinates, "Coordinates")?;
    let mut shapes = Vec::new();
    for value in Values::of(RawBsonRef::Array(array)).into_iter().flatten() {
        shapes.push(parse(value)?);
    }
    match shapes.is_empty() {
        true => bad("Coordinates must have at least 1 element"),
        false => Ok(Shape::Several(shapes)),
    }
}

/// A geometry of GeoJSON.
pub fn geojson(geometry: &RawDocument, meter: Meter<'_>) -> Result<Shape, GeoError> {
    let geometry = Geometry::read(geometry);
    let Some(RawBsonRef::String(kind)) = geometry.kind else {
        return bad("unknown GeoJSON type");
    };
    match kind {
        "GeometryCollection" => collection(&geometry, meter),
        _ => single(kind, &geometry, meter),
    }
}

/// A geometry that is no collection.
fn single(kind: &str, geometry: &Geometry<'_>, meter: Meter<'_>) -> Result<Shape, GeoError> {
    let coordinates = geometry.coordinates;
    match kind {
        "Point" => point(geometry).map(Shape::Point),
        "LineString" => {
            plain_system(geometry)?;
            line(coordinates, meter).map(Shape::Line)
        }
        "Polygon" => match reference_system(geometry)? {
            Winding::Any => polygon(coordinates, meter).map(Shape::Polygon),
            Winding::Strict => big_polygon(coordinates, meter).map(Shape::BigPolygon),
        },
        "MultiPoint" => several(geometry, &mut |value| {
            meter.spend(2)?;
            sphere_place(value)
        }),
        "MultiLineString" => several(geometry, &mut |value| {
            line(Some(value), meter).map(Shape::Line)
        }),
        "MultiPolygon" => several(geometry, &mut |value| {
            polygon(Some(value), meter).map(Shape::Polygon)
        }),
        _ => bad(format!("unknown GeoJSON type: {kind}")),
    }
}

fn collection(geometry: &Geometry<'_>, meter: Meter<'_>) -> Result<Shape, GeoError> {
    let geometries = array(geometry.geometries, "GeometryCollection geometries")?;
    let mut shapes = Vec::new();
    for value in Values::of(RawBsonRef::Array(geometries))
        .into_iter()
        .flatten()
    {
        let RawBsonRef::Document(geometry) = value else {
            return bad("Elements of \"geometries\" must be objects");
        };
        let geometry = Geometry::read(geometry);
        let shape = match geometry.kind {
            Some(RawBsonRef::String("GeometryCollection")) => {
                return bad("GeometryCollections cannot be nested");
            }
            Some(RawBsonRef::String(kind)) => single(kind, &geometry, meter)?,
            _ => return bad("Unknown GeoJSON type"),
        };
        if matches!(shape, Shape::BigPolygon(_)) {
            return bad("Strict winding order CRS is not supported in a GeometryCollection");
        }
        shapes.push(shape);
    }
    match shapes.is_empty() {
        true => bad("GeometryCollection geometries must have at least 1 element"),
        false => Ok(Shape::Several(shapes)),
    }
}

/// What a document holds: a geometry of GeoJSON, or numbers of which the first two count.
pub fn stored(value: RawBsonRef<'_>, meter: Meter<'_>) -> Result<Shape, GeoError> {
    if is_legacy(value) {
        let flat = pair(Some(value), true)?;
        return Ok(Shape::Point(Place {
            flat,
            system: System::Plane,
        }));
    }
    match value {
        RawBsonRef::Document(document) => geojson(document, meter),
        _ => bad("geo element must be an array or object"),
    }
}

/// The point that `$near` and its kin are asked from.
pub(crate) fn asked_point(value: RawBsonRef<'_>) -> Result<Place, GeoError> {
    if is_legacy(value) {
        let flat = pair(Some(value), false)?;
        return Ok(Place {
            flat,
            system: System::Plane,
        });
    }
    match value {
        RawBsonRef::Document(document) => geojson_point(document),
        _ => bad("Point must be an array or object"),
    }
}

/// What is asked of a stored shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relation {
    /// `$geoWithin`
    Within,
    /// `$geoIntersects`
    Intersects,
}

/// The operand of `$geoWithin` (or `$within`) or of `$geoIntersects`. Of several shapes the last
/// counts.
pub fn operand(
    relation: Relation,
    operand: RawBsonRef<'_>,
    meter: Meter<'_>,
) -> Result<Shape, GeoError> {
    let RawBsonRef::Document(operand) = operand else {
        return bad("geometry must be an object");
    };
    let mut found = None;
    for (name, value) in operand.into_iter().flatten() {
        if name.as_str() != "$uniqueDocs" {
            found = Some(specified(name.as_str(), value, meter)?);
        }
    }
    let Some(shape) = found else {
        return bad("geo query doesn't have any geometry");
    };
    match relation {
        Relation::Within if !shape.has_an_inside() => {
            bad("$within not supported with provided geometry")
        }
        Relation::Intersects => on_sphere(shape),
        Relation::Within => Ok(shape),
    }
}

/// A shape that can be asked about on the sphere.
fn on_sphere(shape: Shape) -> Result<Shape, GeoError> {
    match &shape {
        Shape::Point(place) if place.on_sphere().is_some() => Ok(shape),
        _ if shape.system() == System::Sphere => Ok(shape),
        _ => bad("$geoIntersect not supported with provided geometry"),
    }
}

fn specified(specifier: &str, value: RawBsonRef<'_>, meter: Meter<'_>) -> Result<Shape, GeoError> {
    let Some(values) = Values::of(value) else {
        return bad(format!("unknown geo specifier: {specifier}"));
    };
    match specifier {
        "$box" => {
            let mut values = values;
            let (a, b) = (pair(values.next(), false)?, pair(values.next(), false)?);
            Ok(Shape::Box(PlaneBox::of(a, b)))
        }
        "$center" => {
            let (center, radius) = circle(values)?;
            Ok(Shape::Circle(Circle { center, radius }))
        }
        "$centerSphere" => {
            let (center, radius) = circle_on_sphere(values)?;
            let angle: Angle = Rad(radius.min(std::f64::consts::PI)).into();
            Ok(Shape::Cap(Cap::from_center_angle(&center, &angle)))
        }
        "$polygon" => {
            let mut points = Vec::new();
            for value in values {
                meter.spend(1)?;
                points.push(pair(Some(value), false)?);
            }
            match PlanePolygon::new(points) {
                Some(polygon) => Ok(Shape::PlanePolygon(polygon)),
                None => bad("Polygon must have at least 3 points"),
            }
        }
        "$geometry" if is_legacy(value) => asked_point(value).map(Shape::Point),
        "$geometry" => match value {
            RawBsonRef::Document(geometry) => geojson(geometry, meter),
            _ => bad("unknown GeoJSON type"),
        },
        _ => bad(format!("unknown geo specifier: {specifier}")),
    }
}

fn radius(values: &mut Values<'_>) -> Result<f64, GeoError> {
    let radius = values
        .next()
        .and_then(number)
        .filter(|radius| *radius >= 0.0);
    let Some(radius) = radius else {
        return bad("Radius must be a non-negative number");
    };
    match values.next() {
        None => Ok(radius),
        Some(_) => bad("Only 2 fields allowed for circular region, but more were provided"),
    }
}

fn circle(mut values: Values<'_>) -> Result<(PlanePoint, f64), GeoError> {
    let center = pair(values.next(), false)?;
    Ok((center, radius(&mut values)?))
}

fn circle_on_sphere(mut values: Values<'_>) -> Result<(Point, f64), GeoError> {
    let center = pair(values.next(), false)?;
    let Some(point) = sphere_point(center.x, center.y) else {
        return out_of_bounds(&center);
    };
    Ok((point, radius(&mut values)?))
}
