//! Stages in MongoDB's words.

use banyan_document::key::FieldOrder;
use banyan_query::Filter;
use banyan_query::metadata::DISTANCE_FIELD;
use banyan_query::sort::SortPattern;
use banyan_query::text::TEXT_SCORE_FIELD;
use banyan_storage::KeyPrefix;
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
    append_index(stage, bounds);
    stage.append(cstr!("direction"), direction(reverse));
    stage.append(cstr!("indexBounds"), intervals(bounds, reverse));
}

/// The same where the part is one range of which the keys are counted.
pub(super) fn append_range(stage: &mut RawDocumentBuf, bounds: &IndexBounds) {
    append_index(stage, bounds);
    stage.append(cstr!("indexBounds"), ends(bounds));
}

fn append_index(stage: &mut RawDocumentBuf, bounds: &IndexBounds) {
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
    // Of texts and of points of a plane MongoDB knows none.
    if index.kind.text().is_none() && index.kind.grid().is_none() {
        stage.append(cstr!("multiKeyPaths"), multikey_paths(bounds));
    }
    stage.append(cstr!("isUnique"), index.unique);
    stage.append(cstr!("isSparse"), index.sparse);
    stage.append(cstr!("isPartial"), index.partial_filter.is_some());
    stage.append(cstr!("indexVersion"), 2);
}

/// Of each field the intervals, in the order in which a scan meets them.
fn intervals(bounds: &IndexBounds, reverse: bool) -> RawDocumentBuf {
    let mut shown = RawDocumentBuf::new();
    if bounds.index.kind.text().is_some() {
        // The stage above names the terms.
        return shown;
    }
    let array =
        |intervals: &[String]| -> RawArrayBuf { intervals.iter().map(String::as_str).collect() };
    if let Some(prefix) = &bounds.layout.prefix {
        append(
            &mut shown,
            prefix.field,
            array(&described_prefix(prefix, reverse)),
        );
    }
    for ((path, _), intervals) in bounds.layout.fields.iter().zip(bounds.described(reverse)) {
        append(&mut shown, &path.to_string(), array(&intervals));
    }
    shown
}

fn described_prefix(prefix: &KeyPrefix, reverse: bool) -> Vec<String> {
    let at = |path: &String| format!("[{path:?}, {path:?}]");
    let below = |path: &String| {
        let (first, end) = (format!("{path}."), format!("{path}/"));
        match reverse {
            true => format!("({end:?}, {first:?}]"),
            false => format!("[{first:?}, {end:?})"),
        }
    };
    let all_below = prefix.paths.iter().filter(|_| prefix.with_below).map(below);
    let mut shown: Vec<String> = prefix.paths.iter().map(at).chain(all_below).collect();
    if reverse {
        shown.reverse();
    }
    shown
}

/// The first and the last key of one range, and whether keys that begin so belong to it.
fn ends(bounds: &IndexBounds) -> RawDocumentBuf {
    let (mut start, mut end) = (RawDocumentBuf::new(), RawDocumentBuf::new());
    let (mut with_start, mut with_end) = (true, true);
    for ((path, order), intervals) in bounds.layout.fields.iter().zip(&bounds.intervals) {
        let Some(interval) = intervals.first() else {
            continue;
        };
        let [first, last] = interval.ends(*order == FieldOrder::Descending);
        let name = path.to_string();
        // Behind an end that does not belong, the range begins after all keys, or ends before them.
        let behind = |with: bool, inside, outside| if with { inside } else { outside };
        let (from, to) = (
            behind(with_start, first, last),
            behind(with_end, last, first),
        );
        append(&mut start, &name, from.value.get());
        append(&mut end, &name, to.value.get());
        with_start &= first.inclusive;
        with_end &= last.inclusive;
    }
    rawdoc! {
        "startKey": start,
        "startKeyInclusive": with_start,
        "endKey": end,
        "endKeyInclusive": with_end,
    }
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
