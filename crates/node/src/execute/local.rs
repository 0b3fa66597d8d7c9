//! Collections of the database `local` that are views of something else: the log as
//! `local.oplog.rs`, and the set's configuration as `local.system.replset`.

use std::collections::VecDeque;
use std::sync::Arc;

use banyan_storage::{CatalogChange, CollectionId};
use banyan_wire::{CommandError, ErrorCode};
use bson::{DateTime, RawDocument, RawDocumentBuf, Timestamp, cstr, rawdoc};

use crate::clock;
use crate::node::Node;
use crate::write::{Entry, Operation};

pub const OPLOG: &str = "oplog.rs";
pub const CONFIGURATION: &str = "system.replset";

pub type Documents = Box<dyn Iterator<Item = Result<RawDocumentBuf, CommandError>> + Send>;

/// The documents of such a collection. `None`: it is an ordinary one.
pub fn documents(
    node: &Arc<Node>,
    database: &str,
    collection: &str,
    reverse: bool,
) -> Option<Documents> {
    if database != "local" || !node.replication.is_replica_set() {
        return None;
    }
    match collection {
        OPLOG => Some(Box::new(Oplog::new(node.clone(), reverse))),
        CONFIGURATION => {
            let configuration = node.replication.config().map(|config| config.to_document());
            Some(Box::new(configuration.into_iter().map(Ok)))
        }
        _ => None,
    }
}

/// What `$collStats` tells of such a collection: its entries as they lie in the log.
pub fn stats(node: &Node, database: &str, collection: &str) -> Option<RawDocumentBuf> {
    if database != "local" || !node.replication.is_replica_set() {
        return None;
    }
    let long = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    match collection {
        OPLOG => {
            let status = node.group.status();
            let count = (status.applied.index + 1).saturating_sub(status.first_index.max(1));
            Some(rawdoc! {
                "size": long(directory_bytes(&node.info.dbpath.join("log"))),
                "count": long(count),
                "storageSize": long(directory_bytes(&node.info.dbpath.join("log"))),
                "capped": true,
                "maxSize": long(node.info.log_bytes_max),
                "nindexes": 0,
                "totalIndexSize": 0,
                "indexSizes": {},
            })
        }
        CONFIGURATION => {
            let configuration = node.replication.config().map(|config| config.to_document());
            let bytes = configuration
                .as_ref()
                .map_or(0, |config| config.as_bytes().len());
            Some(rawdoc! {
                "size": long(bytes as u64),
                "count": i64::from(configuration.is_some()),
                "capped": false,
            })
        }
        _ => None,
    }
}

fn directory_bytes(path: &std::path::Path) -> u64 {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.metadata().ok())
        .map(|metadata| metadata.len())
        .sum()
}

/// The names of such collections, with their options, for `listCollections`.
pub fn collections(node: &Node, database: &str) -> Vec<(&'static str, RawDocumentBuf)> {
    if database != "local" || !node.replication.is_replica_set() {
        return Vec::new();
    }
    let size = i64::try_from(node.info.log_bytes_max).unwrap_or(i64::MAX);
    let mut collections = vec![(OPLOG, rawdoc! { "capped": true, "size": size })];
    if node.replication.config().is_some() {
        collections.push((CONFIGURATION, RawDocumentBuf::new()));
    }
    collections
}

/// Entries are read from the log in pieces of this many.
const ENTRIES_PER_READ: u64 = 256;
const BYTES_PER_READ: u64 = 16 << 20;

/// The log in MongoDB's format: one document for each operation of each entry.
struct Oplog {
    node: Arc<Node>,
    reverse: bool,
    /// The entries that are still to be read: `next..end`.
    next: u64,
    end: u64,
    ready: VecDeque<RawDocumentBuf>,
    /// The time of the entry before, which the next one's has to exceed.
    latest: u64,
}

impl Oplog {
    fn new(node: Arc<Node>, reverse: bool) -> Oplog {
        let status = node.group.status();
        let (next, end) = (status.first_index.max(1), status.applied.index + 1);
        Oplog {
            node,
            reverse,
            next,
            end,
            ready: VecDeque::new(),
            latest: 0,
        }
    }

    fn read(&mut self) -> Result<(), CommandError> {
        let (from, to) = if self.reverse {
            let from = self.end.saturating_sub(ENTRIES_PER_READ).max(self.next);
            (from, std::mem::replace(&mut self.end, from))
        } else {
            (self.next, self.end.min(self.next + ENTRIES_PER_READ))
        };
        let mut documents = Vec::new();
        let mut at = from;
        while at < to {
            let entries = self
                .node
                .group
                .entries(at, BYTES_PER_READ)
                .map_err(unreadable)?;
            if entries.is_empty() {
                break;
            }
            for (position, bytes) in entries.into_iter().take_while(|(p, _)| p.index < to) {
                at = position.index + 1;
                if !bytes.is_empty() {
                    self.describe(position.term, &bytes, &mut documents)?;
                }
            }
        }
        if self.reverse {
            documents.reverse();
        } else {
            self.next = to.max(at);
        }
        self.ready.extend(documents);
        Ok(())
    }

    fn describe(
        &mut self,
        term: u64,
        bytes: &[u8],
        out: &mut Vec<RawDocumentBuf>,
    ) -> Result<(), CommandError> {
        let entry = Entry::decode(bytes).map_err(unreadable)?;
        self.latest = entry.header.first_time;
        for (position, operation) in entry.operations().enumerate() {
            let operation = operation.map_err(unreadable)?;
            let mut document = self.operation(&operation);
            let time = clock::from_bits(self.latest + position as u64);
            finish(&mut document, time, term, entry.wall_ms());
            out.push(document);
        }
        Ok(())
    }

    fn operation(&self, operation: &Operation<'_>) -> RawDocumentBuf {
        match operation {
            Operation::Insert {
                collection,
                document,
                ..
            } => self.change("i", *collection, document, None),
            Operation::Update {
                collection, after, ..
            } => self.change("u", *collection, after, id_of(after)),
            Operation::Delete {
                collection, before, ..
            } => {
                let id = id_of(before).unwrap_or_default();
                self.change("d", *collection, &id, None)
            }
            Operation::Catalog(change, _) => self.command(change),
            Operation::DropDatabase { name } => {
                rawdoc! { "op": "c", "ns": format!("{name}.$cmd"), "o": { "dropDatabase": 1 } }
            }
            Operation::SetConfig { document } => rawdoc! {
                "op": "n", "ns": "",
                "o": { "msg": "Reconfig set", "version": document.get_i32("version").unwrap_or(0) },
            },
            Operation::Noop { document } => {
                rawdoc! { "op": "n", "ns": "", "o": RawDocument::to_owned(document) }
            }
        }
    }

    fn change(
        &self,
        op: &str,
        collection: CollectionId,
        o: &RawDocument,
        o2: Option<RawDocumentBuf>,
    ) -> RawDocumentBuf {
        let mut document = rawdoc! { "op": op };
        let catalog = self.node.store.catalog();
        // A dropped collection has no name any more.
        if let Some(collection) = catalog.by_id(collection) {
            let uuid = crate::params::uuid(&collection.uuid);
            document.append(cstr!("ns"), collection.namespace.as_str());
            document.append(cstr!("ui"), uuid);
        } else {
            document.append(cstr!("ns"), "");
        }
        document.append(cstr!("o"), o);
        if let Some(o2) = o2 {
            document.append(cstr!("o2"), o2);
        }
        document
    }

    fn command(&self, change: &CatalogChange) -> RawDocumentBuf {
        let catalog = self.node.store.catalog();
        let known = catalog
            .by_id(change.collection())
            .map(|known| known.namespace.clone());
        let namespace = match change {
            CatalogChange::CreateCollection { namespace, .. } => Some(namespace.clone()),
            _ => known,
        };
        let database = namespace
            .as_ref()
            .map_or("", |namespace| namespace.database());
        let collection = namespace
            .as_ref()
            .map_or("", |namespace| namespace.collection());
        let o = match change {
            CatalogChange::CreateCollection { .. } => rawdoc! { "create": collection },
            CatalogChange::DropCollection { .. } => rawdoc! { "drop": collection },
            CatalogChange::RenameCollection { to, .. } => {
                rawdoc! { "renameCollection": "", "to": to.as_str() }
            }
            CatalogChange::SetOptions { options, .. } => {
                rawdoc! { "collMod": collection, "options": options.clone() }
            }
            CatalogChange::CreateIndex { index, .. } => {
                rawdoc! { "createIndexes": collection, "spec": index.spec.clone() }
            }
            CatalogChange::DropIndex { .. } => rawdoc! { "dropIndexes": collection },
            CatalogChange::SetIndexSpec { index, .. } => {
                rawdoc! { "collMod": collection, "index": index.spec.clone() }
            }
        };
        rawdoc! { "op": "c", "ns": format!("{database}.$cmd"), "o": o }
    }
}

fn finish(document: &mut RawDocumentBuf, time: Timestamp, term: u64, wall_ms: i64) {
    document.append(cstr!("ts"), time);
    document.append(cstr!("t"), i64::try_from(term).unwrap_or(i64::MAX));
    document.append(cstr!("v"), 2_i64);
    document.append(cstr!("wall"), DateTime::from_millis(wall_ms));
}

fn id_of(document: &RawDocument) -> Option<RawDocumentBuf> {
    let id = document.get("_id").ok().flatten()?;
    Some(rawdoc! { "_id": id })
}

fn unreadable(error: impl std::fmt::Display) -> CommandError {
    CommandError::new(
        ErrorCode::InternalError,
        format!("cannot read the log: {error}"),
    )
}

impl Iterator for Oplog {
    type Item = Result<RawDocumentBuf, CommandError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(document) = self.ready.pop_front() {
                return Some(Ok(document));
            }
            if self.next >= self.end {
                return None;
            }
            if let Err(error) = self.read() {
                self.end = self.next;
                return Some(Err(error));
            }
        }
    }
}
