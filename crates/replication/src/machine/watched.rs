//! Collections whose changes somebody is told of in the order of the log.
//!
//! A shard keeps in one what it knows of its ranges; access control watches users and roles. Whoever is told of a change can count on two
//! things: everything before it in the log is in the state, and nothing after it is. A read that is
//! judged by what was told therefore finds the documents that the ranges promise.

use banyan_storage::{CollectionId, Namespace};

use crate::entry::{Entry, EntryError, Operation};
use crate::op_observer::Change;

/// Told of a change; without one, that any document may be another than before.
pub type WatchListener = Box<dyn Fn(Option<Change<'_>>) + Send + Sync>;

pub(super) struct Watched {
    pub namespace: Namespace,
    pub listener: WatchListener,
}

impl Watched {
    /// Tells of what an entry changes, all of it in this collection.
    pub fn tell_of(&self, data: &[u8]) -> Result<(), EntryError> {
        for operation in Entry::decode(data)?.operations() {
            let operation = operation?;
            let change = match &operation {
                Operation::Insert { document, .. } => Change::Insert { document },
                Operation::Update { before, after, .. } => Change::Update { before, after },
                Operation::Delete { before, .. } => Change::Delete { before },
                _ => continue,
            };
            (self.listener)(Some(change));
        }
        Ok(())
    }

    /// The state is another one: what was told before may not hold.
    pub fn tell_of_all(&self) {
        (self.listener)(None);
    }
}

/// The collection that an entry changes documents of. An entry comes from one command, on one
/// collection.
pub(super) fn changed_collection(entry: &Entry<'_>) -> Option<CollectionId> {
    match entry.operations().next()?.ok()? {
        Operation::Insert { collection, .. }
        | Operation::Update { collection, .. }
        | Operation::Delete { collection, .. } => Some(collection),
        _ => None,
    }
}
