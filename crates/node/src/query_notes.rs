//! What is known of a command's query because of its shape ([`crate::query_shapes`]).

use std::sync::{Arc, OnceLock};

use banyan_execution::index_filters::{AllowedIndex, AllowedIndexes};
use banyan_query::query_settings::QuerySettings;
use banyan_query::query_stats::Recording;
use banyan_query::shape::QueryShape;
use bson::RawBson;

/// What is known of a command's query.
#[derive(Default)]
pub struct QueryNotes {
    /// `None`: nobody has asked for it.
    pub shape: Option<QueryShape>,
    pub settings: Option<Arc<QuerySettings>>,
    /// Where it is counted, if it is. A `getMore` has that of its cursor.
    recording: OnceLock<Arc<Recording>>,
}

impl QueryNotes {
    pub fn recording(&self) -> Option<&Arc<Recording>> {
        self.recording.get()
    }

    /// A `getMore` goes on with what its cursor's command has begun.
    pub fn go_on(&self, recording: &Option<Arc<Recording>>) {
        if let Some(recording) = recording {
            // A command goes on with one cursor.
            let _ = self.recording.set(recording.clone());
        }
    }
}

/// The indexes of a collection that may be used, if settings say which.
pub fn allowed_indexes(
    settings: Option<&QuerySettings>,
    database: &str,
    collection: &str,
) -> Option<Arc<AllowedIndexes>> {
    let hints = settings?.hints_for(database, collection)?;
    let allowed = hints.allowed.iter().filter_map(|allowed| match allowed {
        RawBson::Document(pattern) => Some(AllowedIndex::KeyPattern(pattern.clone())),
        RawBson::String(name) => Some(AllowedIndex::Name(name.clone())),
        _ => None,
    });
    Some(Arc::new(AllowedIndexes(allowed.collect())))
}
