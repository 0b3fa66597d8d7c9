//! Sorted keys written straight into tables of the engine, past its memory.
//!
//! Only an index that is not unique is loaded so: which record holds a key of a unique one is
//! decided key by key. The tables of one *window* are written while writes go on:
//!
//! 1. The window opens: the set of the records touched so far is frozen. The tables get no key of
//!    these records, and a sequence number that the engine's tables have reached already: what lies in
//!    memory lies over them.
//! 2. Threads write the tables, each a part of the window's keys. Who touches a record for the first
//!    time meanwhile notes the keys that the record has had: the tables may hold them.
//! 3. With the commit lock held the window closes. The engine takes the tables up, and what the
//!    index held of the noted keys is written again over them: an entry, or that there is none.
//!
//! A crash between the two steps of 3 leaves keys that nobody has, and any crash may take writes whose
//! keys the tables hold. Therefore, whoever opens a store with a build in it removes what the build has
//! put, and the load begins anew. Within one process a load that was stopped goes on behind the last
//! window.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use banyan_crash::{Point, pass};
use fjall::AbstractTree;
use lsm_tree::compaction::Leveled;
use lsm_tree::file::TABLES_FOLDER;
use lsm_tree::{InternalValue, Slice, Table, ValueType};

use super::building::{Frontier, OpenWindow};
use super::load::{Inserted, Load, LoadPhase, Put};
use super::runs::{Merge, Run, cuts, damaged, split};
use super::writes::Pending;
use crate::StorageError;
use crate::batch::Batch;
use crate::index::Index;
use crate::keys::ID_BYTES;
use crate::keyspaces::{Keyspace, Keyspaces, Operation};

/// Between two looks at whether to go on.
const SLICE_ENTRIES: usize = 512;
/// A build waits while there are more unflushed memtables, or more runs, than this: long before other
/// writers do.
const SEALED_TABLES_MAX: usize = 1;
const RUNS_MAX: usize = 12;
const PRESSURE_PAUSE: Duration = Duration::from_millis(2);

/// A window's keys in one part of the index.
struct Part {
    tables: Unregistered,
    key_bytes: i64,
    is_complete: bool,
}

/// Tables that are gone again unless the engine has taken them up.
struct Unregistered {
    keyspaces: Arc<Keyspaces>,
    tables: Vec<Table>,
}

impl Drop for Unregistered {
    fn drop(&mut self) {
        let folder = self.keyspaces.indexes.path().join(TABLES_FOLDER);
        for table in self.tables.drain(..) {
            let path = folder.join(table.id().to_string());
            drop(table);
            // The engine removes what it does not know when it is opened.
            let _ = fs::remove_file(path);
        }
    }
}

impl Load<'_> {
    /// Puts what was sorted into one index. False: the load is to end.
    pub(super) fn write_tables(
        &self,
        at: usize,
        runs: &[Run],
        inserted: &Inserted,
    ) -> Result<bool, StorageError> {
        let index = &self.build.indexes[at];
        let mut from = match self.build.building.frontier(index.id) {
            None => None,
            Some(Frontier::Key(key)) => Some(key),
            Some(Frontier::End) => return Ok(true),
        };
        if self.build.building.is_cleared() && !self.flush_removals(index, inserted)? {
            return Ok(false);
        }
        let entries = runs.iter().map(Run::entries).sum::<u64>();
        let workers = self.workers(entries);
        let each = (entries / workers as u64 + 1).min(self.host.part_entries());
        let cuts = cuts(runs, from.as_deref(), each);
        // A window ends at every so many cuts, the last one at the end.
        let mut windows = cuts.chunks(workers);
        loop {
            let window = windows.next().unwrap_or_default();
            let end = window.get(workers - 1);
            let inner = &window[..window.len().min(workers - 1)];
            if !self.wait_for_room(inserted)? {
                return Ok(false);
            }
            let bounds = Bounds {
                from: from.as_deref(),
                inner,
                end: end.map(Vec::as_slice),
            };
            match self.write_window(at, runs, &bounds, inserted)? {
                Put::BuildGone => return Ok(false),
                Put::IndexGone => return Ok(true),
                Put::Done => {}
            }
            pass(Point::IndexPart);
            let frontier = match end {
                Some(end) => Frontier::Key(end.clone()),
                None => Frontier::End,
            };
            self.build.building.set_frontier(index.id, frontier);
            match end {
                Some(end) => from = Some(end.clone()),
                None => return Ok(true),
            }
        }
    }

    /// The engine looks into its memory first: removals there would hide keys that come past it. One
    /// more is written, so that the tables that hold it have come to a number above theirs.
    fn flush_removals(&self, index: &Index, inserted: &Inserted) -> Result<bool, StorageError> {
        let engine = self.store.engine();
        let indexes = &engine.keyspaces().indexes;
        engine.write(vec![Operation {
            keyspace: Keyspace::Indexes,
            key: Slice::from(index.id.to_be_bytes()),
            value: None,
        }])?;
        engine.flush_ahead(Keyspace::Indexes)?;
        while indexes.tree.sealed_memtable_count() > 0 {
            if !self.goes_on(LoadPhase::Inserting, 0, inserted.total) {
                return Ok(false);
            }
            std::thread::sleep(PRESSURE_PAUSE);
        }
        let reached = indexes.tree.get_highest_persisted_seqno();
        self.build
            .building
            .removals_are_flushed(reached.unwrap_or_default());
        Ok(true)
    }

    /// Waits until the engine is level with what it has been given.
    pub(super) fn wait_for_room(&self, inserted: &Inserted) -> Result<bool, StorageError> {
        let engine = self.store.engine();
        loop {
            let done = inserted.done.load(Ordering::Relaxed);
            if !self.goes_on(LoadPhase::Inserting, done, inserted.total) {
                return Ok(false);
            }
            let tree = &engine.keyspaces().indexes.tree;
            if tree.l0_run_count() > RUNS_MAX {
                // Nothing else sees to tables that come past the engine's memory.
                let strategy = Arc::new(Leveled::default());
                tree.compact(strategy, 0).map_err(fjall::Error::from)?;
            }
            if tree.sealed_memtable_count() <= SEALED_TABLES_MAX && tree.l0_run_count() <= RUNS_MAX
            {
                return Ok(true);
            }
            std::thread::sleep(PRESSURE_PAUSE);
        }
    }

    fn write_window(
        &self,
        at: usize,
        runs: &[Run],
        bounds: &Bounds<'_>,
        inserted: &Inserted,
    ) -> Result<Put, StorageError> {
        let engine = self.store.engine();
        // An import may replace them. The build is gone then.
        let keyspaces = engine.keyspaces();
        let index = &self.build.indexes[at];
        let mut opened = None;
        let put = self.commit_if_there(at, |_, _| {
            let reached = keyspaces.indexes.tree.get_highest_persisted_seqno();
            let seqno = reached
                .unwrap_or_default()
                .max(self.build.building.removals_until());
            let window = self.build.building.open_window(index.id);
            opened = Some(Opened { window, seqno });
            Ok(Batch::new())
        })?;
        let (Put::Done, Some(opened)) = (&put, opened) else {
            return Ok(put);
        };
        let next = AtomicUsize::new(0);
        let write = |_| {
            let mut parts = Vec::new();
            while let Some(part) = bounds.part(next.fetch_add(1, Ordering::Relaxed)) {
                let merge = Merge::new(runs, part.0, part.1).map_err(fjall::Error::Io)?;
                let written = self.write_part(index, merge, &opened, &keyspaces, inserted)?;
                parts.push((part.0.map(<[u8]>::to_vec), written));
            }
            Ok(parts)
        };
        let written = self.on_all(bounds.inner.len() + 1, &write)?;
        let mut parts: Vec<_> = written.into_iter().flatten().collect();
        parts.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        if !parts.iter().all(|(_, part)| part.is_complete) {
            return Ok(Put::BuildGone);
        }
        self.commit_if_there(at, |index, mut batch| {
            let mut key_bytes: i64 = parts.iter().map(|(_, part)| part.key_bytes).sum();
            // Of before the tables.
            let view = engine.snapshot();
            let mut pending = Pending::new(&view, &keyspaces.indexes);
            for (key, record) in opened.window.close() {
                let form = index.entry_form();
                let place = form.with_key(index.id, &key, &record, <[u8]>::to_vec);
                if bounds.contain(&place) {
                    key_bytes -= form.counted_bytes(&key, &record);
                    pending.repeat(place)?;
                }
            }
            let tables = parts.iter_mut().map(|(_, part)| &mut part.tables.tables);
            let tables: Vec<Table> = tables.flat_map(std::mem::take).collect();
            if !tables.is_empty() {
                let tree = &keyspaces.indexes.tree;
                let registered = tree.register_tables(&tables, None, None, &[], 0);
                registered.map_err(fjall::Error::from)?;
            }
            pass(Point::IndexTables);
            pending.write(&mut batch);
            batch.index_tally(self.address.collection, index).key_bytes += key_bytes;
            Ok(batch)
        })
    }

    /// Writes the keys that nobody has touched.
    fn write_part(
        &self,
        index: &Index,
        mut merge: Merge<'_>,
        opened: &Opened<'_>,
        keyspaces: &Arc<Keyspaces>,
        inserted: &Inserted,
    ) -> Result<Part, StorageError> {
        let form = index.entry_form();
        let (mut key_bytes, mut is_complete, mut slice) = (0, true, 0);
        let mut next = || -> Result<Option<InternalValue>, lsm_tree::Error> {
            loop {
                if slice == SLICE_ENTRIES {
                    let count = slice as u64;
                    let done = inserted.done.fetch_add(count, Ordering::Relaxed) + count;
                    slice = 0;
                    if !self.goes_on(LoadPhase::Inserting, done, inserted.total) {
                        is_complete = false;
                        return Ok(None);
                    }
                }
                let Some(entry) = merge.next()? else {
                    return Ok(None);
                };
                slice += 1;
                let (key, types) = split(entry).ok_or_else(damaged)?;
                let (end, record) = index.record_ids.split(key).ok_or_else(damaged)?;
                if opened.window.touched.contains(&record) {
                    continue;
                }
                let fields = key.get(ID_BYTES..end).ok_or_else(damaged)?;
                key_bytes += form.counted_bytes(fields, &record);
                return Ok(Some(InternalValue::from_components(
                    Slice::from(key),
                    Slice::from(types),
                    opened.seqno,
                    ValueType::Value,
                )));
            }
        };
        let entries = std::iter::from_fn(|| next().transpose());
        let written = keyspaces.indexes.tree.flush_to_tables(entries);
        let written = written.map_err(fjall::Error::from)?;
        Ok(Part {
            tables: Unregistered {
                keyspaces: keyspaces.clone(),
                tables: written.map(|(tables, _)| tables).unwrap_or_default(),
            },
            key_bytes,
            is_complete,
        })
    }
}

struct Opened<'a> {
    window: OpenWindow<'a>,
    seqno: u64,
}

/// Where a window begins, is divided and ends, in keys of the engine.
struct Bounds<'a> {
    from: Option<&'a [u8]>,
    inner: &'a [Vec<u8>],
    end: Option<&'a [u8]>,
}

/// Where a part begins and ends, where something of the window lies before or behind it.
type PartBounds<'b> = (Option<&'b [u8]>, Option<&'b [u8]>);

impl Bounds<'_> {
    /// Where a part begins and ends.
    fn part(&self, number: usize) -> Option<PartBounds<'_>> {
        let start = match number.checked_sub(1) {
            None => self.from,
            Some(before) => Some(&self.inner.get(before)?[..]),
        };
        let end = self.inner.get(number).map(Vec::as_slice);
        Some((start, end.or(self.end)))
    }

    fn contain(&self, key: &[u8]) -> bool {
        self.from.is_none_or(|from| key >= from) && self.end.is_none_or(|end| key < end)
    }
}
