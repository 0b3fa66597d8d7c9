//! What is on its way into capped collections: it has its place in the log, and is not applied yet.
//!
//! Inserts into a capped collection build on each other: their records follow each other, and each
//! removes what is too much after those before it. Whoever comes next does not wait until those are
//! applied. It takes the state as it is and reckons with what they do to it.

use std::collections::HashMap;
use std::sync::Arc;

use banyan_storage::{CollectionId, RecordId, Snapshot, StorageError};
use parking_lot::Mutex;

/// What one entry does to one capped collection.
#[derive(Debug, Clone)]
pub struct Part {
    pub collection: CollectionId,
    /// The first record that it adds, and the last one, which stays whatever it removes.
    pub first: RecordId,
    pub last: RecordId,
    /// By how much the collection's counts change.
    pub documents: i64,
    pub bytes: i64,
    /// The last of the records that it removes at the other end.
    pub removed: Option<RecordId>,
}

/// All that is on its way, by collection, in the order of the log.
#[derive(Default)]
pub struct Incoming(Mutex<Listed>);

#[derive(Default)]
struct Listed {
    parts: HashMap<CollectionId, Vec<(u64, Part)>>,
    announced: u64,
}

impl Incoming {
    /// To be called while the ends of their collections are latched, before the entry is proposed.
    pub fn announce(self: &Arc<Self>, parts: Vec<Part>) -> Announced {
        let mut listed = self.0.lock();
        listed.announced += 1;
        let number = listed.announced;
        let mut collections = Vec::with_capacity(parts.len());
        for part in parts {
            collections.push(part.collection);
            let of_collection = listed.parts.entry(part.collection).or_default();
            of_collection.push((number, part));
        }
        Announced {
            incoming: self.clone(),
            number,
            collections,
        }
    }

    /// What is on its way into a collection whose end is latched. A snapshot that is taken after
    /// this shows whatever is not listed.
    pub fn on_the_way(&self, collection: CollectionId) -> Vec<Part> {
        let listed = self.0.lock();
        let parts = listed.parts.get(&collection).into_iter().flatten();
        parts.map(|(_, part)| part.clone()).collect()
    }
}

/// Those of the parts that a snapshot does not show. They come into it in their order, and only a later
/// one may have removed what one has added.
pub fn not_in(
    snapshot: &Snapshot,
    collection: CollectionId,
    mut parts: Vec<Part>,
) -> Result<Vec<Part>, StorageError> {
    let mut shown = parts.len();
    while let Some(part) = shown.checked_sub(1).and_then(|at| parts.get(at)) {
        if snapshot.record(collection, &part.last)?.is_some() {
            break;
        }
        shown -= 1;
    }
    Ok(parts.split_off(shown))
}

/// An entry that is listed, until this is dropped: when it is applied, or will not be.
pub struct Announced {
    incoming: Arc<Incoming>,
    number: u64,
    collections: Vec<CollectionId>,
}

impl Announced {
    /// It stays listed.
    pub fn keep_forever(mut self) {
        self.collections.clear();
    }
}

impl Drop for Announced {
    fn drop(&mut self) {
        if self.collections.is_empty() {
            return;
        }
        let mut listed = self.incoming.0.lock();
        for collection in &self.collections {
            let Some(parts) = listed.parts.get_mut(collection) else {
                continue;
            };
            parts.retain(|(number, _)| *number != self.number);
            if parts.is_empty() {
                listed.parts.remove(collection);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(collection: CollectionId, first: u64) -> Part {
        Part {
            collection,
            first: RecordId::number(first),
            last: RecordId::number(first),
            documents: 1,
            bytes: 100,
            removed: None,
        }
    }

    #[test]
    fn what_is_announced_is_listed_in_order_until_it_is_done() {
        let incoming = Arc::new(Incoming::default());
        let firsts = |collection| {
            let parts = incoming.on_the_way(collection);
            let firsts = parts.iter().filter_map(|part| part.first.as_number());
            firsts.collect::<Vec<_>>()
        };
        let one = incoming.announce(vec![part(1, 5), part(2, 9)]);
        let two = incoming.announce(vec![part(1, 6)]);
        let three = incoming.announce(vec![part(1, 7)]);
        assert_eq!((firsts(1), firsts(2)), (vec![5, 6, 7], vec![9]));
        drop(two);
        assert_eq!(firsts(1), [5, 7]);
        drop(one);
        assert_eq!((firsts(1), firsts(2)), (vec![7], vec![]));
        three.keep_forever();
        assert_eq!(firsts(1), [7]);
        assert_eq!(firsts(3), [0; 0]);
    }
}
