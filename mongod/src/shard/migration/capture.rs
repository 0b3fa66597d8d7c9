//! Which documents of a moving range have changed since the recipient last asked.
//!
//! Only their `_id`s are kept: what is sent is the document as it is when the recipient asks, so
//! that changes need no order among themselves, and sending one twice does no harm.

use std::collections::BTreeMap;

use banyan_document::key;
use banyan_replication::op_observer::Change;
use banyan_sharding::{ChunkRange, ShardKeyPattern};
use bson::{RawBson, RawBsonRef, RawDocument};
use parking_lot::Mutex;

/// A migration that falls behind by more than this is given up.
const BYTES_MAX: usize = 256 * 1024 * 1024;

pub struct ChangeCapture {
    pattern: ShardKeyPattern,
    range: ChunkRange,
    changed: Mutex<Changed>,
}

#[derive(Default)]
struct Changed {
    /// By encoded `_id`, so that equal ids meet.
    ids: BTreeMap<Vec<u8>, RawBson>,
    bytes: usize,
    overflowed: bool,
}

impl ChangeCapture {
    pub fn new(pattern: ShardKeyPattern, range: ChunkRange) -> ChangeCapture {
        ChangeCapture {
            pattern,
            range,
            changed: Mutex::default(),
        }
    }

    pub fn note(&self, change: Change<'_>) {
        let document = match change {
            Change::Insert { document } => Some(document).filter(|d| self.holds(d)),
            Change::Delete { before } => Some(before).filter(|d| self.holds(d)),
            Change::Update { before, after } => {
                Some(after).filter(|after| self.holds(before) || self.holds(after))
            }
        };
        if let Some(id) = document.and_then(|document| document.get("_id").ok().flatten()) {
            self.add(id);
        }
    }

    fn holds(&self, document: &RawDocument) -> bool {
        let mut key = Vec::with_capacity(48);
        self.pattern.encode(document, &mut key).is_ok() && self.range.contains(&key)
    }

    fn add(&self, id: RawBsonRef<'_>) {
        let mut encoded = Vec::new();
        key::encode(id, &mut encoded);
        let mut changed = self.changed.lock();
        if changed.bytes > BYTES_MAX {
            changed.overflowed = true;
            return;
        }
        let bytes = encoded.len() * 2;
        if changed.ids.insert(encoded, id.into()).is_none() {
            changed.bytes += bytes;
        }
    }

    /// Hands out up to `count` ids and forgets them.
    pub fn take(&self, count: usize) -> Vec<RawBson> {
        let mut changed = self.changed.lock();
        let mut taken = Vec::new();
        while taken.len() < count
            && let Some((encoded, id)) = changed.ids.pop_first()
        {
            changed.bytes = changed.bytes.saturating_sub(encoded.len() * 2);
            taken.push(id);
        }
        taken
    }

    /// Takes ids back that could not be served.
    pub fn put_back(&self, ids: &[RawBson]) {
        for id in ids {
            self.add(id.as_raw_bson_ref());
        }
    }

    pub fn len(&self) -> usize {
        self.changed.lock().ids.len()
    }

    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.changed.lock().ids.is_empty()
    }

    pub fn overflowed(&self) -> bool {
        self.changed.lock().overflowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::rawdoc;

    fn capture() -> ChangeCapture {
        let pattern = ShardKeyPattern::parse(&rawdoc! { "k": 1 }).unwrap();
        let range =
            ChunkRange::parse(&pattern, &rawdoc! { "k": 10 }, &rawdoc! { "k": 20 }).unwrap();
        ChangeCapture::new(pattern, range)
    }

    #[test]
    fn only_changes_in_the_range_are_noted_and_once() {
        let capture = capture();
        let inside = rawdoc! { "_id": 1, "k": 15 };
        let outside = rawdoc! { "_id": 2, "k": 20 };
        capture.note(Change::Insert { document: &inside });
        capture.note(Change::Update {
            before: &inside,
            after: &inside,
        });
        capture.note(Change::Insert { document: &outside });
        capture.note(Change::Delete { before: &outside });
        assert_eq!(capture.take(10), [RawBson::Int32(1)]);
        assert!(capture.is_empty());
    }

    #[test]
    fn a_document_that_leaves_or_enters_the_range_is_noted() {
        let capture = capture();
        let inside = rawdoc! { "_id": 1, "k": 15 };
        let outside = rawdoc! { "_id": 1, "k": 25 };
        capture.note(Change::Update {
            before: &inside,
            after: &outside,
        });
        assert_eq!(capture.take(10).len(), 1);
        capture.note(Change::Update {
            before: &outside,
            after: &inside,
        });
        let taken = capture.take(10);
        capture.put_back(&taken);
        assert_eq!(capture.take(10).len(), 1);
    }
}
