//! DISTINCT_SCAN: one document for each value of an index's first field.

use std::ops::Bound;
use std::sync::Arc;

use banyan_document::key::{self, FieldOrder};
use banyan_document::path::{self, Path};
use banyan_query::QueryError;
use banyan_storage::keys::successor;
use banyan_storage::{Collection, KeyRange, RecordId, StorageError};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, cstr};

use super::explain::append_bounds;
use super::fetch::document_of;
use super::{Counts, Explainer, Member, Operator, Progress, Run, Stage};
use crate::error;
use crate::plan::IndexBounds;
use crate::plan::explain::clamp;
use crate::row::Row;

/// Keys of the same value are stepped over one by one so often before the scan seeks the next
/// value: a seek costs as much as many steps.
const STEPS_MAX: usize = 16;

/// The index is not multikey, and its bounds are all that is asked of the documents.
///
/// Documents without the field share a key with those where it is null, so all of them are handed
/// on.
pub struct DistinctScan {
    collection: Arc<Collection>,
    bounds: Arc<IndexBounds>,
    path: Path,
    order: FieldOrder,
    range: usize,
    scan: Option<banyan_storage::IndexScan>,
    /// The lowest key of the range that may still come.
    lower: Option<Vec<u8>>,
    /// What the keys of the value that was handed on last begin with.
    passed: Option<Vec<u8>>,
    keys_examined: u64,
    documents_examined: u64,
}

impl DistinctScan {
    /// `None` if the index has no fields.
    pub fn new(collection: Arc<Collection>, bounds: Arc<IndexBounds>) -> Option<DistinctScan> {
        let (path, order) = bounds.index.pattern.fields.first()?.clone();
        Some(DistinctScan {
            collection,
            bounds,
            path,
            order,
            range: 0,
            scan: None,
            lower: None,
            passed: None,
            keys_examined: 0,
            documents_examined: 0,
        })
    }

    /// The next record with another value. `None`: the ranges have ended.
    fn step(&mut self, run: &mut Run<'_>) -> Result<Option<RecordId>, QueryError> {
        let mut steps = 0;
        loop {
            let index = &self.bounds.index;
            let Some(range) = self.bounds.ranges.get(self.range) else {
                return Ok(None);
            };
            if let Some(passed) = self.passed.as_ref().filter(|_| steps >= STEPS_MAX) {
                self.lower = successor(passed.clone());
                self.scan = None;
                steps = 0;
            }
            let scan = self.scan.get_or_insert_with(|| {
                let lower = match &self.lower {
                    Some(lower) => Bound::Included(lower.clone()),
                    None => range.range.lower.clone(),
                };
                let upper = range.range.upper.clone();
                run.snapshot
                    .scan_index(index, KeyRange { lower, upper }, false)
            });
            let Some((key, record)) = scan.next().transpose().map_err(error::storage)? else {
                self.range += 1;
                self.scan = None;
                self.lower = None;
                continue;
            };
            self.keys_examined += 1;
            run.examine_key()?;
            match &self.passed {
                Some(passed) if key.starts_with(passed) => steps += 1,
                _ => {
                    self.lower = Some(key.to_vec());
                    return Ok(Some(record));
                }
            }
        }
    }

    /// What the keys of this document's value begin with; `None` where others may share them.
    fn prefix(&self, document: &RawDocument) -> Option<Vec<u8>> {
        let value = path::get(document, &self.path)?;
        let mut prefix = Vec::with_capacity(16);
        let collator = self.bounds.index.pattern.collator.as_ref();
        match (value, self.order) {
            (RawBsonRef::Null | RawBsonRef::Undefined | RawBsonRef::Array(_), _) => return None,
            (_, FieldOrder::Hashed) => return None,
            (value, order) => key::encode_ordered(Some(value), order, collator, &mut prefix),
        }
        Some(prefix)
    }
}

impl Operator for DistinctScan {
    fn name(&self) -> &'static str {
        "DISTINCT_SCAN"
    }

    fn next(
        &mut self,
        _: &mut [Stage],
        run: &mut Run<'_>,
        most: usize,
        out: &mut Vec<Member>,
    ) -> Result<(u64, Progress), QueryError> {
        let examined = self.keys_examined;
        let mut progress = Progress::More;
        while out.len() < most && run.work() {
            let Some(record) = self.step(run)? else {
                progress = Progress::End;
                break;
            };
            let found = document_of(run, &self.collection, &record)?;
            self.documents_examined += 1;
            let document: &RawDocument = &found;
            run.examine_document(document.as_bytes().len())?;
            self.passed = self.prefix(document);
            let row = Some(Row::Record(found));
            out.push(Member { record, row });
        }
        Ok((self.keys_examined - examined, progress))
    }

    fn save(&mut self) {
        self.scan = None;
    }

    fn restore(&mut self, _: &Collection) -> Result<(), QueryError> {
        // A distinct is answered at once, so it never goes on in another snapshot.
        Err(error::storage(StorageError::Damaged {
            place: self.collection.namespace.to_string(),
            reason: "a distinct scan was resumed".into(),
        }))
    }

    fn describe(&self, stage: &mut RawDocumentBuf, _: &Counts, explainer: Explainer) {
        append_bounds(stage, &self.bounds, false);
        if explainer.ran() {
            stage.append(cstr!("keysExamined"), clamp(self.keys_examined));
            stage.append(cstr!("docsExamined"), clamp(self.documents_examined));
        }
    }
}
