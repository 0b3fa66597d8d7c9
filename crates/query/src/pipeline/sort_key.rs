//! The order in which a stage takes or gives documents.

use std::collections::BTreeSet;

use bson::{RawDocument, RawDocumentBuf};

use crate::context::Context;
use crate::error::QueryError;
use crate::sort::SortPattern;

/// A sort pattern with the text it was parsed from.
#[derive(Clone, Debug)]
pub struct SortKey {
    pub pattern: SortPattern,
    pub source: RawDocumentBuf,
}

impl SortKey {
    pub(super) fn parse(source: &RawDocument, context: &Context) -> Result<SortKey, QueryError> {
        let pattern = SortPattern::parse_in(source, context)?;
        Ok(SortKey {
            pattern,
            source: source.to_owned(),
        })
    }

    /// The order among documents that are sorted by something else before.
    pub(super) fn coming_second(self) -> SortKey {
        SortKey {
            pattern: self.pattern.coming_second(),
            source: self.source,
        }
    }

    pub(super) fn dependencies(&self, paths: &mut BTreeSet<String>) {
        let fields = self.pattern.fields().iter();
        paths.extend(fields.map(|(path, _)| path.to_string()));
    }
}
