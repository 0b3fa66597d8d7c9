//! Checkpoints: what lies in memory is brought into tables, and need not be applied again.
//!
//! The store has no journal of its own. A crash takes what lies in memory, and the caller's log has
//! all of it: [`crate::Batch::set_position`] says how far the log has come with a batch. A checkpoint
//! seals what the three keyspaces hold in memory, between two batches. The engine writes records and
//! indexes to tables; only then is meta written, where the caller keeps the position. When a store is
//! opened, meta is therefore as of one moment, and records and indexes are as of that moment or a later
//! one. The caller applies its log from there on. Its batches say what keys become and not how they
//! change, so that records and indexes come to the same, as soon as the log has come to where they were.
//!
//! Tables must not be ahead of a log that a power cut has shortened. Before anything is sealed, the
//! caller's [`crate::LogBarrier`] syncs the log, and notes in it how far tables may go: nobody may read a store
//! before the log was applied up to there.

pub(crate) mod requests;

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use banyan_crash::{Point, pass};
use fjall::{AbstractTree, PersistMode};
use lsm_tree::SeqNo;
use lsm_tree::compaction::Leveled;

use crate::StorageError;
use crate::engine::Engine;
use crate::keyspaces::{Keyspace, Keyspaces};
use requests::{Request, RequestQueue, Requests};

/// Meta's tables are merged when there are so many.
const META_RUNS_MAX: usize = 4;
/// Less than that in meta is not worth a look at what nobody reads any more.
const META_BYTES_MUCH: u64 = 16 * 1024;
/// Where less lies in memory, what the log has not synced is soon synced.
const SYNC_AHEAD_BYTES: u64 = 4 * 1024 * 1024;
/// As long as nothing is asked for, it is looked whether anything is written.
const QUIET_TIME: Duration = Duration::from_millis(500);
/// Less than that in memory is found fast there.
const QUIET_BYTES_MUCH: u64 = 4 * 1024 * 1024;
const FLUSH_POLL: Duration = Duration::from_millis(1);

/// The thread that makes the checkpoints that are asked for. Dropping this ends and joins it.
pub(crate) struct Checkpointer {
    requests: Requests,
    thread: Option<JoinHandle<()>>,
}

impl Checkpointer {
    pub(crate) fn start(engine: &Arc<Engine>, queue: RequestQueue) -> io::Result<Checkpointer> {
        let requests = engine.requests.clone();
        let engine = Arc::downgrade(engine);
        let thread = thread::Builder::new()
            .name("checkpoint".to_owned())
            .spawn(move || serve(&engine, &queue))?;
        Ok(Checkpointer {
            requests,
            thread: Some(thread),
        })
    }
}

fn serve(engine: &Weak<Engine>, queue: &RequestQueue) {
    let mut quiet = Quiet::default();
    loop {
        let request = queue.next_within(QUIET_TIME);
        let Some(engine) = engine.upgrade() else {
            return;
        };
        match request {
            Some(Request::Stop) => return,
            Some(Request::Checkpoint) => {}
            None if quiet.is_worthwhile(&engine) => {}
            None => continue,
        }
        if let Err(error) = engine.persist() {
            // Memory would grow without bound: the next batch is refused.
            engine.has_failed.store(true, Ordering::Release);
            tracing::error!(%error, "what is in memory cannot be written to tables");
        }
    }
}

/// Looks for a load that has ended: who reads what it has left finds it faster in tables, which have
/// filters and caches, than in the engine's large memory.
#[derive(Default)]
struct Quiet {
    /// How far the log had come at the last look.
    position: Option<u64>,
}

impl Quiet {
    /// Whether much lies in memory and nothing was written since the last look.
    fn is_worthwhile(&mut self, engine: &Engine) -> bool {
        let position = *engine.committing.lock();
        let is_quiet = self.position.replace(position) == Some(position);
        is_quiet && unsealed_bytes(&engine.keyspaces()) >= QUIET_BYTES_MUCH
    }
}

/// What lies in memory and in no table.
fn unsealed_bytes(keyspaces: &Keyspaces) -> u64 {
    let sizes = [&keyspaces.records, &keyspaces.indexes];
    let sizes = sizes.map(|keyspace| keyspace.tree.active_memtable().size());
    sizes.iter().sum()
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        // The thread takes what lies before it in the queue.
        self.requests.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Engine {
    /// Makes a checkpoint: returns once everything committed so far survives a power cut.
    pub(crate) fn persist(&self) -> Result<(), StorageError> {
        let _one_at_a_time = self.persisting.lock();
        self.checkpoint()
    }

    /// As [`Engine::persist`], but only what was visible at `seqno` need survive. A checkpoint that is
    /// being made meanwhile may do.
    pub(crate) fn persist_up_to(&self, seqno: SeqNo) -> Result<(), StorageError> {
        let _one_at_a_time = self.persisting.lock();
        match self.durable_until.load(Ordering::Acquire) >= seqno {
            true => Ok(()),
            false => self.checkpoint(),
        }
    }

    /// One at a time.
    fn checkpoint(&self) -> Result<(), StorageError> {
        // Before the lock, as by whoever writes.
        let keyspaces = self.keyspaces();
        if self.memory_bytes(&keyspaces) >= SYNC_AHEAD_BYTES {
            // Most of the log is synced beside the writes, so that little is left while they wait.
            let position = *self.committing.lock();
            self.wait_for_log(position)?;
        }
        let (position, seqno) = {
            let committing = self.committing.lock();
            if !is_empty(&keyspaces) {
                self.wait_for_log(*committing)?;
                self.have_versions_counted(&keyspaces);
                keyspaces.records.rotate_memtable()?;
                keyspaces.indexes.rotate_memtable()?;
                // Not by the engine, which would write it whenever it likes.
                keyspaces.meta.tree.rotate_memtable();
            }
            (*committing, self.database.visible_seqno())
        };
        pass(Point::CheckpointSealed);
        self.wait_for_tables(&keyspaces)?;
        pass(Point::CheckpointTables);
        self.write_meta_table(&keyspaces)?;
        self.durable_position.store(position, Ordering::Release);
        self.durable_until.store(seqno, Ordering::Release);
        Ok(())
    }

    /// The engine finds out which versions nobody reads any more when it seals a memtable that holds
    /// something. Where only meta is written, and much, as by an arbiter, indexes get the removal of a key
    /// that never existed. Called while nothing is committed.
    fn have_versions_counted(&self, keyspaces: &Keyspaces) {
        let is_empty = |keyspace: &fjall::Keyspace| keyspace.tree.active_memtable().is_empty();
        let is_much = keyspaces.meta.tree.active_memtable().size() >= META_BYTES_MUCH;
        if is_much && is_empty(&keyspaces.records) && is_empty(&keyspaces.indexes) {
            let supervisor = &self.database.supervisor;
            let seqno = supervisor.seqno.next();
            let nobody = 0_u32.to_be_bytes();
            keyspaces.indexes.tree.remove(nobody, seqno);
            supervisor.snapshot_tracker.publish(seqno);
        }
    }

    /// What lies in memory.
    pub(crate) fn memory_bytes(&self, keyspaces: &Keyspaces) -> u64 {
        [&keyspaces.records, &keyspaces.indexes, &keyspaces.meta]
            .map(|keyspace| keyspace.tree.version_memtable_size_sum())
            .iter()
            .sum()
    }

    /// Brings a directory of the earlier format to the newest: what the engine has read from its journal
    /// is nowhere else.
    pub(crate) fn upgrade(&self) -> Result<(), StorageError> {
        if self.directory.is_of_earlier_format() {
            self.persist()?;
            self.directory.upgrade().map_err(fjall::Error::Io)?;
        }
        Ok(())
    }

    /// Has the engine write what one keyspace holds in memory to a table, ahead of meta. False: it
    /// holds nothing there.
    pub(crate) fn flush_ahead(&self, keyspace: Keyspace) -> Result<bool, StorageError> {
        let keyspaces = self.keyspaces();
        let committing = self.committing.lock();
        self.wait_for_log(*committing)?;
        Ok(keyspaces.of(keyspace).rotate_memtable()?)
    }

    pub(crate) fn write_tables_ahead(&self) -> Result<(), StorageError> {
        self.flush_ahead(Keyspace::Records)?;
        self.flush_ahead(Keyspace::Indexes)?;
        self.wait_for_tables(&self.keyspaces())
    }

    fn wait_for_log(&self, position: u64) -> Result<(), StorageError> {
        let mut log = self.log.lock();
        // Somebody may have read the position before another one had noted a later one.
        log.noted = log.noted.max(position);
        match &log.barrier {
            Some(barrier) => barrier(log.noted).map_err(|error| fjall::Error::Io(error).into()),
            None => Ok(()),
        }
    }

    fn wait_for_tables(&self, keyspaces: &Keyspaces) -> Result<(), StorageError> {
        let is_waiting = |keyspace: &fjall::Keyspace| keyspace.tree.sealed_memtable_count() > 0;
        while is_waiting(&keyspaces.records) || is_waiting(&keyspaces.indexes) {
            self.check_engine()?;
            thread::sleep(FLUSH_POLL);
        }
        Ok(())
    }

    /// The engine says so here if it has failed to write a table.
    pub(crate) fn check_engine(&self) -> Result<(), StorageError> {
        Ok(self.database.persist(PersistMode::Buffer)?)
    }

    fn write_meta_table(&self, keyspaces: &Keyspaces) -> Result<(), StorageError> {
        let tree = &keyspaces.meta.tree;
        let needless = self
            .database
            .supervisor
            .snapshot_tracker
            .get_seqno_safe_to_gc();
        let flushed = tree.flush(&tree.get_flush_lock(), needless);
        flushed.map_err(fjall::Error::from)?;
        if tree.l0_run_count() >= META_RUNS_MAX {
            let merged = tree.compact(Arc::new(Leveled::default()), needless);
            merged.map_err(fjall::Error::from)?;
        }
        Ok(())
    }
}

/// Whether nothing lies in memory that could be sealed.
fn is_empty(keyspaces: &Keyspaces) -> bool {
    let all = [&keyspaces.records, &keyspaces.indexes, &keyspaces.meta];
    all.iter()
        .all(|keyspace| keyspace.tree.active_memtable().is_empty())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::batch::Origin;
    use crate::keyspaces::Operation;
    use crate::{Store, StoreOptions};

    fn open(path: &Path) -> Store {
        Store::open(path, &StoreOptions::default()).unwrap()
    }

    /// One key of each keyspace says which round wrote it.
    fn write(store: &Store, round: u64) {
        let put = |keyspace| Operation {
            keyspace,
            key: vec![0, 0, 0, 9, 1].into(),
            value: Some(round.to_be_bytes().into()),
        };
        let operations = [Keyspace::Records, Keyspace::Indexes, Keyspace::Meta].map(put);
        let engine = store.engine();
        let origin = Origin {
            position: Some(round),
            ..Origin::default()
        };
        engine.write_at(operations.into(), origin).unwrap();
    }

    fn rounds(store: &Store) -> [Option<u64>; 3] {
        let keyspaces = store.engine().keyspaces();
        [Keyspace::Records, Keyspace::Indexes, Keyspace::Meta].map(|keyspace| {
            let found = keyspaces.of(keyspace).get([0, 0, 0, 9, 1]).unwrap();
            found.map(|round| u64::from_be_bytes(round[..].try_into().unwrap()))
        })
    }

    #[test]
    fn meta_is_never_ahead_of_records_and_indexes() {
        let directory = tempfile::tempdir().unwrap();
        let store = open(directory.path());
        write(&store, 1);
        store.persist().unwrap();
        assert_eq!(store.durable_position(), 1);
        write(&store, 2);
        let engine = store.engine();
        assert!(engine.flush_ahead(Keyspace::Records).unwrap());
        engine.wait_for_tables(&engine.keyspaces()).unwrap();
        write(&store, 3);
        assert_eq!(rounds(&store), [Some(3); 3]);
        drop(store);

        let store = open(directory.path());
        assert_eq!(rounds(&store), [Some(2), Some(1), Some(1)]);
        // The log brings it to one moment again, and numbers go on behind those of the tables.
        write(&store, 2);
        assert_eq!(rounds(&store), [Some(2); 3]);
        write(&store, 3);
        store.persist().unwrap();
        drop(store);
        assert_eq!(rounds(&open(directory.path())), [Some(3); 3]);
    }

    #[test]
    fn what_a_load_leaves_in_memory_goes_to_tables_once_it_is_quiet() {
        let directory = tempfile::tempdir().unwrap();
        let store = open(directory.path());
        let engine = store.engine();
        let mut operations = Vec::new();
        for number in 0..2 * QUIET_BYTES_MUCH / 4096 {
            operations.push(Operation {
                keyspace: Keyspace::Records,
                key: number.to_be_bytes().into(),
                value: Some([7; 4096][..].into()),
            });
        }
        let origin = Origin {
            position: Some(5),
            ..Origin::default()
        };
        engine.write_at(operations, origin).unwrap();
        let began = std::time::Instant::now();
        while store.durable_position() < 5 {
            assert!(began.elapsed() < Duration::from_secs(60));
            thread::sleep(FLUSH_POLL);
        }
        assert_eq!(unsealed_bytes(&engine.keyspaces()), 0);
    }

    #[test]
    fn the_tables_of_meta_are_merged_now_and_then() {
        let directory = tempfile::tempdir().unwrap();
        let store = open(directory.path());
        for round in 0..40 {
            write(&store, round);
            store.persist().unwrap();
        }
        let keyspaces = store.engine().keyspaces();
        let runs = keyspaces.meta.tree.l0_run_count();
        assert!(runs <= META_RUNS_MAX, "{runs} runs");
        assert_eq!(rounds(&store), [Some(39); 3]);
    }

    /// An arbiter writes nothing but meta.
    #[test]
    fn old_versions_of_meta_go_where_nothing_else_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let store = open(directory.path());
        for round in 0..20_000_u64 {
            let put = Operation {
                keyspace: Keyspace::Meta,
                key: vec![1].into(),
                value: Some(round.to_be_bytes().into()),
            };
            store.engine().write(vec![put]).unwrap();
            if round % 500 == 0 {
                store.persist().unwrap();
            }
        }
        store.persist().unwrap();
        let entries = store.engine().keyspaces().meta.approximate_len();
        assert!(entries < 5_000, "{entries} entries for one key");
    }
}
