//! From a schema's document to its rules.

use std::collections::HashMap;

use bson::{RawBsonRef, RawDocument};

use super::keyword::{self, Keywords, failed};
use super::rule::Schema;
use crate::context::Context;
use crate::error::{ErrorKind, QueryError};
use crate::filter::parse::Parser;
use crate::filter::tree::MatchNode;

impl Parser<'_> {
    /// `$jsonSchema`.
    pub(in crate::filter) fn schema(&self, value: RawBsonRef<'_>) -> Result<MatchNode, QueryError> {
        let RawBsonRef::Document(document) = value else {
            let message = "$jsonSchema must be an object";
            return Err(QueryError::new(ErrorKind::TypeMismatch, message));
        };
        Ok(MatchNode::Schema {
            schema: Box::new(Schema::parse(document, true, self)?),
            source: document.to_owned(),
        })
    }
}

impl Schema {
    /// A schema by itself. `at_top`: of whole documents.
    pub(crate) fn of(
        schema: &RawDocument,
        at_top: bool,
        context: &Context,
    ) -> Result<Schema, QueryError> {
        Schema::parse(schema, at_top, &Parser::new(context))
    }

    pub(super) fn parse(
        schema: &RawDocument,
        at_top: bool,
        parser: &Parser<'_>,
    ) -> Result<Schema, QueryError> {
        let mut values = HashMap::new();
        for (name, value) in schema.iter().flatten() {
            parser.spend()?;
            let name = name.as_str();
            keyword::check(name)?;
            if values.insert(name, value).is_some() {
                return Err(failed(format!("Duplicate $jsonSchema keyword: {name}")));
            }
        }
        let mut rules = Vec::new();
        keyword::parse(&Keywords { values, at_top }, parser, &mut rules)?;
        Ok(Schema { rules })
    }
}
