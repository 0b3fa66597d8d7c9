//! Statements about what lies in records, as measurements do in buckets.

use banyan_wire::CommandError;
use bson::{RawDocument, RawDocumentBuf};

/// What a statement does to each record that it finds.
pub trait Rewrite: Send + Sync {
    fn rewrite(&self, before: &RawDocument) -> Result<Rewritten, CommandError>;
}

/// What a rewrite makes of a record.
pub struct Rewritten {
    /// How many of the things in it the statement is about.
    pub matched: u64,
    pub record: Outcome,
}

pub enum Outcome {
    Same,
    Gone,
    Becomes(RawDocumentBuf),
}
