//! Collections that are views of something else: those of the database `local` (the log as
//! `local.oplog.rs`, the set's configuration as `local.system.replset`), and by way of here all others.

use std::sync::Arc;

use banyan_execution::Documents;
use banyan_replication::oplog::view::{Oplog, Order};
use banyan_replication::virtual_collections::{CONFIGURATION, OPLOG, SESSIONS, TRANSACTIONS};
use banyan_storage::Namespace;
use banyan_wire::CommandError;
use bson::{RawDocumentBuf, rawdoc};

use super::{config, profile};
use crate::node::Node;
use crate::profiler::PROFILE;

/// Whether it is the log of a set's member.
pub fn is_oplog(node: &Node, namespace: &Namespace) -> bool {
    is_log(node, namespace.database(), namespace.collection())
}

fn is_log(node: &Node, database: &str, collection: &str) -> bool {
    database == "local" && collection == OPLOG && node.replication.is_replica_set()
}

/// Whether a collection may be one of those, or is certainly stored.
pub fn may_be_virtual(database: &str, collection: &str) -> bool {
    matches!(database, "local" | "config") || collection == PROFILE
}

/// Whether such a collection can be tailed.
pub fn is_tailable(node: &Node, database: &str, collection: &str) -> bool {
    is_log(node, database, collection) || profile::exists(node, database, collection)
}

/// The documents of such a collection. `None`: it is an ordinary one.
pub fn documents(
    node: &Arc<Node>,
    database: &str,
    collection: &str,
    order: &Order,
) -> Result<Option<Documents>, CommandError> {
    if let Some(kept) =
        profile::documents(node, database, collection, order.reverse, order.tailable)
    {
        return Ok(Some(kept));
    }
    if database == "config" {
        return Ok(config::documents(node, database, collection));
    }
    if database != "local" || !node.replication.is_replica_set() {
        return Ok(None);
    }
    Ok(match collection {
        OPLOG => Some(Box::new(Oplog::new(&node.log, order)?)),
        CONFIGURATION => {
            let configuration = node.replication.config().map(|config| config.to_document());
            Some(Box::new(configuration.into_iter().map(Ok)))
        }
        _ => None,
    })
}

/// What `$collStats` tells of such a collection: its entries as they lie in the log.
pub fn stats(node: &Node, database: &str, collection: &str) -> Option<RawDocumentBuf> {
    if let Some(stats) = profile::stats(node, database, collection) {
        return Some(stats);
    }
    if database != "local" || !node.replication.is_replica_set() {
        return None;
    }
    let long = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    match collection {
        OPLOG => {
            let status = node.replica.group.status();
            let count = (status.applied.index + 1).saturating_sub(status.first_index.max(1));
            Some(rawdoc! {
                "size": long(directory_bytes(&node.info.dbpath.join("log"))),
                "count": long(count),
                "storageSize": long(directory_bytes(&node.info.dbpath.join("log"))),
                "capped": true,
                "maxSize": long(node.replication.oplog_limits().bytes_max),
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
    let mut collections: Vec<_> = profile::listed(node, database).into_iter().collect();
    if !node.replication.is_replica_set() {
        return collections;
    }
    if database == "config" {
        let names = [SESSIONS, TRANSACTIONS];
        collections.extend(names.map(|name| (name, RawDocumentBuf::new())));
    }
    if database != "local" {
        return collections;
    }
    let size = i64::try_from(node.replication.oplog_limits().bytes_max).unwrap_or(i64::MAX);
    collections.push((OPLOG, rawdoc! { "capped": true, "size": size }));
    if node.replication.config().is_some() {
        collections.push((CONFIGURATION, RawDocumentBuf::new()));
    }
    collections
}
