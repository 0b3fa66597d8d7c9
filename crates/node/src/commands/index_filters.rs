//! `planCacheSetFilter`, `planCacheListFilters`, `planCacheClearFilters`: which indexes the planner
//! may use for queries of a shape.

use banyan_access::check::Access;
use banyan_document::compare::compare_documents;
use banyan_execution::CollectionQueryInfo;
use banyan_execution::index_filters::{AllowedIndex, AllowedIndexes, IndexFilter};
use banyan_security::Action;
use banyan_wire::CommandError;
use bson::{RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

use super::plan_cache::{bad, collection, optional_query, query};
use super::table::{CommandResult, CommandSpec, Run};
use crate::context::CommandContext;

pub static SET: CommandSpec =
    filter_command("planCacheSetFilter", set).help("names the only indexes for queries of a shape");
pub static LIST: CommandSpec = filter_command("planCacheListFilters", list)
    .help("the indexes that are set for queries of a shape");
pub static CLEAR: CommandSpec =
    filter_command("planCacheClearFilters", clear).help("lets queries use all indexes again");

const fn filter_command(
    name: &'static str,
    run: for<'a> fn(&'a CommandContext<'a>) -> CommandResult,
) -> CommandSpec {
    CommandSpec::new(name, Run::Inline(run))
        .access(Access::Collection(Action::PlanCacheIndexFilter))
        .lenient()
}

fn set(ctx: &CommandContext<'_>) -> CommandResult {
    let Some(collection) = collection(ctx)? else {
        return Err(bad("no such collection"));
    };
    let indexes = indexes(ctx)?;
    let query = query(ctx)?;
    let owned =
        |document: Option<&RawDocument>| document.map(RawDocument::to_owned).unwrap_or_default();
    let filter = IndexFilter {
        query: query.filter.to_owned(),
        sort: owned(query.sort),
        projection: owned(query.projection),
        collation: query.collation,
        indexes: AllowedIndexes(indexes),
    };
    let shape = query.canonical.shape();
    let info = CollectionQueryInfo::of(&collection);
    info.plan_cache.remove(&shape);
    info.index_filters.set(shape, filter);
    Ok(rawdoc! { "ok": 1.0 })
}

/// Each once, patterns before names.
fn indexes(ctx: &CommandContext<'_>) -> Result<Vec<AllowedIndex>, CommandError> {
    let Some(field) = ctx.field("indexes") else {
        return Err(bad("required field indexes missing"));
    };
    let RawBsonRef::Array(given) = field.value else {
        return Err(bad("required field indexes must be an array"));
    };
    let (mut patterns, mut names) = (Vec::<RawDocumentBuf>::new(), Vec::new());
    for index in given.into_iter().flatten() {
        match index {
            RawBsonRef::Document(pattern) if pattern.is_empty() => {
                return Err(bad("index specification cannot be empty"));
            }
            RawBsonRef::Document(pattern) => patterns.push(pattern.to_owned()),
            RawBsonRef::String(name) => names.push(name.to_owned()),
            _ => return Err(bad("each item in indexes must be an object or string")),
        }
    }
    patterns.sort_by(|a, b| compare_documents(a, b));
    patterns.dedup();
    names.sort_unstable();
    names.dedup();
    let patterns = patterns.into_iter().map(AllowedIndex::KeyPattern);
    let names = names.into_iter().map(AllowedIndex::Name);
    let allowed: Vec<_> = patterns.chain(names).collect();
    match allowed.is_empty() {
        true => Err(bad(
            "required field indexes must contain at least one index",
        )),
        false => Ok(allowed),
    }
}

fn list(ctx: &CommandContext<'_>) -> CommandResult {
    let filters = match collection(ctx)? {
        Some(collection) => CollectionQueryInfo::of(&collection).index_filters.all(),
        None => Vec::new(),
    };
    let filters: RawArrayBuf = filters.iter().map(|filter| describe(filter)).collect();
    Ok(rawdoc! { "filters": filters, "ok": 1.0 })
}

fn describe(filter: &IndexFilter) -> RawDocumentBuf {
    let mut indexes = RawArrayBuf::new();
    for allowed in &filter.indexes.0 {
        match allowed {
            AllowedIndex::Name(name) => indexes.push(name.as_str()),
            AllowedIndex::KeyPattern(pattern) => indexes.push(pattern.clone()),
        }
    }
    let mut shown = rawdoc! {
        "query": filter.query.clone(),
        "sort": filter.sort.clone(),
        "projection": filter.projection.clone(),
    };
    if let Some(collation) = &filter.collation {
        shown.append(cstr!("collation"), collation.clone());
    }
    shown.append(cstr!("indexes"), indexes);
    shown
}

fn clear(ctx: &CommandContext<'_>) -> CommandResult {
    let collection = collection(ctx)?;
    let query = optional_query(ctx)?;
    if let Some(collection) = collection {
        let info = CollectionQueryInfo::of(&collection);
        match query {
            Some(query) => {
                let shape = query.canonical.shape();
                info.index_filters.remove(&shape);
                info.plan_cache.remove(&shape);
            }
            None => {
                info.index_filters.clear();
                info.plan_cache.clear();
            }
        }
    }
    Ok(rawdoc! { "ok": 1.0 })
}
