//! `system.profile` of each database: what the profiler has kept.

use std::sync::Arc;

use banyan_execution::Documents;
use banyan_query::{ErrorKind, QueryError};
use bson::{RawArrayBuf, RawDocument, RawDocumentBuf, rawdoc};

use crate::node::Node;
use crate::profiler::{Behind, Entries, PROFILE, options};

/// The documents of such a collection. `None`: it is an ordinary one.
pub fn documents(
    node: &Arc<Node>,
    database: &str,
    collection: &str,
    reverse: bool,
    tailable: bool,
) -> Option<Documents> {
    if collection != PROFILE {
        return None;
    }
    let Some(kept) = node.profiler.collection(database) else {
        return Some(Box::new(std::iter::empty()));
    };
    if tailable {
        let mut entries = Entries::from_first(kept);
        let next = move || match entries.next_entry() {
            Ok(entry) => entry.map(|entry| Ok(RawDocument::to_owned(&entry))),
            Err(Behind) => Some(Err(QueryError::new(
                ErrorKind::CappedPositionLost,
                "the entry of the profile at which the cursor was to go on has been removed",
            ))),
        };
        return Some(Box::new(std::iter::from_fn(next)));
    }
    let entries = kept.entries(reverse).into_iter();
    Some(Box::new(
        entries.map(|entry| Ok(RawDocument::to_owned(&entry))),
    ))
}

/// Whether there is such a collection.
pub fn exists(node: &Node, database: &str, collection: &str) -> bool {
    collection == PROFILE && node.profiler.collection(database).is_some()
}

/// What `$collStats` tells of it.
pub fn stats(node: &Node, database: &str, collection: &str) -> Option<RawDocumentBuf> {
    if collection != PROFILE {
        return None;
    }
    let kept = node.profiler.collection(database)?;
    let long = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let (count, bytes) = kept.counts();
    Some(rawdoc! {
        "size": long(bytes),
        "count": long(count),
        "storageSize": long(bytes),
        "freeStorageSize": 0,
        "capped": true,
        "max": long(kept.documents_max.unwrap_or(0)),
        "maxSize": long(kept.bytes_max),
        "nindexes": 0,
        "indexBuilds": RawArrayBuf::new(),
        "totalIndexSize": 0,
        "totalSize": long(bytes),
        "indexSizes": {},
    })
}

/// Its name and options, if the database has one.
pub fn listed(node: &Node, database: &str) -> Option<(&'static str, RawDocumentBuf)> {
    let kept = node.profiler.collection(database)?;
    Some((PROFILE, options(&kept)))
}
