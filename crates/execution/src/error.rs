//! What goes wrong below a query, as an error of the query.

use banyan_query::{ErrorKind, QueryError};
use banyan_storage::{RecordId, StorageError};

/// A read that failed says what was found where; it is logged too, since no client can act on it.
pub fn storage(error: StorageError) -> QueryError {
    tracing::error!(%error, "cannot read");
    let kind = match error {
        StorageError::Damaged { .. } => ErrorKind::DataCorruptionDetected,
        _ => ErrorKind::InternalError,
    };
    QueryError::new(kind, error.to_string())
}

/// Keys no longer say all of their documents that they said when the plan was made.
pub fn became_multikey() -> QueryError {
    plan_killed("an index became multikey between getMore calls")
}

/// What a plan reads has changed so that it cannot go on.
pub fn plan_killed(why: &str) -> QueryError {
    QueryError::new(
        ErrorKind::QueryPlanKilled,
        format!("query plan killed :: caused by :: {why}"),
    )
}

/// The record at which a scan of a capped collection was to go on is gone: what came behind it may be
/// gone as well.
pub fn capped_position_lost(last: &RecordId) -> QueryError {
    QueryError::new(
        ErrorKind::CappedPositionLost,
        format!(
            "CollectionScan died due to position in capped collection being deleted. Last seen \
             record id: RecordId({last})"
        ),
    )
}
