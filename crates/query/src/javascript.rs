//! What runs the JavaScript in a query.

use std::fmt;

use bson::RawDocument;

use crate::error::QueryError;

/// Runs the code of `$where`. Whoever embeds this crate plugs an engine in.
pub trait JavaScript: Send + Sync + fmt::Debug {
    /// Whether `code`, an expression or a function, is true with the document as `this`.
    fn is_true(
        &self,
        code: &str,
        scope: Option<&RawDocument>,
        document: &RawDocument,
    ) -> Result<bool, QueryError>;
}
