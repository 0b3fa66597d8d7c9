//! A reply taken apart for comparison: what differs between any two runs is left out, what is new
//! in every run (generated ids, the current time) is made the same.

use std::time::{SystemTime, UNIX_EPOCH};

use bson::{Bson, RawBsonRef, RawDocument};

use crate::notation;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shape {
    /// A type's name, and the value as text.
    Leaf(&'static str, String),
    Array(Vec<Shape>),
    /// Fields as they were sent, repeated names and all.
    Document(Vec<(String, Shape)>),
}

/// Fields of a reply that tell nothing about the operation.
const LEFT_OUT: &[&str] = &[
    "$clusterTime",
    "operationTime",
    "electionId",
    "opTime",
    "errmsg",
    "errorLabels",
    "ns",
    "topologyVersion",
];
/// What `validate` has looked at, and what of that is the same everywhere.
const VALIDATED: &str = "valid";
const FIGURES: &[&str] = &["nrecords", "nIndexes", "keysPerIndex", VALIDATED, "ok"];
/// Every explanation has it.
const EXPLANATION: &str = "explainVersion";
/// The kind of numbers whose type does not matter.
const UNIFIED: &str = "number";
/// An error's database, which every run calls otherwise.
const DATABASE: &str = "db";
/// A cursor's number: it stands below `cursor` only.
const CURSOR_ID: &str = "id";
/// Ids and times of these days were made by a server; no generated value is so young.
const NEW_ID_SECONDS: u32 = 1_672_531_200;
const TODAY_MILLIS: u64 = 2 * 24 * 3600 * 1000;
const NEW_ID: &str = "ObjectId(\"000000000000000000000000\")";
const NEW_DATE: &str = "ISODate(\"2000-01-01T00:00:00.000Z\")";
const NEW_TIMESTAMP: &str = "Timestamp(1, 0)";

/// A listing of collections without their UUIDs.
fn without_uuids(cursor: Shape) -> Shape {
    let listed = |collection: Shape| collection.mapped("info", |info| info.keep(|n| n != "uuid"));
    cursor.mapped("firstBatch", |batch| match batch {
        Shape::Array(batch) => Shape::Array(batch.into_iter().map(listed).collect()),
        other => other,
    })
}

impl Shape {
    /// A whole reply, without what its envelope says.
    pub fn of_reply(reply: &RawDocument) -> Shape {
        let shape = Shape::of(RawBsonRef::Document(reply));
        if shape.number("ok") == Some(0) {
            let told = ["ok", "code", "codeName", "errInfo"];
            return shape.keep(|name| told.contains(&name));
        }
        // How servers do things is their own business.
        if shape.get(EXPLANATION).is_some() {
            return shape.keep(|name| name == "ok");
        }
        if shape.get(VALIDATED).is_some() {
            return shape.keep(|name| FIGURES.contains(&name));
        }
        let Shape::Document(fields) = shape else {
            return shape;
        };
        let strip = |(name, value): (String, Shape)| {
            let value = match (name.as_str(), value) {
                ("cursor", cursor) => {
                    without_uuids(cursor.keep(|n| n != CURSOR_ID && !left_out(n)))
                }
                ("writeErrors", Shape::Array(errors)) => {
                    let errors = errors.into_iter();
                    let errors = errors.map(|e| e.keep(|n| n != DATABASE && !left_out(n)));
                    Shape::Array(errors.collect())
                }
                (_, value) => value,
            };
            (name, value)
        };
        let fields = fields.into_iter().filter(|(name, _)| !left_out(name));
        Shape::Document(fields.map(strip).collect())
    }

    fn mapped(self, name: &str, map: impl Fn(Shape) -> Shape) -> Shape {
        match self {
            Shape::Document(fields) => {
                let fields = fields.into_iter().map(|(own, value)| match own == name {
                    true => (own, map(value)),
                    false => (own, value),
                });
                Shape::Document(fields.collect())
            }
            other => other,
        }
    }

    pub fn of(value: RawBsonRef<'_>) -> Shape {
        match value {
            RawBsonRef::Document(document) => {
                let field = |element: bson::error::Result<(&_, RawBsonRef<'_>)>| match element {
                    Ok((name, value)) => {
                        (bson::raw::CStr::as_str(name).to_owned(), Shape::of(value))
                    }
                    Err(error) => broken(&error),
                };
                Shape::Document(document.iter().map(field).collect())
            }
            RawBsonRef::Array(array) => {
                let item = |item: bson::error::Result<RawBsonRef<'_>>| match item {
                    Ok(value) => Shape::of(value),
                    Err(error) => broken(&error).1,
                };
                Shape::Array(array.into_iter().map(item).collect())
            }
            value => leaf(value),
        }
    }

    fn keep(self, wanted: impl Fn(&str) -> bool) -> Shape {
        match self {
            Shape::Document(fields) => {
                let fields = fields.into_iter().filter(|(name, _)| wanted(name));
                Shape::Document(fields.collect())
            }
            other => other,
        }
    }

    pub fn get(&self, wanted: &str) -> Option<&Shape> {
        let Shape::Document(fields) = self else {
            return None;
        };
        let field = fields.iter().find(|(name, _)| name == wanted);
        field.map(|(_, value)| value)
    }

    pub fn get_mut(&mut self, wanted: &str) -> Option<&mut Shape> {
        let Shape::Document(fields) = self else {
            return None;
        };
        let field = fields.iter_mut().find(|(name, _)| name == wanted);
        field.map(|(_, value)| value)
    }

    /// A field that is a whole number.
    pub fn number(&self, name: &str) -> Option<i64> {
        match self.get(name)? {
            Shape::Leaf(UNIFIED, text) => {
                let number: f64 = text.parse().ok()?;
                (number.fract() == 0.0).then_some(number as i64)
            }
            Shape::Leaf(_, text) => text.trim_end_matches(".0").parse().ok(),
            _ => None,
        }
    }

    pub fn kind(&self) -> &'static str {
        match self {
            Shape::Leaf(kind, _) => kind,
            Shape::Array(_) => "array",
            Shape::Document(_) => "object",
        }
    }

    pub fn text(&self) -> String {
        match self {
            Shape::Leaf(_, text) => text.clone(),
            Shape::Array(items) => {
                let items: Vec<String> = items.iter().map(Shape::text).collect();
                format!("[{}]", items.join(", "))
            }
            Shape::Document(fields) => {
                let field = |(name, value): &(String, Shape)| {
                    format!("{}: {}", notation::name(name), value.text())
                };
                let fields: Vec<String> = fields.iter().map(field).collect();
                format!("{{{}}}", fields.join(", "))
            }
        }
    }

    /// Makes equal numbers of different types the same, and those that differ only where a sum
    /// was taken in another order.
    pub fn unify_numbers(&mut self) {
        match self {
            Shape::Leaf(kind @ ("int" | "long" | "double" | "decimal"), text) => {
                let digits = text.split('"').nth(1).unwrap_or(text);
                let number: f64 = digits.parse().unwrap_or(f64::NAN);
                *text = format!("{:.11e}", number + 0.0);
                *kind = UNIFIED;
            }
            Shape::Leaf(..) => {}
            Shape::Array(items) => items.iter_mut().for_each(Shape::unify_numbers),
            Shape::Document(fields) => {
                fields
                    .iter_mut()
                    .for_each(|(_, value)| value.unify_numbers());
            }
        }
    }

    /// Puts the items of every array into one order, which goes by the order of fields last: documents
    /// that are the same but for that stay side by side with their likes.
    pub fn sort_arrays(&mut self) {
        match self {
            Shape::Leaf(..) => {}
            Shape::Document(fields) => {
                fields.iter_mut().for_each(|(_, value)| value.sort_arrays());
            }
            Shape::Array(items) => {
                items.iter_mut().for_each(Shape::sort_arrays);
                items.sort_by_cached_key(|item| (item.with_sorted_fields(), item.clone()));
            }
        }
    }

    fn with_sorted_fields(&self) -> Shape {
        match self {
            Shape::Leaf(..) => self.clone(),
            Shape::Document(fields) => {
                let fields = fields.iter();
                let mut sorted: Vec<_> = fields
                    .map(|(name, value)| (name.clone(), value.with_sorted_fields()))
                    .collect();
                sorted.sort();
                Shape::Document(sorted)
            }
            Shape::Array(items) => {
                Shape::Array(items.iter().map(Shape::with_sorted_fields).collect())
            }
        }
    }
}

fn left_out(name: &str) -> bool {
    LEFT_OUT.contains(&name)
}

fn broken(error: &bson::error::Error) -> (String, Shape) {
    (
        "<broken>".to_owned(),
        Shape::Leaf("broken", error.to_string()),
    )
}

fn leaf(value: RawBsonRef<'_>) -> Shape {
    let kind = kind_name(&value);
    let text = match value {
        RawBsonRef::ObjectId(id) if new_id(id) => NEW_ID.to_owned(),
        RawBsonRef::DateTime(date) if today(date.timestamp_millis()) => NEW_DATE.to_owned(),
        RawBsonRef::Timestamp(time) if today(i64::from(time.time) * 1000) => {
            NEW_TIMESTAMP.to_owned()
        }
        value => notation::text(value),
    };
    Shape::Leaf(kind, text)
}

fn new_id(id: bson::oid::ObjectId) -> bool {
    let seconds = id.timestamp().timestamp_millis() / 1000;
    (i64::from(NEW_ID_SECONDS)..i64::from(i32::MAX)).contains(&seconds)
}

fn today(millis: i64) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |since| since.as_millis() as i64);
    millis.abs_diff(now) < TODAY_MILLIS
}

/// The names that `$type` gives.
fn kind_name(value: &RawBsonRef<'_>) -> &'static str {
    match value {
        RawBsonRef::Double(_) => "double",
        RawBsonRef::String(_) => "string",
        RawBsonRef::Array(_) => "array",
        RawBsonRef::Document(_) => "object",
        RawBsonRef::Boolean(_) => "bool",
        RawBsonRef::Null => "null",
        RawBsonRef::RegularExpression(_) => "regex",
        RawBsonRef::JavaScriptCode(_) => "javascript",
        RawBsonRef::JavaScriptCodeWithScope(_) => "javascriptWithScope",
        RawBsonRef::Int32(_) => "int",
        RawBsonRef::Int64(_) => "long",
        RawBsonRef::Timestamp(_) => "timestamp",
        RawBsonRef::Binary(_) => "binData",
        RawBsonRef::ObjectId(_) => "objectId",
        RawBsonRef::DateTime(_) => "date",
        RawBsonRef::Symbol(_) => "symbol",
        RawBsonRef::Decimal128(_) => "decimal",
        RawBsonRef::Undefined => "undefined",
        RawBsonRef::MaxKey => "maxKey",
        RawBsonRef::MinKey => "minKey",
        RawBsonRef::DbPointer(_) => "dbPointer",
    }
}

/// The shape of a value that was read from text.
impl From<&Bson> for Shape {
    fn from(value: &Bson) -> Shape {
        match bson::RawBson::try_from(value.clone()) {
            Ok(raw) => Shape::of(raw.as_raw_bson_ref()),
            Err(error) => broken(&error).1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(text: &str) -> Shape {
        let document = notation::parse_document(text).unwrap();
        Shape::of_reply(&bson::RawDocumentBuf::try_from(&document).unwrap())
    }

    #[test]
    fn leaves_out_what_every_run_makes_anew() {
        let told =
            shape("{cursor: {firstBatch: [{id: 1}], id: NumberLong(\"5\"), ns: \"a.b\"}, ok: 1.0}");
        assert_eq!(told.text(), "{cursor: {firstBatch: [{id: 1}]}, ok: 1.0}");
        let failed = shape("{ok: 0.0, errmsg: \"x\", code: 2, codeName: \"BadValue\", more: 1}");
        assert_eq!(failed.text(), "{ok: 0.0, code: 2, codeName: \"BadValue\"}");
        let young = shape("{a: ObjectId(\"6a6a6a6a5f5f5f5f5f5f5f5f\"), ok: 1.0}");
        assert_eq!(young.get("a").map(Shape::text).as_deref(), Some(NEW_ID));
    }

    #[test]
    fn sorts_every_array() {
        let mut told = shape("{a: [3, [2, 1]], ok: 1.0}");
        told.sort_arrays();
        assert_eq!(told.text(), "{a: [3, [1, 2]], ok: 1.0}");
    }
}
