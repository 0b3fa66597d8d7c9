//! Finding the foreign documents that belong to a document.

use std::sync::Arc;

use bson::{RawBsonRef, RawDocument};

use banyan_document::path;

use super::join::{Join, Take};
use super::specification::{Brought, Lookup};
use crate::error::{ErrorKind, QueryError};
use crate::expression::{Arena, Expression};
use crate::pipeline::foreign::Reader;
use crate::pipeline::stage_run::Start;
use crate::variables::Variables;

/// Finds what belongs to a document.
pub(super) struct Finder {
    pub lookup: Arc<Lookup>,
    join: Join,
    variables: Vec<Expression>,
    /// The variables of the `$lookup` stages around.
    outer: Variables,
    arena: Arena,
}

impl Finder {
    pub fn new(lookup: Arc<Lookup>, start: &Start<'_>) -> Result<Finder, QueryError> {
        // Who brings documents reads none.
        let from = lookup.from.as_ref();
        let from = from.filter(|_| lookup.brought == Brought::Nothing);
        let reader = Reader::new(from, start.sources, "$lookup")?;
        let variables = lookup.variables.iter();
        Ok(Finder {
            variables: variables.map(|(_, v)| v.bind(start.variables)).collect(),
            outer: start.variables.clone(),
            join: Join::new(lookup.clone(), reader, start)?,
            lookup,
            arena: Arena::new(),
        })
    }

    pub fn find(&mut self, document: &RawDocument, take: &mut Take<'_>) -> Result<(), QueryError> {
        self.arena.reset();
        let variables = self.bind(document)?;
        let mut local = Vec::new();
        if let Some(equality) = &self.lookup.equality {
            let parts = equality.local.parts();
            path::each_value(document, parts, &mut |value| local.push(value));
            if local.is_empty() {
                local.push(RawBsonRef::Null);
            }
            if local.contains(&RawBsonRef::Undefined) {
                return Err(QueryError::new(
                    ErrorKind::BadValue,
                    "cannot compare to undefined",
                ));
            }
        }
        self.join.find(&local, &variables, take)
    }

    fn bind(&self, document: &RawDocument) -> Result<Variables, QueryError> {
        if self.variables.is_empty() {
            return Ok(self.outer.clone());
        }
        let mut values = Vec::with_capacity(self.variables.len());
        for variable in &self.variables {
            values.push(variable.evaluate(document, &self.arena)?);
        }
        Ok(self.outer.with(values))
    }
}
