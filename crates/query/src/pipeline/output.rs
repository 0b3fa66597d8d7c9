//! Where the results of a pipeline are written.

use super::merge::Merge;

#[derive(Clone, Debug)]
pub enum Output {
    /// `$out`: replaces the collection. The database is the pipeline's own unless named.
    Replace {
        database: Option<String>,
        collection: String,
    },
    /// `$merge`: document by document into an existing collection.
    Merge(Merge),
}

impl Output {
    pub fn stage_name(&self) -> &'static str {
        match self {
            Output::Replace { .. } => "$out",
            Output::Merge(_) => "$merge",
        }
    }

    /// The target: the database where it is named, and the collection.
    pub fn target(&self) -> (Option<&str>, &str) {
        match self {
            Output::Replace {
                database,
                collection,
            } => (database.as_deref(), collection),
            Output::Merge(merge) => (merge.database.as_deref(), &merge.collection),
        }
    }
}
