//! A collection whose changes somebody is told of in the order of the log.
//!
//! A shard keeps there what it knows of its ranges. Whoever is told of a change can count on two
//! things: everything before it in the log is in the state, and nothing after it is. A read that is
//! judged by what was told therefore finds the documents that the ranges promise.

use banyan_storage::{CollectionId, Namespace};
use bytes::Bytes;

use super::{Applied, Applying, EffectError, Machine, Prepared};
use crate::write::ahead;
use crate::write::entry::{Entry, Operation};
use crate::write::op_observer::Change;

/// Told of a change; without one, that any document may be another than before.
pub type WatchListener = Box<dyn Fn(Option<Change<'_>>) + Send + Sync>;

pub(super) struct Watched {
    namespace: Namespace,
    listener: WatchListener,
}

impl Machine {
    /// Has `listener` told of every change of a collection, whoever proposed it, before anything
    /// that comes later in the log can be read. It must not block.
    pub fn watch_collection(&self, namespace: Namespace, listener: WatchListener) {
        *self.watched.write() = Some(Watched {
            namespace,
            listener,
        });
    }

    pub(super) fn watched_collection(&self) -> Option<CollectionId> {
        let watched = self.watched.read();
        let namespace = &watched.as_ref()?.namespace;
        Some(self.store.catalog().find(namespace)?.id)
    }

    pub(super) fn tell_of(&self, data: &[u8]) -> Result<(), EffectError> {
        let watched = self.watched.read();
        let Some(watched) = &*watched else {
            return Ok(());
        };
        for operation in Entry::decode(data)?.operations() {
            let operation = operation?;
            let change = match &operation {
                Operation::Insert { document, .. } => Change::Insert { document },
                Operation::Update { before, after, .. } => Change::Update { before, after },
                Operation::Delete { before, .. } => Change::Delete { before },
                _ => continue,
            };
            (watched.listener)(Some(change));
        }
        Ok(())
    }

    /// The state is another one: what was told before may not hold.
    pub(super) fn tell_of_all(&self) {
        if let Some(watched) = &*self.watched.read() {
            (watched.listener)(None);
        }
    }
}

/// The collection that an entry changes documents of. An entry comes from one command, on one
/// collection.
fn changed_collection(entry: &Entry<'_>) -> Option<CollectionId> {
    match entry.operations().next()?.ok()? {
        Operation::Insert { collection, .. }
        | Operation::Update { collection, .. }
        | Operation::Delete { collection, .. } => Some(collection),
        _ => None,
    }
}

impl Applying<'_> {
    pub(super) fn is_watched(&self, entry: &Entry<'_>) -> bool {
        self.watched.is_some() && changed_collection(entry) == self.watched
    }

    /// Commits an entry with all before it. It is told of before anybody who waits for its time
    /// goes on, and before anything else is applied.
    pub(super) fn watched_entry(
        &mut self,
        entry: &Entry<'_>,
        next: Applied,
        prepared: Option<Prepared>,
        data: &Bytes,
    ) -> Result<(), EffectError> {
        self.applied = next;
        match prepared {
            Some(mut prepared) if !prepared.batch.is_empty() => {
                self.batch.append(std::mem::take(&mut prepared.batch));
                self.done.push((data.clone(), prepared));
            }
            prepared => {
                let catalog = self.machine.store.catalog();
                self.batch.append(ahead::work_out(&catalog, &[data])?);
                self.done
                    .extend(prepared.map(|prepared| (Bytes::new(), prepared)));
            }
        }
        self.telling = Some(data.clone());
        self.sessions(entry)?;
        self.commit()
    }
}
