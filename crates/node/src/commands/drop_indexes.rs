//! `dropIndexes`: by name, by pattern, or all but the one on `_id`.

use std::sync::Arc;

use banyan_document::key::KeyPattern;
use banyan_storage::{CatalogChange, Collection, Index, Namespace};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, cstr, rawdoc};

use super::table::{BoxFuture, CommandResult, CommandSpec, Run};
use crate::catalog_ops;
use crate::context::CommandContext;
use crate::errors;
use crate::params::Field;

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
        let Some(collection) = node.store.catalog().find(&namespace).cloned() else {
            return Err(CommandError::new(
                ErrorCode::NamespaceNotFound,
                format!("ns not found {namespace}"),
            ));
        };
        let chosen = choose(&collection, field)?;
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
        let before = i32::try_from(collection.indexes.len()).unwrap_or(i32::MAX);
        let mut reply = rawdoc! { "nIndexesWas": before };
        if matches!(field.value, RawBsonRef::String("*")) {
            reply.append(cstr!("msg"), "non-_id indexes dropped for collection");
        }
        reply.append(cstr!("ok"), 1.0);
        Ok(reply)
    })
}

fn choose(collection: &Collection, field: Field<'_>) -> Result<Vec<Arc<Index>>, CommandError> {
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
