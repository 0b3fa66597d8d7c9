//! Changes of a collection's list of indexes, as steps that a cluster can take one by one.
//!
//! A member on its own plans and applies a change under one lock
//! ([`crate::commands::create_indexes`] and its neighbours). In a cluster one shard plans it: what
//! the list would be afterwards ([`crate::index_plans`]). Then every shard makes its own list that
//! one.

use std::sync::Arc;

use banyan_document::time_series::visible_name;
use banyan_execution::Interrupt;
use banyan_replication::write::catalog_ops;
use banyan_replication::write::shard_rules::Versions;
use banyan_storage::{CatalogChange, Collection, Index, IndexDefinition, Namespace};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawDocument, RawDocumentBuf, cstr};

use crate::commands::clustered::EXPIRE;
use crate::commands::index_expiry;
use crate::context::CommandContext;
use crate::index_builds::{self, Begun};
use crate::node::Node;
use crate::params;

/// The specifications of a collection's indexes, with those that are being built.
pub fn list(collection: &Collection) -> Vec<RawDocumentBuf> {
    let indexes = collection.indexes.iter();
    let indexes = indexes.chain(collection.building_indexes());
    indexes.map(|index| index.spec.clone()).collect()
}

/// Makes the collection's indexes these: what is missing is built first, then what is not among them
/// is dropped, in one entry. The index on `_id` stays whatever the list says.
pub async fn align(
    node: &Arc<Node>,
    namespace: &Namespace,
    wanted: &[RawDocumentBuf],
    term: u64,
    interrupt: &Interrupt,
) -> Result<(), CommandError> {
    loop {
        let builds = next_step(node, namespace, wanted, term).await?;
        if builds.is_empty() {
            return Ok(());
        }
        for begun in &builds {
            node.index_builds.wait(node, begun, interrupt).await?;
        }
    }
}

/// Starts the builds that are missing, or makes the other changes if none is. What is to be waited
/// for: nothing, once the list is as it is wanted.
async fn next_step(
    node: &Arc<Node>,
    namespace: &Namespace,
    wanted: &[RawDocumentBuf],
    term: u64,
) -> Result<Vec<Begun>, CommandError> {
    let _locks = node.replica.locks.exclusive_giving_way(&[namespace]).await;
    let catalog = node.replica.store.catalog();
    let collection = catalog.find(namespace).ok_or_else(|| missing(namespace))?;
    let is_wanted = |index: &Arc<Index>| wanted.iter().any(|spec| is_same(spec, &index.spec));
    let (joined, unwanted): (Vec<_>, Vec<_>) = collection
        .builds
        .iter()
        .cloned()
        .partition(|build| build.is_committed || build.indexes.iter().all(is_wanted));
    if let Some(first) = unwanted.first() {
        let error = index_builds::aborted(&first.id, "the indexes of the collection changed");
        index_builds::abort_latched(node, collection, &unwanted, error, &[], term).await?;
    }
    let mut begun: Vec<Begun> = joined
        .iter()
        .map(|build| Begun::joined(collection, build))
        .collect();
    let known = |spec: &RawDocument| {
        let mut indexes = collection.indexes.iter();
        let mut building = joined.iter().flat_map(|build| &build.indexes);
        indexes.any(|index| index.is_id() && index.name == name(spec) || is_same(spec, &index.spec))
            || building.any(|index| is_same(spec, &index.spec))
    };
    let fresh: Vec<RawDocumentBuf> = wanted.iter().filter(|spec| !known(spec)).cloned().collect();
    if !fresh.is_empty() {
        begun.extend(index_builds::start(node, collection, &fresh, None, term).await?);
    }
    if !begun.is_empty() {
        return Ok(begun);
    }
    let changes = removals(collection, wanted);
    if !changes.is_empty() {
        catalog_ops::apply(&node.replica, &changes, term).await?;
    }
    Ok(Vec::new())
}

/// What is to be dropped, hidden, shown or given another time for the list to be the wanted one.
fn removals(collection: &Collection, wanted: &[RawDocumentBuf]) -> Vec<CatalogChange> {
    let mut changes = Vec::new();
    for index in collection.indexes.iter().filter(|index| !index.is_id()) {
        match wanted.iter().find(|spec| is_same(spec, &index.spec)) {
            None => changes.push(CatalogChange::DropIndex {
                collection: collection.id,
                index: index.id,
            }),
            Some(spec) => {
                let changed = with_hidden(&index.spec, is_hidden(spec));
                let changed = index_expiry::with(&changed, expiry(spec));
                let is_other =
                    is_hidden(spec) != index.hidden || expiry(spec) != index.expire_after_seconds;
                if is_other {
                    changes.push(CatalogChange::SetIndexSpec {
                        collection: collection.id,
                        index: IndexDefinition {
                            id: index.id,
                            spec: changed,
                        },
                    });
                }
            }
        }
    }
    changes
}

/// Refuses a request that was routed by another table than this shard's. The caller holds the
/// collection's lock. One about the buckets of a collection was routed by the name of that.
pub fn check_routing(ctx: &CommandContext<'_>, namespace: &Namespace) -> Result<(), CommandError> {
    let Some(role) = ctx.node.role() else {
        return Ok(());
    };
    let versions = Versions {
        shard: ctx.generic.shard_version,
        database: ctx.generic.database_version,
    };
    let routed_by = ctx.existing_collection()?;
    match visible_name(namespace.collection()) == Some(routed_by) {
        true => role.check(&Namespace::new(ctx.database(), routed_by), versions, true),
        false => role.check(namespace, versions, true),
    }
    .map(drop)
}

/// Whether two specifications are of one index, hidden or not, whenever its documents are over.
fn is_same(one: &RawDocument, other: &RawDocument) -> bool {
    let counts = |name: &str| !matches!(name, "hidden" | EXPIRE | "v" | "ns");
    let fields = |spec: &RawDocument| {
        let names = spec
            .iter()
            .flatten()
            .filter(|(name, _)| counts(name.as_str()));
        names.count()
    };
    let mut own = one
        .iter()
        .flatten()
        .filter(|(name, _)| counts(name.as_str()));
    fields(one) == fields(other)
        && own.all(|(name, value)| other.get(name.as_str()).ok().flatten() == Some(value))
}

fn is_hidden(spec: &RawDocument) -> bool {
    spec.get("hidden")
        .is_ok_and(|hidden| hidden.is_some_and(banyan_document::is_true))
}

fn expiry(spec: &RawDocument) -> Option<i64> {
    params::number(spec.get(EXPIRE).ok()??)
}

fn name(spec: &RawDocument) -> &str {
    spec.get_str("name").unwrap_or_default()
}

pub fn missing(namespace: &Namespace) -> CommandError {
    CommandError::new(
        ErrorCode::NamespaceNotFound,
        format!("ns not found {namespace}"),
    )
}

pub fn with_hidden(spec: &RawDocument, hidden: bool) -> RawDocumentBuf {
    let mut out = RawDocumentBuf::new();
    for (name, value) in spec
        .iter()
        .flatten()
        .filter(|(name, _)| name.as_str() != "hidden")
    {
        out.append(name, value);
    }
    if hidden {
        out.append(cstr!("hidden"), true);
    }
    out
}
