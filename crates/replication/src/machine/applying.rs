//! Committed entries on their way into the state.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::Instant;

use banyan_consensus::Committed;
use banyan_storage::{Batch, CatalogChange, CollectionId, IndexDefinition};
use bytes::Bytes;

use super::ahead;
use super::effects::EffectError;
use super::watched::changed_collection;
use super::{APPLIED, Applied, CONFIGURATION, LogPoint, Machine, Prepared};
use crate::entry::{Entry, Header, Operation, Tally};
use crate::op_observer::Change;
use crate::sessions::{SessionId, SessionRecord, meta_key};

impl Machine {
    pub(super) fn take(&self, entries: Vec<Committed<Prepared>>) -> Result<(), EffectError> {
        let before = self.last_applied();
        let mut applying = Applying {
            machine: self,
            batch: Batch::new(),
            applied: before,
            sessions: HashMap::new(),
            done: Vec::new(),
            watched: self.watched_collections(),
            telling: None,
            point: None,
        };
        let started = Instant::now();
        let mut operations = 0;
        let mut tally = Tally::default();
        let mut entries = entries.into_iter().peekable();
        let mut run = Vec::new();
        while let Some(entry) = entries.next() {
            if entry.prepared.is_none() {
                operations +=
                    Header::read(&entry.data).map_or(0, |header| header.operations.into());
                if !entry.data.is_empty() && entry.position.index > before.position.index {
                    tally += Entry::decode(&entry.data)?.tally()?;
                }
            }
            if applying.can_wait(&entry)? {
                run.push(entry);
                if entries.peek().is_some() {
                    continue;
                }
                applying.run(std::mem::take(&mut run))?;
            } else {
                applying.run(std::mem::take(&mut run))?;
                applying.entry(entry)?;
            }
        }
        applying.forget_sessions()?;
        applying.commit()?;
        // Entries of others, as MongoDB counts them.
        if operations > 0 {
            self.counters.note(operations, tally, started.elapsed());
        }
        Ok(())
    }

    fn notify(&self, data: &[u8]) -> Result<(), EffectError> {
        let observer = self.op_observer.read();
        let Some(observer) = &*observer else {
            return Ok(());
        };
        let catalog = self.store.catalog();
        for operation in Entry::decode(data)?.operations() {
            let operation = operation?;
            let (id, change) = match &operation {
                Operation::Insert {
                    collection,
                    document,
                    ..
                } => (*collection, Change::Insert { document }),
                Operation::Update {
                    collection,
                    before,
                    after,
                    ..
                } => (*collection, Change::Update { before, after }),
                Operation::Delete {
                    collection, before, ..
                } => (*collection, Change::Delete { before }),
                Operation::Catalog(..)
                | Operation::DropDatabase { .. }
                | Operation::SetConfig { .. }
                | Operation::Noop { .. } => continue,
            };
            if let Some(collection) = catalog.by_id(id) {
                observer(&collection.namespace, change);
            }
        }
        Ok(())
    }
}

/// Entries on their way into one batch.
pub(super) struct Applying<'a> {
    pub(super) machine: &'a Machine,
    pub(super) batch: Batch,
    /// As of the last entry that is in the batch.
    pub(super) applied: Applied,
    pub(super) sessions: HashMap<SessionId, SessionRecord>,
    /// Of our own proposals: what listeners are told, and what is released, after the commit.
    done: Vec<(Bytes, Prepared)>,
    /// The collections whose changes somebody is told of at once, and the places of those who are.
    watched: Vec<(CollectionId, usize)>,
    /// The entry, the last in the batch, that changes one of them.
    telling: Option<(CollectionId, Bytes)>,
    /// What the last entry in the batch is.
    point: Option<LogPoint>,
}

impl Applying<'_> {
    /// Whether an entry has to be computed and does not change what others are computed
    /// against.
    fn can_wait(&self, committed: &Committed<Prepared>) -> Result<bool, EffectError> {
        let is_worked_out = committed
            .prepared
            .as_ref()
            .is_some_and(|prepared| !prepared.batch.is_empty());
        if is_worked_out
            || committed.data.is_empty()
            || committed.position.index <= self.applied.position.index
            || self.machine.dataless.load(Ordering::Acquire)
        {
            return Ok(false);
        }
        let entry = Entry::decode(&committed.data)?;
        Ok(!changes_definitions(&entry)?
            && LogPoint::of(&entry).is_none()
            && self.watched_by(&entry).is_none())
    }

    /// Entries whose effects can be computed at once.
    fn run(&mut self, entries: Vec<Committed<Prepared>>) -> Result<(), EffectError> {
        if entries.is_empty() {
            return Ok(());
        }
        let data: Vec<&[u8]> = entries.iter().map(|entry| &entry.data[..]).collect();
        let worked_out = ahead::work_out(&self.machine.store.catalog(), &data)?;
        self.batch.append(worked_out);
        for committed in entries {
            let entry = Entry::decode(&committed.data)?;
            self.applied = Applied {
                position: committed.position,
                time: entry.header.time(),
                wall_ms: entry.wall_ms(),
            };
            self.sessions(&entry)?;
            let prepared = committed.prepared.map(|prepared| (Bytes::new(), prepared));
            self.done.extend(prepared);
        }
        Ok(())
    }

    /// What an arbiter does with an entry.
    fn witness(&mut self, entry: &Entry<'_>, next: Applied) -> Result<(), EffectError> {
        let mut configured = false;
        for operation in entry.operations() {
            if let Operation::SetConfig { document } = operation? {
                self.batch.put_meta(CONFIGURATION, document.as_bytes());
                configured = true;
            }
        }
        self.applied = next;
        if configured {
            self.commit()?;
            self.machine.configuration_changed()?;
        }
        Ok(())
    }

    fn entry(&mut self, committed: Committed<Prepared>) -> Result<(), EffectError> {
        // The log may begin before the state's position.
        if committed.position.index <= self.applied.position.index {
            return Ok(());
        }
        if committed.data.is_empty() {
            self.applied.position = committed.position;
            return Ok(());
        }
        let entry = Entry::decode(&committed.data)?;
        let next = Applied {
            position: committed.position,
            time: entry.header.time(),
            wall_ms: entry.wall_ms(),
        };
        let is_worked_out = committed
            .prepared
            .as_ref()
            .is_some_and(|p| !p.batch.is_empty());
        if self.machine.dataless.load(Ordering::Acquire) {
            return self.witness(&entry, next);
        }
        if !is_worked_out && changes_definitions(&entry)? {
            // What follows is computed against the catalog as this leaves it.
            self.commit()?;
            self.definitions(&entry, next.position.index)?;
            self.applied = next;
            self.commit()?;
            let watched = self.machine.watched_collections();
            self.machine.tell_of_lost(&self.watched, &watched);
            self.watched = watched;
            self.machine.tell_of_definitions();
            if entry
                .operations()
                .any(|operation| matches!(operation, Ok(Operation::SetConfig { .. })))
            {
                self.machine.configuration_changed()?;
            }
            return Ok(());
        }
        if let Some(point) = LogPoint::of(&entry) {
            self.applied = next;
            let prepared = committed.prepared.map(|prepared| (Bytes::new(), prepared));
            self.done.extend(prepared);
            self.point = Some(point);
            return self.commit();
        }
        if let Some(collection) = self.watched_by(&entry) {
            let data = &committed.data;
            return self.watched_entry(&entry, collection, next, committed.prepared, data);
        }
        self.applied = next;
        if let Some(mut prepared) = committed.prepared {
            self.batch.append(std::mem::take(&mut prepared.batch));
            self.done.push((committed.data.clone(), prepared));
        }
        self.sessions(&entry)
    }

    fn definitions(&mut self, entry: &Entry<'_>, index: u64) -> Result<(), EffectError> {
        let id_indexes_only = self.machine.id_indexes_only.load(Ordering::Acquire);
        for operation in entry.operations() {
            match operation? {
                Operation::Catalog(CatalogChange::CreateIndex { index, .. }, _)
                    if id_indexes_only && !names_id_index(&index) => {}
                Operation::Catalog(CatalogChange::StartIndexBuild { .. }, _) if id_indexes_only => {
                }
                Operation::Catalog(mut change, _) => {
                    if let CatalogChange::CreateCollection { indexes, .. } = &mut change
                        && id_indexes_only
                    {
                        indexes.retain(names_id_index);
                    }
                    let mut names = self.machine.names.write();
                    names.note(&mut self.batch, index, &change);
                    let log_begins = self.machine.log_begins.load(Ordering::Relaxed);
                    names.forget_before(&mut self.batch, log_begins);
                    drop(names);
                    self.batch.change_catalog(change);
                }
                Operation::SetConfig { document } => {
                    self.batch.put_meta(CONFIGURATION, document.as_bytes());
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn commit(&mut self) -> Result<(), EffectError> {
        for (session, record) in &self.sessions {
            self.batch.put_meta(&meta_key(session), &record.encode());
        }
        self.batch.put_meta(APPLIED, &self.applied.encode());
        self.batch.set_position(self.applied.position.index);
        self.machine.store.commit(std::mem::take(&mut self.batch))?;
        // Before latches open: whoever holds a session's latch finds its number here or its record.
        self.machine.latest_numbers.note(self.sessions.iter());
        self.sessions.clear();
        if let Some((collection, data)) = self.telling.take() {
            let watched = self.machine.watched.read();
            for (_, place) in self.watched.iter().filter(|(id, _)| *id == collection) {
                if let Some(watched) = watched.get(*place) {
                    watched.tell_of(&data)?;
                }
            }
        }
        // Whoever waits for the point's time finds the snapshot that was kept at it.
        if let Some(point) = self.point.take() {
            self.machine.tell_of_point(&point);
        }
        *self.machine.applied.lock() = self.applied;
        self.machine.publish(self.applied);
        for (data, prepared) in self.done.drain(..) {
            if !data.is_empty() {
                self.machine.notify(&data)?;
            }
            drop(prepared);
        }
        Ok(())
    }

    /// The watched collection that an entry changes documents of.
    fn watched_by(&self, entry: &Entry<'_>) -> Option<CollectionId> {
        if self.watched.is_empty() {
            return None;
        }
        let changed = changed_collection(entry)?;
        let mut watched = self.watched.iter();
        watched.any(|(id, _)| *id == changed).then_some(changed)
    }

    /// Commits an entry with all before it. It is told of before anybody who waits for its time
    /// goes on, and before anything else is applied.
    fn watched_entry(
        &mut self,
        entry: &Entry<'_>,
        collection: CollectionId,
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
        self.telling = Some((collection, data.clone()));
        self.sessions(entry)?;
        self.commit()
    }
}

fn names_id_index(definition: &IndexDefinition) -> bool {
    definition
        .spec
        .get_str("name")
        .is_ok_and(|name| name == "_id_")
}

fn changes_definitions(entry: &Entry<'_>) -> Result<bool, EffectError> {
    // Operations on definitions and on documents do not share an entry.
    let first = entry.operations().next().transpose()?;
    Ok(matches!(
        first,
        Some(Operation::Catalog(..) | Operation::DropDatabase { .. } | Operation::SetConfig { .. })
    ))
}
