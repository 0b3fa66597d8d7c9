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

use bson::{RawDocument, RawDocumentBuf};

use crate::context::Context;
use crate::error::QueryError;
use crate::filter::ArrayPosition;

pub(crate) use parse::{check_middle, remaining};
pub use tree::Projection;

impl Projection {
    pub fn parse(projection: &RawDocument, context: &Context) -> Result<Projection, QueryError> {
        Projection::parse_beside(projection, None, context)
    }

    /// Of documents that a filter finds. One with an expression cannot say at which position it
    /// matched.
    pub fn parse_beside(
        projection: &RawDocument,
        filter: Option<&RawDocument>,
        context: &Context,
    ) -> Result<Projection, QueryError> {
        let parse = || parse::parse(projection, filter, context);
        context.folding.after_parsing(parse)
    }

    pub fn apply(
        &self,
        document: &RawDocument,
        position: Option<ArrayPosition>,
    ) -> Result<RawDocumentBuf, QueryError> {
        self.apply_over(document, position, Vec::new())
    }

    /// The same, written over what is in a buffer.
    pub fn apply_over(
        &self,
        document: &RawDocument,
        position: Option<ArrayPosition>,
        buffer: Vec<u8>,
    ) -> Result<RawDocumentBuf, QueryError> {
        apply::apply(self, document, position, buffer)
    }
}
