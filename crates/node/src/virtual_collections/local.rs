//! Collections of the database `local` that are views of something else: the log as
//! `local.oplog.rs`, and the set's configuration as `local.system.replset`.

use std::sync::Arc;

use banyan_execution::Documents;
use banyan_replication::oplog::view::{Oplog, Order};
use banyan_replication::virtual_collections::{CONFIGURATION, OPLOG, SESSIONS, TRANSACTIONS};
use banyan_storage::Namespace;
use banyan_wire::CommandError;
use bson::{RawDocumentBuf, rawdoc};

use super::config;
use crate::node::Node;

/// Whether it is the log of a set's member.
pub fn is_oplog(node: &Node, namespace: &Namespace) -> bool {
    is_tailable(node, namespace.database(), namespace.collection())
}

/// Whether such a collection can be tailed.
pub fn is_tailable(node: &Node, database: &str, collection: &str) -> bool {
    database == "local" && collection == OPLOG && node.replication.is_replica_set()
}

/// The documents of such a collection. `None`: it is an ordinary one.
pub fn documents(
    node: &Arc<Node>,
    database: &str,
    collection: &str,
    order: &Order,
) -> Result<Option<Documents>, CommandError> {
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
    if database == "config" && node.replication.is_replica_set() {
        let names = [SESSIONS, TRANSACTIONS];
        return names.map(|name| (name, RawDocumentBuf::new())).into();
    }
    if database != "local" || !node.replication.is_replica_set() {
        return Vec::new();
    }
    let size = i64::try_from(node.replication.oplog_limits().bytes_max).unwrap_or(i64::MAX);
    let mut collections = vec![(OPLOG, rawdoc! { "capped": true, "size": size })];
    if node.replication.config().is_some() {
        collections.push((CONFIGURATION, RawDocumentBuf::new()));
    }
    collections
}
