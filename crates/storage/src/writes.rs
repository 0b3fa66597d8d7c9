//! Batches on their way into memory, and views that see each of them as a whole.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::thread;
use std::time::{Duration, Instant};

use banyan_crash::{Point, pass};
use fjall::AbstractTree;
use lsm_tree::{InternalValue, Memtable, SeqNo, ValueType};

use crate::StorageError;
use crate::batch::{Origin, WriterId};
use crate::engine::Engine;
use crate::keyspaces::{Keyspace, Keyspaces, Operation};

/// After so many bytes it is looked how much lies in memory: looking costs as much as a small write.
const LOOK_EVERY_BYTES: u64 = 1024 * 1024;
/// Writers wait while memory holds so many times what a checkpoint is made for, or while a keyspace's
/// first level has so many runs.
const BUFFERS_MAX: u64 = 3;
const RUNS_MAX: usize = 30;
const WAIT_PAUSE: Duration = Duration::from_millis(1);
const WAIT_MAX: Duration = Duration::from_secs(10);

impl Engine {
    /// Whether no batch of anybody else has been written since a view was taken. A batch that is being
    /// put into memory counts or not.
    pub(crate) fn is_current_to(&self, view: &fjall::Snapshot, writer: WriterId) -> bool {
        if view.seqno() == self.database.visible_seqno() {
            return true;
        }
        self.newest.lock().are_all_of(writer, view.seqno())
    }

    /// A view of what was committed, in which each batch is there as a whole or not at all.
    ///
    /// Versions of the tables have sequence numbers as batches have. One that a flush or a compaction
    /// has made becomes visible with all that has a lower number, and so with a part of a batch that
    /// began before it and is still being put into the memtables.
    pub(crate) fn snapshot(&self) -> fjall::Snapshot {
        let snapshot = self.database.snapshot();
        fence(Ordering::SeqCst);
        if snapshot.seqno() <= self.whole_until.load(Ordering::Acquire) {
            return snapshot;
        }
        drop(snapshot);
        let _no_batch = self.committing.lock();
        self.database.snapshot()
    }

    /// Makes the writes visible, all at once.
    pub(crate) fn write_at(
        &self,
        operations: Vec<Operation>,
        origin: Origin,
    ) -> Result<(), StorageError> {
        let keyspaces = self.keyspaces.read();
        self.write_to(&keyspaces, operations, origin)
    }

    /// The same with writes that do not come from the log.
    pub(crate) fn write(&self, operations: Vec<Operation>) -> Result<(), StorageError> {
        self.write_at(operations, Origin::default())
    }

    /// As [`Engine::write`], but nothing once everything was thrown away since `epoch`: false then.
    pub(crate) fn write_in(
        &self,
        epoch: u64,
        operations: Vec<Operation>,
    ) -> Result<bool, StorageError> {
        // Held meanwhile: the keyspaces are replaced after the epoch has changed.
        let keyspaces = self.keyspaces.read();
        if self.epoch.load(Ordering::Acquire) != epoch {
            return Ok(false);
        }
        self.write_to(&keyspaces, operations, Origin::default())?;
        Ok(true)
    }

    fn write_to(
        &self,
        keyspaces: &Keyspaces,
        operations: Vec<Operation>,
        origin: Origin,
    ) -> Result<(), StorageError> {
        if self.has_failed.load(Ordering::Acquire) {
            return Err(fjall::Error::Poisoned.into());
        }
        let bytes = |operation: &Operation| {
            operation.key.len() + operation.value.as_ref().map_or(0, |value| value.len())
        };
        let bytes = operations.iter().map(bytes).sum::<usize>() as u64;
        pass(Point::StateCommitting);
        let unlooked = &self.unlooked_bytes;
        if unlooked.fetch_add(bytes, Ordering::Relaxed) + bytes >= LOOK_EVERY_BYTES {
            unlooked.store(0, Ordering::Relaxed);
            self.check_engine()?;
            self.make_room(keyspaces);
        }
        let mut committing = self.committing.lock();
        let supervisor = &self.database.supervisor;
        let whole_until = &self.whole_until;
        let visible = self.database.visible_seqno();
        whole_until.store(visible, Ordering::Relaxed);
        self.newest.lock().note(origin.writer, visible);
        // Whoever does not see this store sees no later sequence number either.
        fence(Ordering::SeqCst);
        let seqno = supervisor.seqno.next();
        let mut memtables = Memtables::of(keyspaces);
        for operation in operations {
            memtables.put(operation, seqno);
        }
        supervisor.snapshot_tracker.publish(seqno);
        whole_until.store(SeqNo::MAX, Ordering::Release);
        if let Some(position) = origin.position {
            *committing = position;
        }
        drop(committing);
        pass(Point::StateCommitted);
        Ok(())
    }

    /// Asks for a checkpoint if one is due. Waits while writers are too far ahead of the tables, but not
    /// for ever: where tables cannot be written any more, the next batch is refused.
    fn make_room(&self, keyspaces: &Keyspaces) {
        let began = Instant::now();
        loop {
            let buffers = self.buffers_in_use(keyspaces);
            if buffers >= 1 {
                self.requests.checkpoint();
            }
            let runs = [&keyspaces.records, &keyspaces.indexes, &keyspaces.meta]
                .map(|keyspace| keyspace.tree.l0_run_count());
            let is_full = buffers >= BUFFERS_MAX || runs.iter().any(|&runs| runs >= RUNS_MAX);
            if !is_full || began.elapsed() >= WAIT_MAX {
                return;
            }
            thread::sleep(WAIT_PAUSE);
        }
    }

    /// How many times the memory that a keyspace may take it does take, of the one that takes most.
    fn buffers_in_use(&self, keyspaces: &Keyspaces) -> u64 {
        let all = [Keyspace::Records, Keyspace::Indexes, Keyspace::Meta];
        let in_use = all.map(|keyspace| {
            let bytes = keyspaces.of(keyspace).tree.active_memtable().size();
            bytes / self.buffer_bytes(keyspace)
        });
        in_use.into_iter().max().unwrap_or_default()
    }
}

/// Where a batch goes. Looked up once for all of it: nothing is sealed meanwhile.
struct Memtables<'a> {
    keyspaces: &'a Keyspaces,
    records: Option<Arc<Memtable>>,
    indexes: Option<Arc<Memtable>>,
    meta: Option<Arc<Memtable>>,
}

impl<'a> Memtables<'a> {
    fn of(keyspaces: &'a Keyspaces) -> Memtables<'a> {
        Memtables {
            keyspaces,
            records: None,
            indexes: None,
            meta: None,
        }
    }

    fn put(&mut self, operation: Operation, seqno: SeqNo) {
        let memtable = match operation.keyspace {
            Keyspace::Records => &mut self.records,
            Keyspace::Indexes => &mut self.indexes,
            Keyspace::Meta => &mut self.meta,
        };
        let keyspace = self.keyspaces.of(operation.keyspace);
        let memtable = memtable.get_or_insert_with(|| keyspace.tree.active_memtable());
        let key = operation.key;
        memtable.insert(match operation.value {
            Some(value) => InternalValue::from_components(key, value, seqno, ValueType::Value),
            None => InternalValue::new_tombstone(key, seqno),
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use fjall::Readable;

    use super::*;
    use crate::snapshot::Snapshot;
    use crate::{Batch, Store, StoreOptions};

    #[test]
    fn a_view_is_current_to_a_writer_until_others_have_written() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path(), &StoreOptions::default()).unwrap();
        let (one, other) = (store.new_writer(), store.new_writer());
        let write = |writers: &[Option<WriterId>]| {
            let mut whole = Batch::new();
            for (writer, name) in writers.iter().zip(["a", "b"]) {
                let mut batch = Batch::new();
                batch.put_meta(name.as_bytes(), b"value");
                writer.map(|writer| batch.set_writer(writer));
                whole.append(batch);
            }
            store.commit(whole).unwrap();
        };
        let view = store.snapshot();
        assert!(store.is_current(&view) && store.is_current_to(&view, one));
        write(&[Some(one)]);
        let between = store.snapshot();
        write(&[Some(one)]);
        assert!(!store.is_current(&view));
        assert!(store.is_current_to(&view, one) && store.is_current_to(&between, one));
        assert!(!store.is_current_to(&view, other) && !store.is_current_to(&between, other));
        for foreign in [
            &[Some(other)][..],
            &[None],
            &[Some(one), Some(other)],
            &[Some(one), None],
        ] {
            let view = store.snapshot();
            write(foreign);
            write(&[Some(one)]);
            assert!(!store.is_current_to(&view, one), "{foreign:?}");
            assert!(!store.is_current_to(&between, one), "{foreign:?}");
        }
        let view = store.snapshot();
        write(&[Some(one), Some(one)]);
        assert!(store.is_current_to(&view, one));
    }

    #[test]
    fn a_snapshot_sees_all_of_a_batch_or_nothing_while_tables_are_written() {
        const KEYS: u32 = 4_000;
        const BATCHES: u32 = 60;
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path(), &StoreOptions::default()).unwrap();
        let engine = store.engine();
        let key = |key: u32| [0, key].map(u32::to_be_bytes).concat();
        let write = |round: u32| {
            let put = |keyspace, key: Vec<u8>| Operation {
                keyspace,
                key: key.into(),
                value: Some(round.to_be_bytes().into()),
            };
            let mut operations = vec![put(Keyspace::Meta, b"round".to_vec())];
            operations.extend((0..KEYS).map(|number| put(Keyspace::Records, key(number))));
            engine.write(operations).unwrap();
        };
        write(0);
        let done = AtomicBool::new(false);
        let working = || !done.load(Ordering::Relaxed);
        let seen = thread::scope(|scope| {
            scope.spawn(|| {
                while working() {
                    engine.persist().unwrap();
                }
            });
            let reader = scope.spawn(|| {
                let mut seen = 0;
                while working() {
                    let view = Snapshot::of(engine).view;
                    let keyspaces = engine.keyspaces();
                    let value = |keyspace, key: &[u8]| {
                        let found = view.get(keyspaces.of(keyspace), key).unwrap();
                        found.map(|value| u32::from_be_bytes(value[..].try_into().unwrap()))
                    };
                    let first = value(Keyspace::Records, &key(0));
                    let last = value(Keyspace::Records, &key(KEYS - 1));
                    let meta = value(Keyspace::Meta, b"round");
                    assert_eq!((first, meta), (last, last));
                    seen += 1;
                }
                seen
            });
            for round in 1..=BATCHES {
                write(round);
            }
            done.store(true, Ordering::Relaxed);
            reader.join().unwrap()
        });
        assert!(seen > 0);
    }
}
