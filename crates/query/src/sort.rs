//! Sorting: a document's place as bytes, and a bounded sorter over them.
//!
//! A sort key is an index key: where arrays give a document several, the lowest counts (the
//! highest of a descending field is its lowest). Equal keys keep the order they came in.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use banyan_document::Collator;
use banyan_document::element::elements;
use banyan_document::key::{FieldOrder, KeyPattern};
use banyan_document::number::Number;
use banyan_document::path::Path;
use bson::{RawBsonRef, RawDocument};

use crate::budget::{Budget, STAGE_BYTES_MAX};
use crate::error::{ErrorKind, QueryError};
use crate::expression::field::FieldPath;
use crate::expression::value::describe;

/// What a sort may hold in memory.
pub const MEMORY_BYTES_MAX: usize = STAGE_BYTES_MAX;

/// The fields to sort by, most significant first. Without fields, all documents are equal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SortPattern {
    pattern: KeyPattern,
}

impl SortPattern {
    /// With a collator, strings are sorted by it.
    pub fn parse(
        sort: &RawDocument,
        collator: Option<&Collator>,
    ) -> Result<SortPattern, QueryError> {
        let mut fields = Vec::new();
        for element in elements(sort) {
            FieldPath::parse(element.name())?;
            let path = Path::parse(element.name())
                .map_err(|error| QueryError::new(ErrorKind::BadValue, error.to_string()))?;
            fields.push((path, order(element.name(), element.value())?));
        }
        Ok(SortPattern {
            pattern: KeyPattern {
                fields,
                collator: collator.cloned(),
            },
        })
    }

    pub fn is_empty(&self) -> bool {
        self.pattern.fields.is_empty()
    }

    pub fn fields(&self) -> &[(Path, FieldOrder)] {
        &self.pattern.fields
    }

    /// The sort as a key pattern, for comparing with those of indexes.
    pub fn pattern(&self) -> &KeyPattern {
        &self.pattern
    }

    /// Bytes that sort as the documents do. There are none where two of the fields go through
    /// different arrays.
    pub fn key(&self, document: &RawDocument) -> Result<Vec<u8>, QueryError> {
        let keys = self.pattern.keys(document).map_err(|_| {
            let message = "cannot sort with keys that are parallel arrays";
            QueryError::new(ErrorKind::BadValue, message)
        })?;
        Ok(keys.keys.into_iter().next().unwrap_or_default())
    }

    pub fn compare(&self, a: &RawDocument, b: &RawDocument) -> Result<Ordering, QueryError> {
        Ok(self.key(a)?.cmp(&self.key(b)?))
    }
}

fn order(name: &str, value: RawBsonRef<'_>) -> Result<FieldOrder, QueryError> {
    let error = |code, message: String| Err(QueryError::new(ErrorKind::Location(code), message));
    if let RawBsonRef::Document(document) = value {
        if elements(document)
            .next()
            .is_some_and(|first| first.name() == "$meta")
        {
            let message = "query requires text score metadata, but it is not available";
            return error(40218, message.to_string());
        }
        return error(
            17312,
            "$meta is the only expression supported by $sort right now".into(),
        );
    }
    match Number::from_raw(value).map(Number::to_i64_saturating) {
        Some(1) => Ok(FieldOrder::Ascending),
        Some(-1) => Ok(FieldOrder::Descending),
        Some(_) => error(
            15975,
            "$sort key ordering must be 1 (for ascending) or -1 (for descending)".into(),
        ),
        None => {
            let shown = describe(Some(value));
            error(
                15974,
                format!("Illegal key in $sort specification: {name}: {shown}"),
            )
        }
    }
}

/// Sorts items by their keys, keeping the first `limit` of them if there is one.
#[derive(Debug)]
pub struct Sorter<T> {
    /// The greatest on top, so that the first `limit` are at hand.
    heap: BinaryHeap<Entry<T>>,
    limit: Option<usize>,
    arrived: u64,
    bytes: usize,
    bytes_max: usize,
}

#[derive(Debug)]
struct Entry<T> {
    key: Vec<u8>,
    arrival: u64,
    bytes: usize,
    item: T,
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Entry<T>) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T> Eq for Entry<T> {}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Entry<T>) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Entry<T>) -> Ordering {
        self.key
            .cmp(&other.key)
            .then_with(|| self.arrival.cmp(&other.arrival))
    }
}

impl<T> Sorter<T> {
    /// A limit of zero is none.
    pub fn new(limit: Option<usize>) -> Sorter<T> {
        Sorter::with_memory(limit, MEMORY_BYTES_MAX)
    }

    pub fn with_memory(limit: Option<usize>, bytes_max: usize) -> Sorter<T> {
        let limit = limit.filter(|limit| *limit > 0);
        Sorter {
            heap: BinaryHeap::new(),
            limit,
            arrived: 0,
            bytes: 0,
            bytes_max,
        }
    }

    /// Whether an item with this key would be kept. Asking first saves making the item.
    pub fn wants(&self, key: &[u8]) -> bool {
        match (self.limit, self.heap.peek()) {
            (Some(limit), Some(worst)) => self.heap.len() < limit || key < worst.key.as_slice(),
            _ => true,
        }
    }

    /// `item_bytes` is what the item holds in memory.
    pub fn push(&mut self, key: Vec<u8>, item: T, item_bytes: usize) -> Result<(), QueryError> {
        let arrival = self.arrived;
        self.arrived += 1;
        if !self.wants(&key) {
            return Ok(());
        }
        let bytes = key.len() + item_bytes + size_of::<Entry<T>>();
        self.bytes += bytes;
        self.heap.push(Entry {
            key,
            arrival,
            bytes,
            item,
        });
        if self.limit.is_some_and(|limit| self.heap.len() > limit)
            && let Some(worst) = self.heap.pop()
        {
            self.bytes -= worst.bytes;
        }
        if self.bytes > self.bytes_max {
            let message = format!(
                "Sort exceeded memory limit of {} bytes, but did not opt in to external sorting.",
                self.bytes_max
            );
            let kind = ErrorKind::QueryExceededMemoryLimitNoDiskUseAllowed;
            return Err(QueryError::new(kind, message));
        }
        Ok(())
    }

    pub fn len(&self) -> usize {
        self.heap.len()
    }

    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// What is held now.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The items in order. Long lists are sorted in runs, so that the work can be ended on the
    /// way, and merged as they are taken.
    pub fn finish(self, budget: &Budget) -> Result<Sorted<T>, QueryError> {
        let mut entries = self.heap.into_vec();
        let mut runs = Vec::with_capacity(entries.len() / RUN_ITEMS + 1);
        while !entries.is_empty() {
            let mut run = entries.split_off(entries.len().saturating_sub(RUN_ITEMS));
            let key_bytes: usize = run.iter().map(|entry| entry.key.len()).sum();
            // Each entry is compared about as often as the run's size has bits.
            budget.spend_bytes(RUN_BITS * key_bytes)?;
            budget.spend(RUN_BITS * run.len())?;
            run.sort_unstable();
            runs.push(run.into_iter());
        }
        let mut heads = BinaryHeap::with_capacity(runs.len());
        for (index, run) in runs.iter_mut().enumerate() {
            heads.extend(run.next().map(|entry| Reverse((entry, index))));
        }
        Ok(Sorted { runs, heads })
    }
}

/// So many entries are sorted at once.
const RUN_ITEMS: usize = 1 << RUN_BITS;
const RUN_BITS: usize = 10;

/// What was sorted, in order.
#[derive(Debug)]
pub struct Sorted<T> {
    runs: Vec<std::vec::IntoIter<Entry<T>>>,
    /// The first of each run, with the run's number.
    heads: BinaryHeap<Reverse<(Entry<T>, usize)>>,
}

impl<T> Iterator for Sorted<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        let mut head = self.heads.peek_mut()?;
        let Reverse((entry, run)) = &mut *head;
        match self.runs.get_mut(*run).and_then(Iterator::next) {
            Some(following) => Some(std::mem::replace(entry, following).item),
            None => {
                let Reverse((entry, _)) = PeekMut::pop(head);
                Some(entry.item)
            }
        }
    }
}

#[cfg(test)]
mod tests;
