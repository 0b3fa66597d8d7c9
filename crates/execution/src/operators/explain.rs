//! Stages in MongoDB's words.

use banyan_document::key::FieldOrder;
use banyan_query::Filter;
use banyan_query::metadata::DISTANCE_FIELD;
use banyan_query::sort::SortPattern;
use banyan_query::text::TEXT_SCORE_FIELD;
use bson::{RawArrayBuf, RawDocumentBuf, cstr, rawdoc};

use super::Counts;
use crate::plan::IndexBounds;
use crate::plan::explain::clamp;

/// What `explain` wants to know of a tree.
#[derive(Debug, Clone, Copy, Default)]
pub struct Explainer {
    /// How long the run has taken; `None` if only the plan is asked for.
    pub milliseconds: Option<u64>,
}

impl Explainer {
    pub(super) fn ran(self) -> bool {
        self.milliseconds.is_some()
    }

    pub(super) fn stage(
        self,
        name: &str,
        filter: Option<&Filter>,
        counts: &Counts,
    ) -> RawDocumentBuf {
        let mut stage = rawdoc! { "stage": name };
        if let Some(filter) = filter.filter(|filter| !filter.is_empty()) {
            stage.append(cstr!("filter"), filter.to_document());
        }
        if let Some(milliseconds) = self.milliseconds {
            let idle = counts.works.saturating_sub(counts.advanced);
            stage.append(cstr!("nReturned"), clamp(counts.advanced));
            stage.append(cstr!("executionTimeMillisEstimate"), clamp(milliseconds));
            stage.append(cstr!("works"), clamp(counts.works));
            stage.append(cstr!("advanced"), clamp(counts.advanced));
            stage.append(
                cstr!("needTime"),
                clamp(idle.saturating_sub(u64::from(counts.ended))),
            );
            stage.append(cstr!("needYield"), 0);
            stage.append(cstr!("saveState"), clamp(counts.saves));
            stage.append(cstr!("restoreState"), clamp(counts.restores));
            stage.append(cstr!("isEOF"), i32::from(counts.ended));
        }
        stage
    }
}

pub(super) fn direction(reverse: bool) -> &'static str {
    if reverse { "backward" } else { "forward" }
}

/// What is said of an index and the part of it that is read.
pub(super) fn append_bounds(stage: &mut RawDocumentBuf, bounds: &IndexBounds, reverse: bool) {
    let index = &bounds.index;
    match &bounds.layout.prefix {
        Some(prefix) => {
            let mut pattern = RawDocumentBuf::new();
            append(&mut pattern, prefix.field, 1);
            for (path, _) in bounds.layout.fields.iter() {
                append(&mut pattern, &path.to_string(), 1);
            }
            stage.append(cstr!("keyPattern"), pattern);
        }
        None => {
            if let Ok(pattern) = index.spec.get_document("key") {
                stage.append(cstr!("keyPattern"), pattern);
            }
        }
    }
    stage.append(cstr!("indexName"), index.name.as_str());
    if let Some(collator) = &index.pattern.collator {
        stage.append(cstr!("collation"), collator.collation().to_document());
    }
    stage.append(cstr!("isMultiKey"), bounds.multikey);
    let is_text = index.kind.text().is_some();
    // Of texts and of points of a plane MongoDB knows none.
    if !is_text && index.kind.grid().is_none() {
        stage.append(cstr!("multiKeyPaths"), multikey_paths(bounds));
    }
    stage.append(cstr!("isUnique"), index.unique);
    stage.append(cstr!("isSparse"), index.sparse);
    stage.append(cstr!("isPartial"), index.partial_filter.is_some());
    stage.append(cstr!("indexVersion"), 2);
    stage.append(cstr!("direction"), direction(reverse));
    let mut shown = RawDocumentBuf::new();
    if is_text {
        // The stage above names the terms.
        stage.append(cstr!("indexBounds"), shown);
        return;
    }
    if let Some(prefix) = &bounds.layout.prefix {
        let at = prefix
            .paths
            .iter()
            .map(|path| format!("[{path:?}, {path:?}]"));
        let below = prefix.paths.iter().filter(|_| prefix.with_below);
        let below = below.map(|path| {
            let (first, end) = (format!("{path}."), format!("{path}/"));
            format!("[{first:?}, {end:?})")
        });
        let intervals: Vec<String> = at.chain(below).collect();
        let intervals: RawArrayBuf = intervals.iter().map(String::as_str).collect();
        append(&mut shown, prefix.field, intervals);
    }
    for ((path, _), intervals) in bounds.layout.fields.iter().zip(bounds.described()) {
        let intervals: Vec<String> = intervals.collect();
        let intervals: RawArrayBuf = intervals.iter().map(String::as_str).collect();
        append(&mut shown, &path.to_string(), intervals);
    }
    stage.append(cstr!("indexBounds"), shown);
}

/// Of each field, the beginnings of its path at which there are arrays.
fn multikey_paths(bounds: &IndexBounds) -> RawDocumentBuf {
    let mut shown = RawDocumentBuf::new();
    if let Some(prefix) = &bounds.layout.prefix {
        append(&mut shown, prefix.field, RawArrayBuf::new());
    }
    for (path, _) in bounds.layout.fields.iter() {
        let depths = bounds.arrays.depths(path).into_iter();
        let arrays = depths.map(|depth| path.parts()[..depth].join("."));
        append(
            &mut shown,
            &path.to_string(),
            arrays.collect::<RawArrayBuf>(),
        );
    }
    shown
}

/// A path holds no zero byte.
fn append(document: &mut RawDocumentBuf, name: &str, value: impl bson::raw::BindRawBsonRef) {
    if let Ok(name) = bson::raw::CString::try_from(name) {
        document.append(name, value);
    }
}

/// A sort pattern as it was written.
pub(crate) fn pattern(sort: &SortPattern) -> RawDocumentBuf {
    let mut shown = RawDocumentBuf::new();
    for (number, (path, order)) in sort.fields().iter().enumerate() {
        if path.head() == DISTANCE_FIELD {
            let name = format!("$computed{number}");
            append(&mut shown, &name, rawdoc! { "$meta": "geoNearDistance" });
            continue;
        }
        if path.head() == TEXT_SCORE_FIELD {
            let name = format!("$computed{number}");
            append(&mut shown, &name, rawdoc! { "$meta": "textScore" });
            continue;
        }
        if let Ok(name) = bson::raw::CString::try_from(path.to_string()) {
            let descending = *order == FieldOrder::Descending;
            shown.append(name, if descending { -1 } else { 1 });
        }
    }
    shown
}
