//! Giving this shard a collection that other shards have.

use std::sync::Arc;

use banyan_configsvr::ConfigReader;
use banyan_execution::Interrupt;
use banyan_node::index_changes::align;
use banyan_replication::write::catalog_ops;
use banyan_storage::{CatalogChange, Namespace};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawArray, RawBson, RawDocument, RawDocumentBuf, rawdoc};

use super::errors::{bad_value, internal};
use super::state::ShardRole;

/// Makes a collection where it is not there yet, and its indexes these.
///
/// Where this shard owns a part of the collection, or is home to its database, changes of the indexes
/// reach it ([`super::commands`]): its list is the right one, and the one that was heard here may be
/// an older one.
pub async fn create_collection(
    role: &ShardRole,
    ns: &str,
    options: &RawDocument,
    indexes: &RawArray,
) -> Result<(), CommandError> {
    let namespace = Namespace::parse(ns).ok_or_else(|| internal("a namespace without a dot"))?;
    let mut create = rawdoc! { "create": namespace.collection() };
    for element in options.iter() {
        let (name, value) = element.map_err(bad_value)?;
        create.append(name, RawBson::from(value));
    }
    match role.local.command(namespace.database(), create).await {
        Ok(_) => {}
        Err(error) if error.code == ErrorCode::NamespaceExists => {
            if hears_of_changes(role, &namespace).await? {
                return Ok(());
            }
            align_options(role, &namespace, options).await?;
        }
        Err(error) => return Err(error),
    }
    let mut wanted: Vec<RawDocumentBuf> = Vec::new();
    for index in indexes {
        let index = index.map_err(bad_value)?;
        let index = index
            .as_document()
            .ok_or_else(|| bad_value("an index is no document"))?;
        wanted.push(index.to_owned());
    }
    let node = role.node();
    let term = node.replica.writable_term()?;
    let interrupt = Interrupt::new(Arc::default(), None);
    let _turn = role.index_changes.lock(ns).await;
    align(node, &namespace, &wanted, term, &interrupt).await
}

/// Makes the options of a collection these: they may have changed while this shard owned nothing of
/// it.
async fn align_options(
    role: &ShardRole,
    namespace: &Namespace,
    options: &RawDocument,
) -> Result<(), CommandError> {
    let replica = &role.node().replica;
    let term = replica.writable_term()?;
    let _locks = replica.locks.exclusive(&[namespace]).await;
    let Some(collection) = replica.store.catalog().find(namespace).cloned() else {
        return Ok(());
    };
    if *collection.options == *options {
        return Ok(());
    }
    let change = CatalogChange::SetOptions {
        id: collection.id,
        options: options.to_owned(),
    };
    catalog_ops::apply(replica, &[change], term).await.map(drop)
}

async fn hears_of_changes(role: &ShardRole, namespace: &Namespace) -> Result<bool, CommandError> {
    let identity = role.identified()?;
    let ns = namespace.as_str();
    role.refresh(ns).await?;
    let filter = role.collection(ns).filter();
    if filter.is_some_and(|filter| filter.table.owns_any(&identity.name)) {
        return Ok(true);
    }
    let body = rawdoc! {
        "find": "databases",
        "filter": { "_id": namespace.database(), "primary": &*identity.name },
        "limit": 1_i64,
        "singleBatch": true,
    };
    Ok(!identity.config.find(body).await?.is_empty())
}
