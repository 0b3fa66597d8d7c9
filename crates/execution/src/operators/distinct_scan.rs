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
use super::stepping::Stepping;
use super::{Counts, Explainer, Member, Operator, Progress, Run, Stage};
use crate::error::{self, became_multikey};
use crate::plan::IndexBounds;
use crate::plan::explain::clamp;
use crate::row::Row;

/// The bounds are all that is asked of the documents, and confine the fields before this one to one
/// value.
pub struct DistinctScan {
    bounds: Arc<IndexBounds>,
    reverse: bool,
    range: usize,
    scan: Option<banyan_storage::IndexScan>,
    /// The scan is to go on behind the value that was handed on last.
    leaps: bool,
    reading: Reading,
    /// Keys of the same value are stepped over, or the next value is sought.
    stepping: Stepping,
    keys_examined: u64,
}

/// What is handed on.
pub enum Reads {
    /// Records, whose documents are fetched.
    Records,
    /// What the keys hold of the documents.
    Keys(KeyDocument),
    /// A document of the value alone, as the keys hold it: of an array each item, of an empty one
    /// undefined, null where there is none. MongoDB has both among the values that it reads from
    /// keys, and neither among those of documents.
    Values,
}

/// What is made of a key.
struct Reading {
    /// The fields up to the one whose values are wanted.
    fields: Vec<FieldOrder>,
    path: Path,
    reads: Reads,
    /// Whether documents that have no value are left out: they share keys with those where it is
    /// null, so that each of those keys is looked at.
    leaves_missing_out: bool,
    /// The entry that it has come to in its range.
    last: Option<(Vec<u8>, RecordId)>,
    /// What the keys of the value that was handed on last begin with.
    passed: Option<Vec<u8>>,
    /// The value's element.
    element: Vec<u8>,
}

impl Reading {
    /// `None`: there is no value in the field.
    fn read(&mut self, key: &IndexKey, record: &RecordId) -> Result<Option<Member>, Unreadable> {
        let mut reader = KeyReader::new(key, key.types());
        let (field, before) = self.fields.split_last().ok_or(Unreadable)?;
        for order in before {
            reader.skip(*order)?;
        }
        let reads_values = matches!(self.reads, Reads::Values);
        if reads_values || self.leaves_missing_out {
            let name = self.path.parts().last().map_or("", |name| name);
            self.element.clear();
            let stands_for = match reader.read(*field, name, &mut self.element)? {
                FieldValue::Present => None,
                _ if !reads_values => {
                    self.last = Some((key.to_vec(), record.clone()));
                    return Ok(None);
                }
                FieldValue::Missing { .. } => Some(ElementType::Null),
                FieldValue::EmptyArray => Some(ElementType::Undefined),
            };
            if let Some(kind) = stands_for {
                self.element.push(kind as u8);
                self.element.extend_from_slice(name.as_bytes());
                self.element.push(0);
            }
        } else {
            reader.skip(*field)?;
        }
        let passed = self.passed.get_or_insert_default();
        passed.clear();
        passed.extend_from_slice(&key[..reader.position()]);
        let row = match &mut self.reads {
            Reads::Records => None,
            Reads::Keys(document) => {
                let document = document.read(key, key.types());
                Some(document.map_err(|_| Unreadable)?.to_owned())
            }
            Reads::Values => Some(document_of(&self.path, &self.element).ok_or(Unreadable)?),
        };
        Ok(Some(Member::new(record.clone(), row.map(Row::Owned))))
    }
}

impl DistinctScan {
    /// `with_missing`: where records are handed on, one of a document without a value is, too.
    pub fn new(
        bounds: Arc<IndexBounds>,
        reverse: bool,
        field: usize,
        reads: Reads,
        with_missing: bool,
    ) -> Self {
        let is_readable = bounds.readable.get(field) == Some(&true);
        let fields = &bounds.layout.fields;
        let reading = Reading {
            path: fields[field].0.clone(),
            fields: fields[..=field].iter().map(|(_, order)| *order).collect(),
            reads,
            leaves_missing_out: !with_missing && is_readable,
            last: None,
            passed: None,
            element: Vec::new(),
        };
        DistinctScan {
            bounds,
            reverse,
            range: 0,
            scan: None,
            leaps: false,
            reading,
            stepping: Stepping::default(),
            keys_examined: 0,
        }
    }

    /// The next record with another value. `None`: the ranges have ended.
    fn step(&mut self, run: &mut Run<'_>) -> Result<Option<Member>, QueryError> {
        loop {
            if (self.leaps || self.scan.is_none()) && !self.seek(run) {
                return Ok(None);
            }
            self.leaps = false;
            let next = match &mut self.scan {
                Some(scan) => scan.advance().map_err(error::storage)?,
                None => None,
            };
            let reading = &mut self.reading;
            let Some((key, record)) = next else {
                (self.scan, reading.last) = (None, None);
                self.leave_range();
                continue;
            };
            self.keys_examined += 1;
            run.examine_key()?;
            if let Some(passed) = &reading.passed
                && key.starts_with(passed)
            {
                self.leaps = self.stepping.should_seek();
                continue;
            }
            self.stepping.arrive();
            let read = reading.read(key, record);
            let found = read.map_err(|_| unreadable(&self.bounds.index.name))?;
            if found.is_some() {
                return Ok(found);
            }
        }
    }

    /// Goes on with the next range of another value: where later fields have several values, there are
    /// several ranges of one.
    fn leave_range(&mut self) {
        let Some(passed) = self.reading.passed.take() else {
            self.range += 1;
            return;
        };
        loop {
            self.range += 1;
            let lower = self.place().map(|at| &self.bounds.ranges[at].range.lower);
            match lower {
                Some(Bound::Included(key) | Bound::Excluded(key)) if key.starts_with(&passed) => {}
                _ => return,
            }
        }
    }

    /// Where the current range is among all; `None`: they have ended.
    fn place(&self) -> Option<usize> {
        let count = self.bounds.ranges.len();
        let place = match self.reverse {
            false => Some(self.range),
            true => count.checked_sub(self.range + 1),
        };
        place.filter(|place| *place < count)
    }

    /// Begins to scan what is left of the ranges. False: nothing is.
    fn seek(&mut self, run: &Run<'_>) -> bool {
        let bounds = &self.bounds;
        let Some(range) = self.place().and_then(|place| bounds.ranges.get(place)) else {
            return false;
        };
        let (index, reverse) = (&bounds.index, self.reverse);
        let scan = match (&self.reading.passed, &self.reading.last) {
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
                if let Some(scan) = &mut self.scan
                    && run.snapshot.scan_on(scan, index, &range)
                {
                    return true;
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
}

/// A document with an element at a path. An array is put into an array: it is an item itself.
fn document_of(path: &Path, element: &[u8]) -> Option<RawDocumentBuf> {
    let (last, above) = path.parts().split_last()?;
    let is_array = *element.first()? == ElementType::Array as u8;
    if above.is_empty() && !is_array {
        let mut document = Vec::with_capacity(element.len() + 5);
        enclose(element, &mut document);
        return RawDocumentBuf::from_bytes(document).ok();
    }
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
        let arrays = bounds.index_in(collection)?.arrays();
        let is_new =
            |(path, _): &(Path, FieldOrder)| arrays.are_on(path) && !bounds.arrays.are_on(path);
        if bounds.layout.fields.iter().any(is_new) {
            return Err(became_multikey());
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
