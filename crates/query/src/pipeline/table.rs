//! The stages by name: one row for each.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use bson::RawBsonRef;

use super::sequence::ParseInner;
use super::stage::Stage;
use super::{
    bucket, bucket_auto, densify, documents, drop_fields, facet, fill, geo_near, group, limit,
    lookup, matching, project, redact, refused, replace, sample, sort, source, source_name,
    split_event, union, unpack_bucket, unwind, window, write,
};
use crate::cluster_catalog;
use crate::context::Context;
use crate::error::QueryError;

/// Parses a stage's argument. Some are short for several stages.
type Parse = fn(RawBsonRef<'_>, &Context, &mut Vec<Arc<dyn Stage>>) -> Result<(), QueryError>;

type ParseNesting =
    fn(RawBsonRef<'_>, &Context, ParseInner, &mut Vec<Arc<dyn Stage>>) -> Result<(), QueryError>;

pub(super) struct Row {
    pub name: &'static str,
    pub place: Place,
    /// Whether it may stand in a `$facet`.
    pub in_facet: bool,
    pub form: Form,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Anywhere,
    First,
    Last,
    /// The end of a change stream.
    ChangeStreamEnd,
}

pub(super) enum Form {
    Parsed(Parse),
    /// With pipelines inside.
    Nesting(ParseNesting),
    /// Answered by the node.
    Source,
}

const fn row(name: &'static str, parse: Parse) -> Row {
    Row {
        name,
        place: Place::Anywhere,
        in_facet: true,
        form: Form::Parsed(parse),
    }
}

/// Has pipelines inside.
const fn nesting(name: &'static str, parse: ParseNesting) -> Row {
    Row {
        name,
        place: Place::Anywhere,
        in_facet: true,
        form: Form::Nesting(parse),
    }
}

/// Reads from elsewhere than the collection.
const fn first(name: &'static str, parse: Parse) -> Row {
    Row {
        place: Place::First,
        in_facet: false,
        ..row(name, parse)
    }
}

/// Writes.
const fn last(name: &'static str, parse: Parse) -> Row {
    Row {
        place: Place::Last,
        in_facet: false,
        ..row(name, parse)
    }
}

const fn source(name: &'static str) -> Row {
    Row {
        name,
        place: Place::First,
        in_facet: false,
        form: Form::Source,
    }
}

const ROWS: &[Row] = &[
    row(densify::INTERNAL, densify::parse_sorted),
    row(drop_fields::METADATA, drop_fields::parse_metadata),
    row(drop_fields::TEXT_SCORE, drop_fields::parse_text_score),
    row(unpack_bucket::NAME, unpack_bucket::parse),
    row("$addFields", project::parse_add_fields),
    row("$bucket", bucket::parse),
    row("$bucketAuto", bucket_auto::parse),
    source(source_name::CHANGE_STREAM),
    Row {
        place: Place::ChangeStreamEnd,
        in_facet: false,
        ..row(split_event::NAME, split_event::parse)
    },
    source(source_name::COLL_STATS),
    row("$count", group::parse_count),
    source(source_name::CURRENT_OP),
    row("$densify", densify::parse),
    first("$documents", documents::parse),
    Row {
        in_facet: false,
        ..nesting("$facet", facet::parse)
    },
    row("$fill", fill::parse),
    Row {
        in_facet: false,
        ..row(geo_near::NAME, geo_near::parse)
    },
    nesting("$graphLookup", lookup::parse_graph),
    row("$group", group::parse),
    source(source_name::INDEX_STATS),
    row("$limit", limit::parse_limit),
    source(source_name::LIST_CATALOG),
    row("$listCachedAndActiveUsers", refused::parse_disabled),
    source(cluster_catalog::STAGE),
    source(source_name::LIST_LOCAL_SESSIONS),
    row("$listSearchIndexes", refused::parse_search),
    source(source_name::LIST_SESSIONS),
    nesting("$lookup", lookup::parse),
    row("$match", matching::parse),
    last("$merge", write::parse_merge),
    last("$out", write::parse_out),
    source(source_name::PLAN_CACHE_STATS),
    source("$querySettings"),
    source("$queryStats"),
    row("$project", project::parse_project),
    row("$queue", refused::parse_internal),
    row("$redact", redact::parse),
    row("$replaceRoot", replace::parse_root),
    row("$replaceWith", replace::parse_with),
    row("$sample", sample::parse),
    row("$search", refused::parse_search),
    row("$searchMeta", refused::parse_search),
    row("$set", project::parse_set),
    row("$setVariableFromSubPipeline", refused::parse_internal),
    row("$setWindowFields", window::parse),
    row("$shardedDataDistribution", source::of_router),
    row("$skip", limit::parse_skip),
    row("$sort", sort::parse),
    row("$sortByCount", group::parse_sort_by_count),
    nesting("$unionWith", union::parse),
    row("$unset", project::parse_unset),
    row("$unwind", unwind::parse),
    row("$vectorSearch", refused::parse_search),
];

/// The names of all stages that can be run.
pub fn stage_names() -> impl Iterator<Item = &'static str> {
    let runs = |row: &&Row| !refused::NAMES.contains(&row.name);
    ROWS.iter().filter(runs).map(|row| row.name)
}

static TABLE: LazyLock<HashMap<&'static str, &'static Row>> =
    LazyLock::new(|| ROWS.iter().map(|row| (row.name, row)).collect());

pub(super) fn find(name: &str) -> Option<&'static Row> {
    TABLE.get(name).copied()
}
