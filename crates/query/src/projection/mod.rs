//! Projections of find: which parts of a document come back.
//!
//! `parse.rs` builds a tree of the paths named (`tree.rs`); `apply.rs` walks a document and the tree together,
//! copying what stays as it lies. A projection either names what stays (inclusion) or what goes
//! (exclusion); `$slice`, `$elemMatch` and `path.$` narrow arrays in either, computed fields only
//! come with inclusions.

mod apply;
mod parse;
#[cfg(test)]
mod tests;
mod tree;

use banyan_document::elements;
use bson::{RawDocument, RawDocumentBuf};

use crate::context::Context;
use crate::error::{ErrorKind, QueryError};
use crate::filter::{self, ArrayPosition};

pub use tree::Projection;

impl Projection {
    pub fn parse(projection: &RawDocument, context: &Context) -> Result<Projection, QueryError> {
        let parse = || parse::parse(projection, context);
        context.folding.after_parsing(parse)
    }

    /// Refuses a filter with an expression where a projection asks for the position that the filter
    /// matched at.
    pub fn check_filter(projection: &RawDocument, filter: &RawDocument) -> Result<(), QueryError> {
        let is_positional = elements(projection).any(|field| field.name().ends_with(".$"));
        if is_positional && filter::has_expression(filter) {
            return Err(QueryError::new(
                ErrorKind::QueryFeatureNotAllowed,
                "$expr is not allowed in this context",
            ));
        }
        Ok(())
    }

    pub fn apply(
        &self,
        document: &RawDocument,
        position: Option<ArrayPosition>,
    ) -> Result<RawDocumentBuf, QueryError> {
        apply::apply(self, document, position)
    }
}
