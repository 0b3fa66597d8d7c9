//! What a `$geoNear` asks for: documents near a point, the closest first.

use std::sync::Arc;

use bson::{RawBson, RawBsonRef, RawDocumentBuf};

use banyan_document::{Collator, DocumentWriter};

use super::sort_key::SortKey;
use crate::budget::Budget;
use crate::context::Context;
use crate::error::QueryError;
use crate::expression::value::error;
use crate::expression::{Expression, FieldPath};
use crate::filter::Filter;
use crate::metadata::Metadata;
use crate::variables::Variables;

#[derive(Clone, Debug)]
pub struct GeoNear {
    /// A point, or what makes one of the variables of the `$lookup` stages around.
    pub(super) near: Expression,
    /// The path that is searched; `None`: the one that the collection's only such index is over.
    pub key: Option<String>,
    /// What else the documents have to match, and how it was written.
    pub(super) query: Arc<Filter>,
    pub(super) source: RawDocumentBuf,
    pub(super) min_distance: Option<f64>,
    pub(super) max_distance: Option<f64>,
    pub(super) is_spherical: bool,
    pub fields: Arc<NearFields>,
    pub(super) collator: Option<Collator>,
    pub(super) budget: Budget,
}

/// What a document is told of its distance.
#[derive(Clone, Debug)]
pub struct NearFields {
    pub(super) distance: FieldPath,
    /// Where the shape goes that is nearest.
    pub(super) place: Option<FieldPath>,
    pub(super) multiplier: f64,
    /// Whether both are wanted in the fields as well that `$meta` reads.
    pub(super) tells_metadata: bool,
}

impl NearFields {
    /// Distances alone, in a field that no document has by itself.
    pub fn for_router() -> NearFields {
        NearFields {
            distance: FieldPath::metadata(Metadata::Distance),
            place: None,
            multiplier: 1.0,
            tells_metadata: false,
        }
    }

    /// Distances and shapes, in the fields that `$meta` reads.
    pub fn for_metadata() -> NearFields {
        NearFields {
            place: Some(FieldPath::metadata(Metadata::Place)),
            ..NearFields::for_router()
        }
    }
}

/// Whether it can be a point at all.
pub(super) fn check_point(value: Option<RawBsonRef<'_>>) -> Result<(), QueryError> {
    match value {
        Some(RawBsonRef::Document(_) | RawBsonRef::Array(_)) => Ok(()),
        _ => error(
            5860401,
            "$geoNear requires near argument to be a GeoJSON object or a legacy point(array)",
        ),
    }
}

impl GeoNear {
    /// The stage, whose documents bring what `$meta` asks for.
    pub(super) fn telling(self) -> GeoNear {
        let fields = NearFields {
            tells_metadata: true,
            ..(*self.fields).clone()
        };
        GeoNear {
            fields: Arc::new(fields),
            ..self
        }
    }

    /// The stage with these values for the variables of the `$lookup` stages around it.
    pub(super) fn bind(&self, variables: &Variables) -> GeoNear {
        GeoNear {
            near: self.near.bind(variables),
            query: Arc::new(self.query.bind(variables)),
            ..self.clone()
        }
    }

    pub(super) fn point(&self) -> Result<RawBson, QueryError> {
        let near = self.near.evaluate_owned(&RawDocumentBuf::new())?;
        check_point(near.as_ref().map(RawBson::as_raw_bson_ref))?;
        // It is there, or the check has failed.
        Ok(near.unwrap_or(RawBson::Null))
    }

    /// What finds the documents: the rest of the query, and what is near at a path.
    pub fn filter(&self, path: &str) -> Result<Arc<Filter>, QueryError> {
        let point = self.point()?;
        let mut asked = DocumentWriter::new();
        asked.begin_document(path);
        let operator = if self.is_spherical {
            "$nearSphere"
        } else {
            "$near"
        };
        asked.append(operator, point.as_raw_bson_ref());
        for (name, distance) in [
            ("$minDistance", self.min_distance),
            ("$maxDistance", self.max_distance),
        ] {
            if let Some(distance) = distance {
                asked.append(name, RawBsonRef::Double(distance));
            }
        }
        asked.end();
        let context = Context {
            collator: self.collator.clone(),
            budget: self.budget.clone(),
            ..Context::default()
        };
        let near = Filter::of_query(&asked.finish(), &context)?;
        if self.query.is_empty() {
            return Ok(Arc::new(near));
        }
        if self.query.searches() {
            return Err(QueryError::bad_value(
                "text and geoNear not allowed in same query",
            ));
        }
        let both = [&*self.query, &near];
        let both = Filter::conjunction(both, self.collator.clone(), &self.budget)?;
        Ok(Arc::new(both))
    }

    /// The order in which its documents come.
    pub fn order(&self) -> Result<SortKey, QueryError> {
        let mut source = DocumentWriter::new();
        source.append(&self.fields.distance.to_string(), RawBsonRef::Int32(1));
        SortKey::parse(&source.finish(), &Context::default())
    }
}
