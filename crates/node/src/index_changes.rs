//! Changes of a collection's list of indexes, as steps that a cluster can take one by one.
//!
//! A member on its own plans and applies a change under one latch
//! ([`crate::commands::create_indexes`] and its neighbours). In a cluster one shard plans it: what
//! the list would be afterwards. Then every shard makes its own list that one, in one entry.

use std::sync::Arc;

use banyan_execution::Interrupt;
use banyan_execution::tickets::blocking;
use banyan_replication::write::catalog_ops;
use banyan_replication::write::shard_rules::Versions;
use banyan_storage::{CatalogChange, Collection, IndexDefinition, Namespace};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawDocument, RawDocumentBuf};

use crate::commands::{coll_mod, create_indexes, drop_indexes};
use crate::context::CommandContext;
use crate::node::Node;

/// What a command would make of a list.
pub struct Planned {
    pub before: Vec<RawDocumentBuf>,
    pub after: Vec<RawDocumentBuf>,
    /// What the command answers.
    pub reply: RawDocumentBuf,
}

/// The specifications of a collection's indexes.
pub fn list(collection: &Collection) -> Vec<RawDocumentBuf> {
    let indexes = collection.indexes.iter();
    indexes.map(|index| index.spec.clone()).collect()
}

/// Works out what `createIndexes`, `dropIndexes` or `collMod` would do, with all that they check
/// but the documents.
pub fn plan(ctx: &CommandContext<'_>) -> Result<Planned, CommandError> {
    let namespace = Namespace::new(ctx.database(), ctx.collection()?);
    let catalog = ctx.node.store.catalog();
    let collection = catalog
        .find(&namespace)
        .ok_or_else(|| missing(&namespace))?;
    let (after, reply) = match ctx.spec.name {
        "createIndexes" => create_indexes::plan(ctx, collection)?,
        "dropIndexes" => drop_indexes::plan(ctx, collection)?,
        "collMod" => coll_mod::plan(ctx, collection)?,
        other => {
            let text = format!("{other} does not change indexes");
            return Err(CommandError::new(ErrorCode::IllegalOperation, text));
        }
    };
    Ok(Planned {
        before: list(collection),
        after,
        reply,
    })
}

/// Makes the collection's indexes these, in one entry: what is not among them is dropped, what is
/// missing is built. The index on `_id` stays whatever the list says.
pub async fn align(
    node: &Arc<Node>,
    namespace: &Namespace,
    wanted: &[RawDocumentBuf],
    term: u64,
    interrupt: &Interrupt,
) -> Result<(), CommandError> {
    let _exclusive = node.namespaces.exclusive(&[namespace]).await;
    let catalog = node.store.catalog();
    let collection = catalog.find(namespace).ok_or_else(|| missing(namespace))?;
    let mut changes = Vec::new();
    for index in collection.indexes.iter().filter(|index| !index.is_id()) {
        match wanted.iter().find(|spec| is_same(spec, &index.spec)) {
            None => changes.push(CatalogChange::DropIndex {
                collection: collection.id,
                index: index.id,
            }),
            Some(spec) if is_hidden(spec) != index.hidden => {
                changes.push(CatalogChange::SetIndexSpec {
                    collection: collection.id,
                    index: IndexDefinition {
                        id: index.id,
                        spec: coll_mod::with_hidden(&index.spec, is_hidden(spec)),
                    },
                });
            }
            Some(_) => {}
        }
    }
    let known = |spec: &RawDocument| {
        let mut indexes = collection.indexes.iter();
        indexes.any(|index| index.is_id() && index.name == name(spec) || is_same(spec, &index.spec))
    };
    for spec in wanted.iter().filter(|spec| !known(spec)) {
        changes.push(creation(node, collection, spec.clone(), interrupt)?);
    }
    if changes.is_empty() {
        return Ok(());
    }
    catalog_ops::apply(node, &changes, term).await.map(drop)
}

/// The change that makes an index, if the documents allow it. The caller holds the namespace's
/// latch.
pub fn creation(
    node: &Arc<Node>,
    collection: &Collection,
    spec: RawDocumentBuf,
    interrupt: &Interrupt,
) -> Result<CatalogChange, CommandError> {
    let index = IndexDefinition {
        id: node.store.allocate_id(),
        spec,
    };
    if collection.documents() > 0 {
        blocking(|| catalog_ops::check_records(node, collection, &index, interrupt))?;
    }
    Ok(CatalogChange::CreateIndex {
        collection: collection.id,
        index,
        // Whether it is multikey turns out when it is built.
        multikey: false,
    })
}

/// Refuses a request that was routed by another table than this shard's. The caller holds the
/// namespace's latch.
pub fn check_routing(ctx: &CommandContext<'_>, namespace: &Namespace) -> Result<(), CommandError> {
    let Some(role) = ctx.node.role() else {
        return Ok(());
    };
    let versions = Versions {
        shard: ctx.generic.shard_version,
        database: ctx.generic.database_version,
    };
    role.check(namespace, versions, true).map(drop)
}

/// Whether two specifications are of one index, hidden or not.
fn is_same(one: &RawDocument, other: &RawDocument) -> bool {
    let counts = |name: &str| !matches!(name, "hidden" | "v" | "ns");
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

fn name(spec: &RawDocument) -> &str {
    spec.get_str("name").unwrap_or_default()
}

fn missing(namespace: &Namespace) -> CommandError {
    CommandError::new(
        ErrorCode::NamespaceNotFound,
        format!("ns not found {namespace}"),
    )
}
