//! `planCacheClear`, and what is shown of the plan cache by `$planCacheStats`.

use std::sync::Arc;

use banyan_access::check::Access;
use banyan_execution::CollectionQueryInfo;
use banyan_execution::cache::{Entry, PlanCacheKey};
use banyan_execution::plan::explain::clamp;
use banyan_query::CanonicalQuery;
use banyan_query::canonical::Written;
use banyan_security::Action;
use banyan_storage::Collection;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

use super::table::{CommandResult, CommandSpec, Run};
use crate::collation::Asked;
use crate::context::CommandContext;
use crate::errors;
use crate::reads::query_context;
use crate::views;

pub static CLEAR: CommandSpec = CommandSpec::new("planCacheClear", Run::Inline(clear))
    .access(Access::Collection(Action::PlanCacheWrite))
    .help("forgets which plans have won their trials")
    .lenient();

fn clear(ctx: &CommandContext<'_>) -> CommandResult {
    // Of what is not there nothing is remembered, whatever the query is.
    if let Some(collection) = collection(ctx)? {
        let cache = &CollectionQueryInfo::of(&collection).plan_cache;
        match optional_query(ctx)? {
            Some(query) => cache.remove(&query.canonical.shape()),
            None => cache.clear(),
        }
    }
    Ok(rawdoc! { "ok": 1.0 })
}

/// The collection that a command names, if there is one.
pub fn collection(ctx: &CommandContext<'_>) -> Result<Option<Arc<Collection>>, CommandError> {
    let name = ctx.collection()?;
    views::refuse_named(ctx)?;
    let catalog = ctx.node.replica.store.catalog();
    Ok(catalog.get(ctx.database(), name).cloned())
}

/// A query that stands for all of its shape.
pub struct ShapeQuery<'a> {
    pub filter: &'a RawDocument,
    pub sort: Option<&'a RawDocument>,
    pub projection: Option<&'a RawDocument>,
    pub collation: Option<RawDocumentBuf>,
    pub canonical: CanonicalQuery,
}

/// The query in a command's fields, which may be left out with all that belongs to it.
pub fn optional_query<'a>(
    ctx: &CommandContext<'a>,
) -> Result<Option<ShapeQuery<'a>>, CommandError> {
    if ctx.field("query").is_some() {
        return query(ctx).map(Some);
    }
    let mut others = ["sort", "projection", "collation"].into_iter();
    if others.any(|name| ctx.field(name).is_some()) {
        return Err(bad("sort, projection, or collation provided without query"));
    }
    Ok(None)
}

/// The query in a command's fields.
pub fn query<'a>(ctx: &CommandContext<'a>) -> Result<ShapeQuery<'a>, CommandError> {
    let document = |name: &'static str, kind: &str| match ctx.field(name).map(|field| field.value) {
        None => Ok(None),
        Some(RawBsonRef::Document(document)) => Ok(Some(document)),
        Some(_) => Err(bad(&format!("{kind} field {name} must be an object"))),
    };
    let Some(filter) = document("query", "required")? else {
        return Err(bad("required field query missing"));
    };
    let sort = document("sort", "optional")?;
    let projection = document("projection", "optional")?;
    let collation = Asked::of(document("collation", "optional")?)?;
    let written = Written {
        filter: Some(filter),
        sort,
        projection: projection.filter(|projection| !projection.is_empty()),
        ..Written::default()
    };
    let collator = collation.collator(ctx, ctx.collection()?);
    let named = match &collation {
        Asked::Named(Some(collator)) => Some(collator.collation().to_document()),
        _ => None,
    };
    let context = query_context(ctx, ctx.collection()?, None, collator)?;
    Ok(ShapeQuery {
        filter,
        sort,
        projection,
        collation: named,
        canonical: CanonicalQuery::parse(&written, &context).map_err(errors::query)?,
    })
}

pub fn bad(why: &str) -> CommandError {
    CommandError::new(ErrorCode::BadValue, why)
}

/// `$planCacheStats`: the entries of a collection's plan cache, the last used first.
pub fn stats(
    ctx: &CommandContext<'_>,
    name: Option<&str>,
    argument: &RawDocument,
) -> Result<Vec<RawDocumentBuf>, CommandError> {
    if !argument.is_empty() {
        return Err(CommandError::new(
            ErrorCode::FailedToParse,
            "$planCacheStats parameters object must be empty. Found: object",
        ));
    }
    let Some(name) = name else {
        return Err(CommandError::new(
            ErrorCode::InvalidNamespace,
            "{aggregate: 1} is not valid for '$planCacheStats'; a collection is required.",
        ));
    };
    let catalog = ctx.node.replica.store.catalog();
    let Some(collection) = catalog.get(ctx.database(), name) else {
        return Err(CommandError::new(
            ErrorCode::Location(50933),
            format!("collection '{}.{name}' does not exist", ctx.database()),
        ));
    };
    let info = CollectionQueryInfo::of(collection);
    let entries = info.plan_cache.entries(collection);
    let address = ctx.node.info.address.as_str();
    let describe = |(key, entry): &(PlanCacheKey, Entry)| describe(key, entry, address);
    Ok(entries.iter().map(describe).collect())
}

fn describe(key: &PlanCacheKey, entry: &Entry, address: &str) -> RawDocumentBuf {
    let mut shown = rawdoc! {
        "version": "1",
        "queryHash": key.shape().to_string(),
        "planCacheKey": key.to_string(),
        "isActive": entry.is_active,
        "works": i64::try_from(entry.works).unwrap_or(i64::MAX),
        "timeOfCreation": entry.created,
    };
    let mut bytes = size_of::<PlanCacheKey>() + size_of::<Entry>();
    if let Some(creation) = &entry.creation {
        bytes += creation.bytes();
        let mut created_from = rawdoc! {
            "query": creation.query.clone(),
            "sort": creation.sort.clone(),
            "projection": creation.projection.clone(),
        };
        if let Some(collation) = &creation.collation {
            created_from.append(cstr!("collation"), collation.clone());
        }
        shown.append(cstr!("createdFromQuery"), created_from);
        shown.append(cstr!("cachedPlan"), creation.plan.clone());
        let candidates = creation.candidates.iter();
        let stats: RawArrayBuf = candidates.clone().map(|c| c.stats.clone()).collect();
        shown.append(cstr!("creationExecStats"), stats);
        let scores: RawArrayBuf = candidates.map(|candidate| candidate.score).collect();
        shown.append(cstr!("candidatePlanScores"), scores);
        shown.append(cstr!("indexFilterSet"), creation.has_index_filter);
    }
    shown.append(cstr!("estimatedSizeBytes"), clamp(bytes as u64));
    shown.append(cstr!("host"), address);
    shown
}
