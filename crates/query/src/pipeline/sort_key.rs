//! The order in which a stage takes or gives documents.

use std::collections::BTreeSet;

use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use banyan_document::Number;

use crate::context::Context;
use crate::error::QueryError;
use crate::expression::value::{error, show};
use crate::sort::SortPattern;

/// A sort pattern with the text it was parsed from.
#[derive(Clone, Debug)]
pub struct SortKey {
    pub pattern: SortPattern,
    pub source: RawDocumentBuf,
}

impl SortKey {
    pub(super) fn parse(source: &RawDocument, context: &Context) -> Result<SortKey, QueryError> {
        for (name, order) in source.iter().map_while(Result::ok) {
            let Some(number) = Number::from_raw(order) else {
                if matches!(order, RawBsonRef::Document(_)) {
                    break;
                }
                return error(
                    15974,
                    format!(
                        "Illegal key in $sort specification: {name}: {}",
                        show(order)
                    ),
                );
            };
            if !matches!(number.to_i64_exact(), Some(1 | -1)) {
                return error(
                    15975,
                    "$sort key ordering must be 1 (for ascending) or -1 (for descending)",
                );
            }
        }
        let pattern = SortPattern::parse_in(source, context)?;
        Ok(SortKey {
            pattern,
            source: source.to_owned(),
        })
    }

    pub(super) fn dependencies(&self, paths: &mut BTreeSet<String>) {
        let fields = self.pattern.fields().iter();
        paths.extend(fields.map(|(path, _)| path.to_string()));
    }
}
