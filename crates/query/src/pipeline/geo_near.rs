//! `$geoNear`: the documents of the collection that lie near a point, the closest first, each with
//! its distance.
//!
//! Whoever runs the pipeline finds the documents, by an index over shapes, and hands them on with
//! what the stage adds ([`NearFields::write`]).

use std::collections::BTreeSet;
use std::sync::Arc;

use bson::{RawBsonRef, RawDocument, RawDocumentBuf, cstr};

use banyan_document::number::is_true;
use banyan_document::{DocumentWriter, Number};

use super::near_query::{GeoNear, NearFields, check_point};
use super::stage::{Division, Stage};
use super::stage_run::{Pass, StageRun, Start};
use super::unwind::write_at;
use crate::context::Context;
use crate::error::{ErrorKind, QueryError};
use crate::expression::value::{error, type_name};
use crate::expression::{Expression, FieldPath};
use crate::filter::Filter;

pub(super) const NAME: &str = "$geoNear";

impl NearFields {
    /// The document with its distance and the shape that is so far away.
    pub fn write(
        &self,
        document: &RawDocument,
        distance: f64,
        place: RawBsonRef<'_>,
    ) -> RawDocumentBuf {
        let distance = RawBsonRef::Double(distance * self.multiplier);
        let mut measured = DocumentWriter::with_capacity(document.as_bytes().len() + 32);
        write_at(document, &self.distance, distance, &mut measured);
        let measured = measured.finish();
        let mut told = match &self.place {
            None => measured,
            Some(path) => {
                let mut placed = DocumentWriter::with_capacity(measured.as_bytes().len() + 64);
                write_at(&measured, path, place, &mut placed);
                placed.finish()
            }
        };
        if self.tells_metadata {
            told.append(cstr!("$dis"), distance);
            told.append(cstr!("$pt"), place);
        }
        told
    }
}

fn mismatch<T>(message: impl Into<String>) -> Result<T, QueryError> {
    Err(QueryError::new(ErrorKind::TypeMismatch, message))
}

/// Options of old that have no meaning any more, with what is said of them.
const REMOVED: &[(&str, u32, &str)] = &[
    (
        "collation",
        40227,
        "$geoNear does not accept the 'collation' parameter. Instead, specify a collation for the \
         entire aggregation command.",
    ),
    (
        "limit",
        50858,
        "$geoNear no longer supports the 'limit' parameter. Use a $limit stage instead.",
    ),
    (
        "num",
        50857,
        "$geoNear no longer supports the 'num' parameter. Use a $limit stage instead.",
    ),
    (
        "start",
        50856,
        "$geoNear no longer supports the 'start' argument.",
    ),
];

pub(super) fn parse(
    value: RawBsonRef<'_>,
    context: &Context,
    out: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    let options = match value {
        RawBsonRef::Document(options) => options.to_owned(),
        RawBsonRef::Array(_) => RawDocumentBuf::new(),
        _ => return error(10065, "invalid parameter: expected an object ($geoNear)"),
    };
    let given = |name: &str| options.get(name).ok().flatten();
    // Whatever the order in which they are written, they are looked at in this one.
    if let Some((_, code, message)) = REMOVED.iter().find(|(name, ..)| given(name).is_some()) {
        return error(*code, *message);
    }
    let Some(near) = given("near") else {
        return error(5860400, "$geoNear requires a 'near' argument");
    };
    let near = Expression::parse(near, context)?;
    let Some(RawBsonRef::String(distance)) = given("distanceField") else {
        return error(
            16606,
            "$geoNear requires a 'distanceField' option as a String",
        );
    };
    let distance = FieldPath::parse(distance)?;
    let max_distance = distance_option("maxDistance", given("maxDistance"))?;
    let min_distance = distance_option("minDistance", given("minDistance"))?;
    let multiplier = distance_option("distanceMultiplier", given("distanceMultiplier"))?;
    let query = match given("query") {
        None => RawDocumentBuf::new(),
        Some(RawBsonRef::Document(query)) => query.to_owned(),
        Some(_) => return mismatch("query must be an object"),
    };
    let is_spherical = given("spherical").is_some_and(is_true);
    let place = match given("includeLocs") {
        None => None,
        Some(RawBsonRef::String(path)) => Some(FieldPath::parse(path)?),
        Some(_) => {
            return error(
                16607,
                "$geoNear requires that 'includeLocs' option is a String",
            );
        }
    };
    let key = given("key").map(key_option).transpose()?;
    require_constant(&near)?;
    let fields = NearFields {
        distance,
        place,
        multiplier: multiplier.unwrap_or(1.0),
        tells_metadata: false,
    };
    let filter = Filter::of_query(&query, context).and_then(|filter| match filter.near() {
        Some(_) => Err(QueryError::bad_value("Too many geoNear expressions")),
        None => Ok(filter),
    });
    let filter = filter.map_err(|error| {
        // The point is looked at first, where the query is wrong as well.
        let place = near.as_constant();
        place
            .and_then(|place| check_point(Some(place)).err())
            .unwrap_or(error)
    })?;
    out.push(Arc::new(GeoNear {
        near,
        key,
        query: Arc::new(filter),
        source: query,
        min_distance,
        max_distance,
        is_spherical,
        fields: Arc::new(fields),
        collator: context.collator.clone(),
        budget: context.budget.clone(),
    }));
    Ok(())
}

/// Whether it is a point is asked once the index is found, as MongoDB does.
fn require_constant(near: &Expression) -> Result<(), QueryError> {
    let mut paths = BTreeSet::new();
    match near.dependencies(&mut paths) && paths.is_empty() {
        true => Ok(()),
        false => error(5860402, "$geoNear requires a constant near argument"),
    }
}

/// The path of the field whose index is used.
fn key_option(value: RawBsonRef<'_>) -> Result<String, QueryError> {
    match value {
        RawBsonRef::String("") => Err(QueryError::bad_value(
            "$geoNear parameter 'key' cannot be the empty string",
        )),
        RawBsonRef::String(path) => {
            FieldPath::parse(path)?;
            Ok(path.to_owned())
        }
        other => mismatch(format!(
            "$geoNear parameter 'key' must be of type string but found type: {}",
            type_name(Some(other))
        )),
    }
}

/// A number that is not below zero.
fn distance_option(name: &str, value: Option<RawBsonRef<'_>>) -> Result<Option<f64>, QueryError> {
    let Some(value) = value else {
        return Ok(None);
    };
    match Number::from_raw(value).map(|number| number.to_f64()) {
        None => mismatch(format!("{name} must be a number")),
        Some(number) if number >= 0.0 => Ok(Some(number)),
        Some(_) => Err(QueryError::bad_value(format!("{name} must be nonnegative"))),
    }
}

impl GeoNear {
    fn write(&self, near: RawBsonRef<'_>, out: &mut DocumentWriter) {
        out.begin_document(NAME);
        match self.near.as_constant().is_some() {
            // What looks like an expression in it is none.
            true => {
                out.begin_document("near");
                out.append("$literal", near);
                out.end();
            }
            false => out.append("near", near),
        }
        out.append_str("distanceField", &self.fields.distance.to_string());
        if let Some(key) = &self.key {
            out.append_str("key", key);
        }
        for (name, value) in [
            ("minDistance", self.min_distance),
            ("maxDistance", self.max_distance),
        ] {
            if let Some(value) = value {
                out.append(name, RawBsonRef::Double(value));
            }
        }
        out.append_doc("query", &self.source);
        out.append_bool("spherical", self.is_spherical);
        out.append(
            "distanceMultiplier",
            RawBsonRef::Double(self.fields.multiplier),
        );
        if let Some(path) = &self.fields.place {
            out.append_str("includeLocs", &path.to_string());
        }
        out.end();
    }

    /// The stage as a shard is sent it, whose variables have their values.
    pub fn to_bound_document(&self) -> Result<RawDocumentBuf, QueryError> {
        let point = self.point()?;
        let mut literal = RawDocumentBuf::new();
        literal.append(cstr!("$literal"), point);
        let mut out = DocumentWriter::new();
        match self.near.as_constant() {
            Some(constant) => self.write(constant, &mut out),
            None => self.write(RawBsonRef::Document(&literal), &mut out),
        }
        Ok(out.finish())
    }
}

impl Stage for GeoNear {
    fn name(&self) -> &'static str {
        NAME
    }

    fn serialize(&self, out: &mut DocumentWriter) {
        match self.near.as_constant() {
            Some(constant) => self.write(constant, out),
            None => self.write(self.near.source(), out),
        }
    }

    /// Each shard has its own in order.
    fn split(&self) -> Division {
        match self.order() {
            Ok(order) => Division::Both {
                shards: vec![Arc::new(self.clone())],
                order: Some(order),
                router: Vec::new(),
            },
            // A field path is a sort's.
            Err(_) => Division::Router,
        }
    }

    /// Its documents are found by whoever runs the pipeline, and come as it wants them.
    fn run(self: Arc<Self>, _: &Start<'_>) -> Result<Box<dyn StageRun>, QueryError> {
        Ok(Box::new(Pass))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::Pipeline;
    use bson::rawdoc;

    fn parse(stages: &[RawDocumentBuf]) -> Result<Pipeline, QueryError> {
        let stages: Vec<&RawDocument> = stages.iter().map(|stage| &**stage).collect();
        Pipeline::parse(&stages, &Context::default())
    }

    fn near() -> RawDocumentBuf {
        rawdoc! { "$geoNear": { "near": [1, 2], "distanceField": "d.is", "maxDistance": 5 } }
    }

    #[test]
    fn it_is_the_first_stage_of_the_pipeline_that_runs() {
        assert!(parse(&[near(), rawdoc! { "$limit": 1 }]).is_ok());
        assert!(parse(&[rawdoc! { "$match": {} }, near()]).is_ok());
        let later = parse(&[rawdoc! { "$match": { "a": 1 } }, near()]).unwrap_err();
        assert_eq!(later.kind, ErrorKind::Location(40603));
    }

    #[test]
    fn what_it_is_sent_as_means_the_same() {
        let pipeline = parse(&[near()]).unwrap();
        let documents = pipeline.to_documents();
        let again = parse(&documents).unwrap();
        assert_eq!(again.to_documents(), documents);
        let split = pipeline.split();
        assert_eq!(split.shard, documents);
        assert!(split.order.is_some() && split.merge.is_empty());
    }

    #[test]
    fn documents_are_told_their_distance_and_place() {
        let fields = NearFields {
            distance: FieldPath::parse("at.far").unwrap(),
            place: Some(FieldPath::parse("at.place").unwrap()),
            multiplier: 2.0,
            tells_metadata: false,
        };
        let document = rawdoc! { "_id": 1, "at": 5 };
        let place = rawdoc! { "x": 1 };
        let told = fields.write(&document, 1.5, RawBsonRef::Document(&place));
        assert_eq!(
            told,
            rawdoc! { "_id": 1, "at": { "far": 3.0, "place": { "x": 1 } } }
        );
    }
}
