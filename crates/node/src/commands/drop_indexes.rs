//! `dropIndexes`: by name, by pattern, or all but the one on `_id`.

use std::sync::Arc;

use banyan_document::key::KeyPattern;
use banyan_replication::write::catalog_ops;
use banyan_storage::{CatalogChange, Collection, Index, Namespace};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocumentBuf, cstr, rawdoc};

use super::table::{BoxFuture, CommandResult, CommandSpec, Run};
use crate::context::CommandContext;
use crate::errors;
use crate::index_changes;
use crate::params::Field;
use crate::role::{IndexLoss, IndexRules};

pub static SPEC: CommandSpec = CommandSpec::new("dropIndexes", Run::Future(run))
    .aliases(&["deleteIndexes", "dropindexes"])
    .privilege("dropIndex")
    .writes()
    .fields(&["index"]);

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move {
        let node = ctx.node;
        let namespace = Namespace::new(ctx.database(), ctx.collection()?);
        let field = ctx.required("index")?;
        let term = node.writable_term()?;
        let _exclusive = node.namespaces.exclusive(&[&namespace]).await;
        index_changes::check_routing(ctx, &namespace)?;
        let Some(collection) = node.store.catalog().find(&namespace).cloned() else {
            return Err(CommandError::new(
                ErrorCode::NamespaceNotFound,
                format!("ns not found {namespace}"),
            ));
        };
        let rules = node.index_rules(&namespace);
        let chosen = choose(&collection, field, rules.as_deref())?;
        let changes: Vec<CatalogChange> = chosen
            .iter()
            .map(|index| CatalogChange::DropIndex {
                collection: collection.id,
                index: index.id,
            })
            .collect();
        if !changes.is_empty() {
            catalog_ops::apply(node, &changes, term).await?;
        }
        Ok(reply(&collection, field, rules.is_some()))
    })
}

/// The list as the command would leave it, and what it would answer.
pub fn plan(
    ctx: &CommandContext<'_>,
    collection: &Collection,
) -> Result<(Vec<RawDocumentBuf>, RawDocumentBuf), CommandError> {
    let field = ctx.required("index")?;
    let rules = ctx.node.index_rules(&collection.namespace);
    let chosen = choose(collection, field, rules.as_deref())?;
    let stays = |index: &&Arc<Index>| !chosen.iter().any(|gone| gone.id == index.id);
    let list = collection.indexes.iter().filter(stays);
    let list = list.map(|index| index.spec.clone()).collect();
    Ok((list, reply(collection, field, rules.is_some())))
}

fn reply(collection: &Collection, field: Field<'_>, ruled: bool) -> RawDocumentBuf {
    let before = i32::try_from(collection.indexes.len()).unwrap_or(i32::MAX);
    let mut reply = rawdoc! { "nIndexesWas": before };
    if matches!(field.value, RawBsonRef::String("*")) {
        let told = match ruled {
            true => "non-_id indexes and non-shard key indexes dropped for collection",
            false => "non-_id indexes dropped for collection",
        };
        reply.append(cstr!("msg"), told);
    }
    reply.append(cstr!("ok"), 1.0);
    reply
}

/// What the field names, if it may be dropped.
fn choose(
    collection: &Collection,
    field: Field<'_>,
    rules: Option<&dyn IndexRules>,
) -> Result<Vec<Arc<Index>>, CommandError> {
    let mut chosen = named(collection, field)?;
    let Some(rules) = rules else {
        return Ok(chosen);
    };
    if matches!(field.value, RawBsonRef::String("*")) {
        chosen.retain(|index| !rules.keeps(index));
        return Ok(chosen);
    }
    let gone = |index: &&Arc<Index>| chosen.iter().any(|other| other.id == index.id);
    let rest: Vec<&Index> = collection
        .indexes
        .iter()
        .filter(|index| !gone(index))
        .map(|index| &**index)
        .collect();
    for index in &chosen {
        rules.check_loss(index, &rest, IndexLoss::Dropped)?;
    }
    Ok(chosen)
}

fn named(collection: &Collection, field: Field<'_>) -> Result<Vec<Arc<Index>>, CommandError> {
    match field.value {
        RawBsonRef::String("*") => Ok(collection
            .indexes
            .iter()
            .filter(|index| !index.is_id())
            .cloned()
            .collect()),
        RawBsonRef::String(name) => Ok(vec![by_name(collection, name)?]),
        RawBsonRef::Document(key) => {
            let pattern = KeyPattern::parse(key).ok();
            let same = |index: &&Arc<Index>| {
                pattern
                    .as_ref()
                    .is_some_and(|p| catalog_ops::same_pattern(p, &index.pattern))
            };
            let found = collection.indexes.iter().find(same).cloned();
            let index = found.ok_or_else(|| {
                CommandError::new(
                    ErrorCode::IndexNotFound,
                    format!("can't find index with key: {}", errors::shown(field.value)),
                )
            })?;
            refuse_id(&index)?;
            Ok(vec![index])
        }
        RawBsonRef::Array(names) => names
            .into_iter()
            .flatten()
            .map(|name| match name {
                RawBsonRef::String(name) => by_name(collection, name),
                _ => Err(field.wrong_type("an array of strings")),
            })
            .collect(),
        _ => Err(field.wrong_type("types '[array, object, string]'")),
    }
}

fn by_name(collection: &Collection, name: &str) -> Result<Arc<Index>, CommandError> {
    let index = collection.index(name).cloned().ok_or_else(|| {
        CommandError::new(
            ErrorCode::IndexNotFound,
            format!("index not found with name [{name}]"),
        )
    })?;
    refuse_id(&index)?;
    Ok(index)
}

fn refuse_id(index: &Index) -> Result<(), CommandError> {
    if index.is_id() {
        return Err(CommandError::new(
            ErrorCode::InvalidOptions,
            "cannot drop _id index",
        ));
    }
    Ok(())
}
