//! Conditions on places: `$geoWithin`, `$geoIntersects`, and `$near` with its kin.

use std::cell::RefCell;
use std::sync::Arc;

use banyan_document::element::elements;
use banyan_geo::near::{self, Near};
use banyan_geo::parse::{self, GeoError, Relation};
use banyan_geo::{Ended, Meter, Shape};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use crate::budget::Budget;
use crate::error::{ErrorKind, QueryError};

/// What is asked of stored shapes.
#[derive(Clone, Debug)]
pub struct Geo {
    pub relation: Relation,
    pub shape: Arc<Shape>,
    /// Operator and operand, as they were written.
    pub(super) source: RawDocumentBuf,
}

/// What lies near a point, the closest first. Only an index gives such an order.
#[derive(Clone, Debug)]
pub struct GeoNear {
    pub near: Near,
    /// The operators at the path, as they were written.
    pub(super) source: RawDocumentBuf,
}

impl Geo {
    /// The one operator of a path. Another one beside it is refused.
    pub(super) fn parse(
        relation: Relation,
        operators: &RawDocument,
        budget: &Budget,
    ) -> Result<Geo, QueryError> {
        let mut written = elements(operators);
        let (Some(one), None) = (written.next(), written.next()) else {
            return Err(QueryError::bad_value(format!(
                "can't parse extra field beside a geo query: {}",
                operators
                    .iter()
                    .flatten()
                    .map(|(name, _)| name.as_str())
                    .collect::<Vec<_>>()
                    .join(", ")
            )));
        };
        let shape = metered(budget, |meter| parse::operand(relation, one.value(), meter))?;
        Ok(Geo {
            relation,
            shape: Arc::new(shape),
            source: operators.to_owned(),
        })
    }

    /// Whether a value is a shape of which what is asked holds.
    pub(super) fn holds(&self, value: RawBsonRef<'_>, budget: &Budget) -> Result<bool, QueryError> {
        if !matches!(value, RawBsonRef::Document(_) | RawBsonRef::Array(_)) {
            return Ok(false);
        }
        let held = metered(budget, |meter| {
            let stored = match parse::stored(value, meter) {
                // Whose side is the inside is the query's to say, never a document's.
                Ok(Shape::BigPolygon(_)) => return Ok(None),
                Ok(stored) => stored,
                Err(GeoError::Ended) => return Err(GeoError::Ended),
                Err(_) => return Ok(None),
            };
            let held = match self.relation {
                Relation::Within => self.shape.contains(&stored, meter)?,
                Relation::Intersects => self.shape.intersects(&stored, meter)?,
            };
            Ok(Some(held))
        })?;
        Ok(held == Some(true))
    }
}

impl GeoNear {
    /// All of the operators of a path, of which the first is one of [`near::is_near`].
    pub(super) fn parse(operators: &RawDocument, budget: &Budget) -> Result<GeoNear, QueryError> {
        Ok(GeoNear {
            near: metered(budget, |_| near::near(operators))?,
            source: operators.to_owned(),
        })
    }
}

/// Whether a stored value is a shape.
pub(crate) fn is_shape(value: RawBsonRef<'_>, budget: &Budget) -> Result<bool, QueryError> {
    if !matches!(value, RawBsonRef::Document(_) | RawBsonRef::Array(_)) {
        return Ok(false);
    }
    metered(budget, |meter| match parse::stored(value, meter) {
        Err(GeoError::Ended) => Err(GeoError::Ended),
        stored => Ok(stored.is_ok()),
    })
}

/// Runs what counts its steps in the budget, and says so if that ended it.
pub fn metered<T>(
    budget: &Budget,
    run: impl FnOnce(Meter<'_>) -> Result<T, GeoError>,
) -> Result<T, QueryError> {
    let ended = RefCell::new(None);
    let spend = |steps: usize| {
        budget.spend(steps).map_err(|error| {
            *ended.borrow_mut() = Some(error);
            Ended
        })
    };
    let result = run(Meter::new(&spend));
    result.map_err(|error| {
        let message = error.to_string();
        match error {
            GeoError::BadValue(_) => QueryError::bad_value(message),
            GeoError::Location(code, _) => {
                QueryError::new(ErrorKind::Location(code.unsigned_abs()), message)
            }
            GeoError::Ended => ended
                .take()
                .unwrap_or_else(|| QueryError::new(ErrorKind::Interrupted, message)),
        }
    })
}
