//! What holds memory: its limit, and what holding more is called.

use super::limits::{Limit, STAGE_BYTES};
use crate::error::{ErrorKind, QueryError};

/// A kind of stage that holds documents.
#[derive(Debug)]
pub struct Consumer {
    pub(super) max: Max,
    /// Of the limit that does not suffice, and of what is held.
    pub(super) exceeded: fn(usize, usize) -> QueryError,
}

#[derive(Debug)]
pub(super) enum Max {
    Parameter(Limit),
    Bytes(usize),
}

const fn by_parameter(limit: Limit, exceeded: fn(usize, usize) -> QueryError) -> Consumer {
    Consumer {
        max: Max::Parameter(limit),
        exceeded,
    }
}

const fn fixed(exceeded: fn(usize, usize) -> QueryError) -> Consumer {
    Consumer {
        max: Max::Bytes(STAGE_BYTES as usize),
        exceeded,
    }
}

pub static SORT: Consumer = by_parameter(Limit::Sort, sort);
/// A sort that keeps the first of a limit.
pub static TOP_SORT: Consumer = by_parameter(Limit::Sort, top_sort);
pub(crate) static SAMPLE: Consumer = by_parameter(Limit::Sort, top_sort);
/// What a text search has found.
pub(crate) static TEXT: Consumer = by_parameter(Limit::Sort, |max, _| {
    no_disk(format!(
        "A text search finds more documents than fit into {max} bytes, and did not opt in to external \
         sorting."
    ))
});
pub(crate) static BUCKET_AUTO: Consumer = fixed(sort);
pub(crate) static GROUP: Consumer = by_parameter(Limit::Group, |_, _| {
    no_disk(
        "Exceeded memory limit for $group, but didn't allow external sort. Pass \
         allowDiskUse:true to opt in.",
    )
});
/// The documents of a partition.
pub(crate) static PARTITION: Consumer = by_parameter(Limit::Window, |_, _| {
    located(
        5_643_011,
        "Exceeded max memory. Set 'allowDiskUse: true' to spill to disk",
    )
});
/// What the functions of `$setWindowFields` hold.
pub(crate) static WINDOW: Consumer = by_parameter(Limit::Window, |max, held| {
    located(
        5_414_201,
        format!(
            "Exceeded memory limit in DocumentSourceSetWindowFields, used {held} bytes but max \
             allowed is {max}"
        ),
    )
});
pub(crate) static DENSIFY: Consumer = by_parameter(Limit::Densify, |max, _| {
    located(
        6_007_200,
        format!("$densify exceeded memory limit of {max}"),
    )
});
pub(crate) static LOOKUP: Consumer = by_parameter(Limit::Lookup, |_, _| {
    no_disk("Exceeded memory limit for $lookup, but didn't allow external sort.")
});
pub(crate) static LOOKUP_RESULT: Consumer = by_parameter(Limit::LookupResult, |max, _| {
    located(
        4568,
        format!("Total size of documents matching pipeline's $lookup stage exceeds {max} bytes"),
    )
});
pub(crate) static GRAPH_LOOKUP: Consumer =
    fixed(|_, _| located(40_099, "$graphLookup reached maximum memory consumption"));
pub(crate) static FACET: Consumer = by_parameter(Limit::FacetResult, |max, held| {
    located(
        4_031_700,
        format!(
            "document constructed by $facet is {held} bytes, which exceeds the limit of {max} \
             bytes"
        ),
    )
});
/// What is left of a bucket.
pub(crate) static UNPACK: Consumer = fixed(|max, _| {
    no_disk(format!(
        "Exceeded memory limit for unpacking a bucket: {max} bytes"
    ))
});
pub(crate) static UNWIND: Consumer =
    fixed(|max, _| no_disk(format!("Exceeded memory limit for $unwind: {max} bytes")));

fn sort(max: usize, _: usize) -> QueryError {
    no_disk(format!(
        "Sort exceeded memory limit of {max} bytes, but did not opt in to external sorting."
    ))
}

fn top_sort(max: usize, held: usize) -> QueryError {
    let mut error = sort(max, held);
    error
        .message
        .push_str(" Aborting operation. Pass allowDiskUse:true to opt in.");
    error
}

fn no_disk(message: impl Into<String>) -> QueryError {
    QueryError::new(ErrorKind::QueryExceededMemoryLimitNoDiskUseAllowed, message)
}

fn located(code: u32, message: impl Into<String>) -> QueryError {
    QueryError::new(ErrorKind::Location(code), message)
}
