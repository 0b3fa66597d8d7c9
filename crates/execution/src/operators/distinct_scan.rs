//! DISTINCT_SCAN: one record for each value of a field of an index.

use std::ops::Bound;
use std::sync::Arc;

use banyan_document::key::{FieldOrder, FieldValue, KeyReader, Unreadable};
use banyan_document::path::Path;
use banyan_query::QueryError;
use banyan_storage::keys::successor;
use banyan_storage::{Collection, IndexKey, KeyRange, RecordId};
use bson::spec::ElementType;
use bson::{RawDocumentBuf, cstr};

use super::explain::append_bounds;
use super::key_document::{KeyDocument, unreadable};
use super::{Counts, Explainer, Member, Operator, Progress, Run, Stage};
use crate::error::{self, plan_killed};
use crate::plan::IndexBounds;
use crate::plan::explain::clamp;
use crate::row::Row;

/// Keys of the same value are stepped over one by one so often before the scan seeks the next
/// value: a seek costs as much as many steps. Behind a value of which there were more it seeks
/// sooner: others may be many as well.
const STEPS_MAX: usize = 16;

/// The bounds are all that is asked of the documents, and confine the fields before this one to one
/// value.
///
/// Documents without the field share keys with those where it is null. Where only values count, each
/// of those keys is looked at.
pub struct DistinctScan {
    bounds: Arc<IndexBounds>,
    reverse: bool,
    field: usize,
    reads: Reads,
    /// Whether a missing value counts as one.
    with_missing: bool,
    range: usize,
    scan: Option<banyan_storage::IndexScan>,
    /// The entry that it has come to in its range.
    last: Option<(Vec<u8>, RecordId)>,
    /// What the keys of the value that was handed on last begin with.
    passed: Option<Vec<u8>>,
    /// So many steps are taken next before it seeks.
    steps_max: usize,
    keys_examined: u64,
}

/// What is handed on.
pub enum Reads {
    /// Records, whose documents are fetched.
    Records,
    /// What the keys hold of the documents.
    Keys(KeyDocument),
    /// A document of the value alone: that of an item, where the path leads to or through arrays.
    Items,
}

impl DistinctScan {
    pub fn new(bounds: Arc<IndexBounds>, reverse: bool, field: usize, reads: Reads) -> Self {
        DistinctScan {
            bounds,
            reverse,
            field,
            reads,
            with_missing: false,
            range: 0,
            scan: None,
            last: None,
            passed: None,
            steps_max: STEPS_MAX,
            keys_examined: 0,
        }
    }

    /// A missing value counts, as null.
    pub fn with_missing(mut self) -> DistinctScan {
        self.with_missing = true;
        self
    }

    /// The next record with another value. `None`: the ranges have ended.
    fn step(&mut self, run: &mut Run<'_>) -> Result<Option<Member>, QueryError> {
        let mut steps = 0;
        loop {
            if steps >= self.steps_max {
                self.scan = None;
                self.steps_max = match self.steps_max {
                    STEPS_MAX => 1,
                    steps => steps * 2,
                };
                steps = 0;
            }
            if self.scan.is_none() && !self.seek(run) {
                return Ok(None);
            }
            let next = self.scan.as_mut().and_then(Iterator::next);
            let Some((key, record)) = next.transpose().map_err(error::storage)? else {
                self.range += 1;
                (self.scan, self.last, self.passed) = (None, None, None);
                continue;
            };
            self.keys_examined += 1;
            run.examine_key()?;
            if let Some(passed) = &self.passed
                && key.starts_with(passed)
            {
                steps += 1;
                continue;
            }
            if steps > 0 {
                self.steps_max = STEPS_MAX;
            }
            let read = self.read(&key, record);
            let found = read.map_err(|_| unreadable(&self.bounds.index.name))?;
            if found.is_some() {
                return Ok(found);
            }
        }
    }

    /// Begins to scan what is left of the ranges. False: nothing is.
    fn seek(&mut self, run: &Run<'_>) -> bool {
        let bounds = &self.bounds;
        let count = bounds.ranges.len();
        let place = match self.reverse {
            false => Some(self.range),
            true => count.checked_sub(self.range + 1),
        };
        let Some(range) = place.and_then(|place| bounds.ranges.get(place)) else {
            return false;
        };
        let (index, reverse) = (&bounds.index, self.reverse);
        let scan = match (&self.passed, &self.last) {
            (Some(passed), _) => {
                let mut range = range.range.clone();
                match reverse {
                    false => {
                        range.lower = match successor(passed.clone()) {
                            Some(next) => Bound::Included(next),
                            None => Bound::Excluded(passed.clone()),
                        }
                    }
                    true => range.upper = Bound::Excluded(passed.clone()),
                }
                run.snapshot.scan_index(index, range, reverse)
            }
            (None, Some((key, record))) => {
                let last = (key.as_slice(), record);
                run.snapshot
                    .scan_index_after(index, &range.range, reverse, last)
            }
            (None, None) => {
                let KeyRange { lower, upper } = range.range.clone();
                run.snapshot
                    .scan_index(index, KeyRange { lower, upper }, reverse)
            }
        };
        self.scan = Some(scan);
        true
    }

    /// `None`: there is no value in the field.
    fn read(&mut self, key: &IndexKey, record: RecordId) -> Result<Option<Member>, Unreadable> {
        let mut reader = KeyReader::new(key, key.types());
        let mut fields = self.bounds.layout.fields.iter();
        for (_, order) in fields.by_ref().take(self.field) {
            reader.skip(*order)?;
        }
        let (path, order) = fields.next().ok_or(Unreadable)?;
        let is_item = matches!(self.reads, Reads::Items);
        let mut value = Vec::new();
        if !self.with_missing && (self.is_readable() || is_item) {
            let name = path.parts().last().map_or("", |name| name);
            if reader.read(*order, name, &mut value)? != FieldValue::Present {
                self.last = Some((key.to_vec(), record));
                return Ok(None);
            }
        } else {
            reader.skip(*order)?;
        }
        self.passed = Some(key[..reader.position()].to_vec());
        let row = match &mut self.reads {
            Reads::Records => None,
            Reads::Keys(document) => {
                let document = document.read(key, key.types());
                Some(document.map_err(|_| Unreadable)?.to_owned())
            }
            Reads::Items => Some(item(path, &value).ok_or(Unreadable)?),
        };
        let row = row.map(Row::Owned);
        Ok(Some(Member { record, row }))
    }

    fn is_readable(&self) -> bool {
        self.bounds.readable.get(self.field) == Some(&true)
    }
}

/// A document with an element at a path. An array is put into an array: it is an item itself.
fn item(path: &Path, element: &[u8]) -> Option<RawDocumentBuf> {
    let (last, above) = path.parts().split_last()?;
    let is_array = *element.first()? == ElementType::Array as u8;
    let element = match is_array {
        false => element.to_vec(),
        true => {
            let mut wrapped = vec![ElementType::Array as u8];
            wrapped.extend_from_slice(last.as_bytes());
            wrapped.push(0);
            let value = element.get(last.len() + 2..)?;
            let inner = [&[ElementType::Array as u8, b'0', 0], value].concat();
            enclose(&inner, &mut wrapped);
            wrapped
        }
    };
    let mut element = element;
    for name in above.iter().rev() {
        let mut outer = vec![ElementType::EmbeddedDocument as u8];
        outer.extend_from_slice(name.as_bytes());
        outer.push(0);
        enclose(&element, &mut outer);
        element = outer;
    }
    let mut document = Vec::with_capacity(element.len() + 5);
    enclose(&element, &mut document);
    RawDocumentBuf::from_bytes(document).ok()
}

/// Appends a document of these elements.
fn enclose(elements: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&(elements.len() as u32 + 5).to_le_bytes());
    out.extend_from_slice(elements);
    out.push(0);
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
            let Some(member) = self.step(run)? else {
                progress = Progress::End;
                break;
            };
            out.push(member);
        }
        Ok((self.keys_examined - examined, progress))
    }

    fn save(&mut self) {
        self.scan = None;
    }

    fn restore(&mut self, collection: &Collection) -> Result<(), QueryError> {
        let bounds = &self.bounds;
        let Some(index) = collection.index_by_id(bounds.index.id) else {
            let name = &bounds.index.name;
            return Err(plan_killed(&format!("index '{name}' dropped")));
        };
        let arrays = index.arrays();
        let is_new =
            |(path, _): &(Path, FieldOrder)| arrays.are_on(path) && !bounds.arrays.are_on(path);
        if bounds.layout.fields.iter().any(is_new) {
            return Err(plan_killed(
                "an index became multikey between getMore calls",
            ));
        }
        Ok(())
    }

    fn describe(&self, stage: &mut RawDocumentBuf, _: &Counts, explainer: Explainer) {
        append_bounds(stage, &self.bounds, self.reverse);
        if explainer.ran() {
            stage.append(cstr!("keysExamined"), clamp(self.keys_examined));
        }
    }
}
