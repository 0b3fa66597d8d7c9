//! A plan in MongoDB's words.

use banyan_query::Filter;
use bson::{RawArrayBuf, RawDocument, RawDocumentBuf, cstr, rawdoc};

use super::{Access, IndexBounds, Plan};

/// What else happens to the documents, around the plan's access.
#[derive(Debug, Clone, Copy, Default)]
pub struct Around<'a> {
    pub filter: Option<&'a Filter>,
    pub sort: Option<&'a RawDocument>,
    pub projection: Option<&'a RawDocument>,
    pub skip: u64,
    pub limit: Option<u64>,
    /// Only the number of documents is wanted.
    pub count: bool,
    /// `UPDATE` or `DELETE`: what would become of the documents.
    pub write: Option<&'static str>,
}

/// Counters of a run, to stand beside the stages.
#[derive(Debug, Clone, Copy)]
pub struct Ran {
    pub returned: u64,
    pub keys: u64,
    pub documents: u64,
    pub milliseconds: u64,
}

/// `winningPlan`, or `executionStages` when it ran.
pub fn stages(plan: &Plan, around: &Around<'_>, ran: Option<&Ran>) -> RawDocumentBuf {
    let mut stage = access(plan, &plan.access, around, ran);
    let blocking_sort = around.sort.filter(|_| !plan.sorted);
    if let Some(sort) = blocking_sort {
        let mut outer = begin("SORT", ran, ran.map(|ran| ran.returned));
        outer.append(cstr!("sortPattern"), sort);
        outer.append(cstr!("memLimit"), 104_857_600);
        if let Some(limit) = around.limit {
            outer.append(cstr!("limitAmount"), clamp(limit + around.skip));
        }
        outer.append(cstr!("type"), "simple");
        stage = nest(outer, stage);
    }
    if around.skip > 0 {
        let mut outer = begin("SKIP", ran, ran.map(|ran| ran.returned));
        outer.append(cstr!("skipAmount"), clamp(around.skip));
        stage = nest(outer, stage);
    }
    if let Some(limit) = around.limit.filter(|_| blocking_sort.is_none()) {
        let mut outer = begin("LIMIT", ran, ran.map(|ran| ran.returned));
        outer.append(cstr!("limitAmount"), clamp(limit));
        stage = nest(outer, stage);
    }
    if let Some(projection) = around
        .projection
        .filter(|projection| !projection.is_empty())
    {
        let mut outer = begin("PROJECTION_DEFAULT", ran, ran.map(|ran| ran.returned));
        outer.append(cstr!("transformBy"), projection);
        stage = nest(outer, stage);
    }
    if let Some(write) = around.write {
        stage = nest(begin(write, ran, Some(0)), stage);
    }
    if around.count {
        let mut outer = begin("COUNT", ran, Some(0));
        if let Some(ran) = ran {
            outer.append(cstr!("nCounted"), clamp(ran.returned));
        }
        stage = nest(outer, stage);
    }
    stage
}

/// What the plans that lost would have done.
pub fn rejected(plan: &Plan, around: &Around<'_>) -> RawArrayBuf {
    plan.rejected
        .iter()
        .map(|other| access(plan, other, around, None))
        .collect()
}

fn access(plan: &Plan, access: &Access, around: &Around<'_>, ran: Option<&Ran>) -> RawDocumentBuf {
    let filter = around
        .filter
        .filter(|filter| !plan.exact && !filter.is_empty());
    match access {
        Access::Nothing => begin("EOF", ran, Some(0)),
        Access::Collection { reverse } => {
            let mut stage = begin("COLLSCAN", ran, ran.map(|ran| ran.returned));
            append_filter(&mut stage, filter);
            stage.append(cstr!("direction"), direction(*reverse));
            if let Some(ran) = ran {
                stage.append(cstr!("docsExamined"), clamp(ran.documents));
            }
            stage
        }
        Access::Index { bounds, .. } if plan.by_id && bounds.index.is_id() => {
            let mut stage = begin("IDHACK", ran, ran.map(|ran| ran.returned));
            if let Some(ran) = ran {
                stage.append(cstr!("keysExamined"), clamp(ran.keys));
                stage.append(cstr!("docsExamined"), clamp(ran.documents));
            }
            stage
        }
        Access::Index { bounds, reverse } => {
            if around.count && plan.exact {
                return index_scan("COUNT_SCAN", bounds, *reverse, ran);
            }
            let scan = index_scan("IXSCAN", bounds, *reverse, ran);
            let mut stage = begin("FETCH", ran, ran.map(|ran| ran.returned));
            append_filter(&mut stage, filter);
            if let Some(ran) = ran {
                stage.append(cstr!("docsExamined"), clamp(ran.documents));
            }
            nest(stage, scan)
        }
        Access::Union(parts) => {
            let mut union = begin("OR", ran, ran.map(|ran| ran.returned));
            let scans: RawArrayBuf = parts
                .iter()
                .map(|bounds| index_scan("IXSCAN", bounds, false, None))
                .collect();
            union.append(cstr!("inputStages"), scans);
            let mut stage = begin("FETCH", ran, ran.map(|ran| ran.returned));
            append_filter(&mut stage, filter);
            if let Some(ran) = ran {
                stage.append(cstr!("docsExamined"), clamp(ran.documents));
            }
            nest(stage, union)
        }
    }
}

fn index_scan(
    name: &str,
    bounds: &IndexBounds,
    reverse: bool,
    ran: Option<&Ran>,
) -> RawDocumentBuf {
    let index = &bounds.index;
    let mut stage = begin(name, ran, ran.map(|ran| ran.keys));
    if let Ok(pattern) = index.spec.get_document("key") {
        stage.append(cstr!("keyPattern"), pattern);
    }
    stage.append(cstr!("indexName"), index.name.as_str());
    stage.append(cstr!("isMultiKey"), bounds.multikey);
    stage.append(cstr!("isUnique"), index.unique);
    stage.append(cstr!("isSparse"), index.sparse);
    stage.append(cstr!("isPartial"), index.partial_filter.is_some());
    stage.append(cstr!("indexVersion"), 2);
    stage.append(cstr!("direction"), direction(reverse));
    let mut shown = RawDocumentBuf::new();
    for ((path, _), intervals) in index.pattern.fields.iter().zip(&bounds.described) {
        if let Ok(name) = bson::raw::CString::try_from(path.to_string()) {
            let intervals: RawArrayBuf = intervals.iter().map(String::as_str).collect();
            shown.append(name, intervals);
        }
    }
    stage.append(cstr!("indexBounds"), shown);
    if let Some(ran) = ran {
        stage.append(cstr!("keysExamined"), clamp(ran.keys));
    }
    stage
}

fn begin(name: &str, ran: Option<&Ran>, returned: Option<u64>) -> RawDocumentBuf {
    let mut stage = rawdoc! { "stage": name };
    if let (Some(ran), Some(returned)) = (ran, returned) {
        stage.append(cstr!("nReturned"), clamp(returned));
        stage.append(
            cstr!("executionTimeMillisEstimate"),
            clamp(ran.milliseconds),
        );
    }
    stage
}

fn nest(mut outer: RawDocumentBuf, inner: RawDocumentBuf) -> RawDocumentBuf {
    outer.append(cstr!("inputStage"), inner);
    outer
}

fn append_filter(stage: &mut RawDocumentBuf, filter: Option<&Filter>) {
    if let Some(filter) = filter {
        stage.append(cstr!("filter"), filter.to_document());
    }
}

fn direction(reverse: bool) -> &'static str {
    if reverse { "backward" } else { "forward" }
}

pub fn clamp(count: u64) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}
