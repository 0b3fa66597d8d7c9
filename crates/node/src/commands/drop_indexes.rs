//! `dropIndexes`: by name, by pattern, or all but the one on `_id`.

use std::sync::Arc;

use banyan_access::check::Access;
use banyan_document::key::KeyPattern;
use banyan_query::view;
use banyan_replication::write::catalog_ops;
use banyan_security::Action;
use banyan_storage::{CatalogChange, Collection, Index, IndexBuild, IndexId, Namespace};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawArray, RawBsonRef, RawDocumentBuf, cstr, rawdoc};

use super::clustered;
use super::table::{BoxFuture, CommandResult, CommandSpec, Run};
use super::time_series;
use crate::collection_uuid;
use crate::context::CommandContext;
use crate::errors;
use crate::index_builds;
use crate::index_changes;
use crate::params::{self, Field};
use crate::role::{IndexLoss, IndexRules};
use crate::views;

pub static SPEC: CommandSpec = CommandSpec::new("dropIndexes", Run::Future(run))
    .access(Access::Collection(Action::DropIndex))
    .aliases(&["deleteIndexes", "dropindexes"])
    .writes()
    .fields(&["index", collection_uuid::FIELD])
    .required(&["index"])
    .form(check_form);

/// What a field has to be, whatever the others are.
fn check_form(field: Field<'_>) -> Result<(), CommandError> {
    if field.name == collection_uuid::FIELD {
        return collection_uuid::check_form(field);
    }
    let is_right = match field.value {
        _ if field.name != "index" => true,
        RawBsonRef::String(_) | RawBsonRef::Document(_) => true,
        RawBsonRef::Array(names) => {
            let is_name = |name| matches!(name, RawBsonRef::String(_));
            let mut names = names.into_iter().flatten();
            // The first one says that these are names. Null among the others is passed over.
            names.next().is_none_or(is_name)
                && names.all(|name| is_name(name) || params::is_null(name))
        }
        _ => false,
    };
    match is_right {
        true => Ok(()),
        false => Err(field.wrong_type("types '[array, object, string]'")),
    }
}

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move {
        let node = ctx.node;
        let namespace = Namespace::new(ctx.database(), ctx.existing_collection()?);
        let field = ctx.required("index")?;
        if namespace.collection() == view::COLLECTION {
            return Err(CommandError::new(
                ErrorCode::Location(51070),
                format!(
                    "Modifications to {} must take an exclusive lock",
                    view::COLLECTION
                ),
            ));
        }
        let measured = time_series::named(ctx, namespace.collection());
        let key = match (&measured, field.value) {
            (Some((_, series)), RawBsonRef::Document(key)) => {
                Some(time_series::indexes::key_of_known(key, series)?)
            }
            _ => None,
        };
        let value = key.as_deref().map_or(field.value, RawBsonRef::Document);
        let field = Field { value, ..field };
        let namespace = measured.map_or(namespace, |(buckets, _)| buckets.namespace.clone());
        collection_uuid::check_unless_view(ctx, namespace.collection())?;
        let term = node.replica.writable_term()?;
        let _locks = ctx.lock_exclusive(&[&namespace]).await?;
        index_changes::check_routing(ctx, &namespace)?;
        let Some(collection) = node.replica.store.catalog().find(&namespace).cloned() else {
            views::refuse_named(ctx)?;
            return Err(CommandError::new(
                ErrorCode::NamespaceNotFound,
                format!("ns not found {namespace}"),
            ));
        };
        index_builds::refuse_rebuilds(&collection)?;
        let rules = node.index_rules(&namespace);
        let chosen = choose(&collection, field, rules.as_deref())?;
        let changes: Vec<CatalogChange> = chosen
            .ready
            .iter()
            .map(|index| CatalogChange::DropIndex {
                collection: collection.id,
                index: index.id,
            })
            .collect();
        if let Some(first) = chosen.builds.first() {
            let error = index_builds::aborted(&first.id, "dropIndexes command");
            let builds = &chosen.builds;
            index_builds::abort_latched(node, &collection, builds, error, &changes, term).await?;
        } else if !changes.is_empty() {
            catalog_ops::apply(&node.replica, &changes, term).await?;
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
    let building = chosen.builds.iter().flat_map(|build| &build.indexes);
    let gone: Vec<IndexId> = chosen
        .ready
        .iter()
        .chain(building)
        .map(|index| index.id)
        .collect();
    let indexes = collection.indexes.iter();
    let list = indexes
        .chain(collection.building_indexes())
        .filter(|index| !gone.contains(&index.id));
    let list = list.map(|index| index.spec.clone()).collect();
    Ok((list, reply(collection, field, rules.is_some())))
}

fn reply(collection: &Collection, field: Field<'_>, ruled: bool) -> RawDocumentBuf {
    let before = collection.indexes.len() + collection.building_indexes().count();
    let before = i32::try_from(before).unwrap_or(i32::MAX);
    let mut reply = rawdoc! { "nIndexesWas": before };
    if names_all(field) {
        let told = match ruled {
            true => "non-_id indexes and non-shard key indexes dropped for collection",
            false => "non-_id indexes dropped for collection",
        };
        reply.append(cstr!("msg"), told);
    }
    reply.append(cstr!("ok"), 1.0);
    reply
}

/// What is to go: indexes, and builds that are aborted.
#[derive(Default)]
struct Chosen {
    ready: Vec<Arc<Index>>,
    builds: Vec<Arc<IndexBuild>>,
}

/// What the field names, if it may be dropped.
fn choose(
    collection: &Collection,
    field: Field<'_>,
    rules: Option<&dyn IndexRules>,
) -> Result<Chosen, CommandError> {
    let mut chosen = named(collection, field)?;
    let Some(rules) = rules else {
        return Ok(chosen);
    };
    if names_all(field) {
        chosen.ready.retain(|index| !rules.keeps(index));
        return Ok(chosen);
    }
    let gone = |index: &&Arc<Index>| chosen.ready.iter().any(|other| other.id == index.id);
    let rest: Vec<&Index> = collection
        .indexes
        .iter()
        .filter(|index| !gone(index))
        .map(|index| &**index)
        .collect();
    for index in &chosen.ready {
        rules.check_loss(index, &rest, IndexLoss::Dropped)?;
    }
    Ok(chosen)
}

fn named(collection: &Collection, field: Field<'_>) -> Result<Chosen, CommandError> {
    refuse_clustered(collection, field)?;
    let found = match field.value {
        _ if names_all(field) => {
            let ready = collection.indexes.iter().filter(|index| !index.is_id());
            let builds = collection.builds.iter();
            return Ok(Chosen {
                ready: ready.cloned().collect(),
                builds: builds
                    .filter(|build| !build.is_committed)
                    .cloned()
                    .collect(),
            });
        }
        RawBsonRef::String(name) => vec![by_name(collection, name)?],
        RawBsonRef::Document(key) => {
            let pattern = KeyPattern::parse(key).ok();
            let same = |index: &&Arc<Index>| {
                pattern
                    .as_ref()
                    .is_some_and(|p| catalog_ops::same_pattern(p, &index.pattern))
            };
            let indexes = collection.indexes.iter();
            let mut matching = indexes.chain(collection.building_indexes()).filter(same);
            let found = matching.next().cloned();
            if matching.next().is_some() {
                return Err(CommandError::new(
                    ErrorCode::AmbiguousIndexKeyPattern,
                    format!(
                        "several indexes found for key: {}, identify by name instead",
                        errors::shown(field.value)
                    ),
                ));
            }
            let index = found.ok_or_else(|| {
                CommandError::new(
                    ErrorCode::IndexNotFound,
                    format!("can't find index with key: {}", errors::shown(field.value)),
                )
            })?;
            refuse_id(&index)?;
            vec![index]
        }
        RawBsonRef::Array(names) => {
            let mut found: Vec<Arc<Index>> = Vec::new();
            for name in given(names) {
                let RawBsonRef::String(name) = name else {
                    return Err(field.wrong_type("an array of strings"));
                };
                // By then it would be gone.
                if found.iter().any(|index| index.name == name) {
                    return Err(CommandError::new(
                        ErrorCode::IndexNotFound,
                        format!("index not found with name [{name}]"),
                    ));
                }
                found.push(by_name(collection, name)?);
            }
            found
        }
        _ => return Err(field.wrong_type("types '[array, object, string]'")),
    };
    split(collection, &found)
}

/// The names of a list.
fn given(names: &RawArray) -> impl Iterator<Item = RawBsonRef<'_>> {
    let names = names.into_iter().flatten();
    names.filter(|name| !params::is_null(*name))
}

/// Whether all indexes are named: by `*`, or by a list that begins with it, whatever else it has.
fn names_all(field: Field<'_>) -> bool {
    let first = match field.value {
        RawBsonRef::Array(names) => given(names).next(),
        value => Some(value),
    };
    first == Some(RawBsonRef::String("*"))
}

/// The order in which the records lie stays.
fn refuse_clustered(collection: &Collection, field: Field<'_>) -> Result<(), CommandError> {
    let is_name = |name: &str| clustered::is_named(collection, name);
    let names_it = match field.value {
        RawBsonRef::String(name) => is_name(name),
        RawBsonRef::Document(key) => {
            let pattern = KeyPattern::parse(key);
            pattern.is_ok_and(|pattern| clustered::has_pattern(collection, &pattern))
        }
        RawBsonRef::Array(names) => {
            let mut names = names.into_iter().flatten();
            names.any(|name| name.as_str().is_some_and(is_name))
        }
        _ => false,
    };
    match names_it {
        true => Err(clustered::location(
            5979800,
            "It is illegal to drop the clusteredIndex",
        )),
        false => Ok(()),
    }
}

/// A build goes as a whole or not at all.
fn split(collection: &Collection, found: &[Arc<Index>]) -> Result<Chosen, CommandError> {
    let is_named = |index: &Arc<Index>| found.iter().any(|other| other.id == index.id);
    let is_ready = |index: &&Arc<Index>| collection.index_by_id(index.id).is_some();
    let mut chosen = Chosen {
        ready: found.iter().filter(is_ready).cloned().collect(),
        builds: Vec::new(),
    };
    for build in &collection.builds {
        if !build.indexes.iter().any(is_named) {
            continue;
        }
        if !build.indexes.iter().all(is_named) || build.is_committed {
            index_builds::refuse_builds(collection)?;
        }
        chosen.builds.push(build.clone());
    }
    Ok(chosen)
}

fn by_name(collection: &Collection, name: &str) -> Result<Arc<Index>, CommandError> {
    let mut building = collection.building_indexes();
    let index = collection.index(name);
    let index = index.or_else(|| building.find(|index| index.name == name));
    let index = index.cloned().ok_or_else(|| {
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
