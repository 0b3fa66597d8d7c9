//! Validators: the filter that the documents of a collection have to match, and why one does not.
//!
//! A document is held against the filter. Only one that does not match is looked at again, clause by
//! clause as the validator was written (`clause.rs`, `schema.rs`), for what MongoDB tells about it in
//! `errInfo.details` of its error 121. `test.rs` has the words for operators on a field,
//! `keyword.rs` those for keywords of `$jsonSchema`, `considered.rs` shows the values that were
//! looked at, `refused.rs` says what a validator may not ask, `source.rs` reads how it was written.
//!
//! Source of the answers' shape: MongoDB's manual, "Schema Validation", and what MongoDB 6.0 answers.

mod clause;
mod considered;
mod keyword;
mod outcome;
mod refused;
mod schema;
mod schema_explain;
mod schema_parse;
mod source;
mod test;
#[cfg(test)]
mod tests;

use std::sync::OnceLock;

use bson::{RawDocument, RawDocumentBuf};

use self::clause::Clause;
use self::outcome::refuted;
use crate::context::Context;
use crate::error::QueryError;
use crate::filter::Filter;

pub use self::outcome::{CodeName, ends_operation};

/// A parsed validator.
#[derive(Debug)]
pub struct Validator {
    source: RawDocumentBuf,
    context: Context,
    filter: Filter,
    /// The same clause by clause, once a document had to be told about.
    clause: OnceLock<Result<Clause, QueryError>>,
}

impl Validator {
    /// Parses a validator in the context of its collection, whose collation is that of its strings.
    pub fn parse(source: &RawDocument, context: &Context) -> Result<Validator, QueryError> {
        refused::check(source)?;
        let context = Context {
            is_as_written: true,
            ..context.clone()
        };
        Ok(Validator {
            // A constant that fails does so for each document, as all that fails does.
            filter: context
                .folding
                .ignoring_failures(|| Filter::parse(source, &context))?,
            source: source.to_owned(),
            context,
            clause: OnceLock::new(),
        })
    }

    /// Whether it says which fields are encrypted, which a collection may only ask for where it
    /// refuses what does not match.
    pub fn asks_for_encryption(&self) -> bool {
        refused::asks_for_encryption(&self.source)
    }

    /// Whether it evaluates expressions, which may take long: it then has to be parsed with the
    /// budget of the operation that it is a part of.
    pub fn computes(&self) -> bool {
        self.filter.computes()
    }

    /// Whether the document matches. One for which an expression fails does not.
    pub fn accepts(&self, document: &RawDocument) -> Result<bool, QueryError> {
        refuted(self.filter.try_matches(document))
    }

    /// Why a document does not match, as `errInfo.details` tells it.
    pub fn explain(
        &self,
        document: &RawDocument,
        name: CodeName<'_>,
    ) -> Result<RawDocumentBuf, QueryError> {
        let parse = || Clause::parse(&self.source, &self.context);
        let folding = &self.context.folding;
        let clause = self.clause.get_or_init(|| folding.ignoring_failures(parse));
        match clause {
            Ok(clause) => clause.explain(document, false, name),
            Err(error) => Err(error.clone()),
        }
    }
}
