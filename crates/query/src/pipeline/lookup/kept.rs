//! Foreign documents that are kept by the value that joins them: in a hash table in memory, or in a
//! table on disk if they do not fit.

use std::collections::HashMap;
use std::ops::ControlFlow;

use bson::{RawBson, RawBsonRef, RawDocument, RawDocumentBuf};

use banyan_document::path::{self, Leaf, Path, visit_with};
use banyan_document::{Collator, key};

use crate::budget::Budget;
use crate::error::QueryError;
use crate::memory::{Holding, consumer};
use crate::merge_sort;
use crate::spill::{Runs, Table, damaged};

/// The documents by the values at the path, as places in a list of them.
type Places = HashMap<Box<[u8]>, Vec<u32>>;

pub(super) struct Kept {
    /// How the values are compared as strings.
    collator: Option<Collator>,
    documents: Documents,
}

enum Documents {
    InMemory {
        documents: Vec<RawDocumentBuf>,
        /// `None`: all of them belong to every document.
        places: Option<Places>,
        _holding: Holding,
    },
    /// By the value, and then by the place in the order in which they came.
    OnDisk(Table),
}

/// Documents on their way to be kept.
pub(super) struct Keeper {
    collator: Option<Collator>,
    path: Option<Path>,
    documents: Vec<RawDocumentBuf>,
    places: Places,
    /// The place of the first document in memory.
    first: u32,
    holding: Holding,
    runs: Option<Runs>,
    full: bool,
}

/// What an entry of the table takes beside its key.
const PLACE_BYTES: usize = 64;

impl Keeper {
    pub fn new(path: Option<Path>, collator: Option<Collator>, budget: &Budget) -> Keeper {
        Keeper {
            collator,
            path,
            documents: Vec::new(),
            places: Places::new(),
            first: 0,
            holding: budget.holding(&consumer::LOOKUP),
            runs: None,
            full: false,
        }
    }

    /// Whether there was no room for all of them.
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// Fails when there is no room for the document and the disk must not be used.
    pub fn add(&mut self, document: &RawDocument) -> Result<(), QueryError> {
        let place = u32::try_from(self.documents.len()).unwrap_or(u32::MAX);
        let mut bytes = document.as_bytes().len() + size_of::<RawDocumentBuf>();
        let (places, mut key) = (&mut self.places, Vec::new());
        let collator = self.collator.as_ref();
        let parts = self.path.as_ref().map(Path::parts);
        let mut index = |visit: path::Visit<'_>| {
            key.clear();
            encode(visit.value.unwrap_or(RawBsonRef::Null), collator, &mut key);
            bytes += key.len() + PLACE_BYTES;
            match places.get_mut(&key[..]) {
                Some(list) => {
                    if list.last() != Some(&place) {
                        list.push(place);
                    }
                }
                None => {
                    places.insert(key.as_slice().into(), vec![place]);
                }
            }
            ControlFlow::Continue(())
        };
        if let Some(parts) = parts {
            let _ = visit_with(document, parts, Leaf::Items, &mut index);
        }
        self.documents.push(document.to_owned());
        match self.holding.fits_more(bytes) {
            true => Ok(()),
            false => self.spill(),
        }
    }

    #[cold]
    fn spill(&mut self) -> Result<(), QueryError> {
        let budget = self.holding.budget().clone();
        let (documents, places) = (
            std::mem::take(&mut self.documents),
            std::mem::take(&mut self.places),
        );
        // What every document gets is not worth the disk: reading it again stops where it may.
        if !budget.may_spill() || self.path.is_none() {
            self.full = true;
            return Err(self.holding.exceeded());
        }
        let keys: Vec<_> = places.keys().collect();
        let keys = merge_sort::sort(keys, |a, b| a.cmp(b), |key| key.len(), &budget)?;
        let runs = self.runs.get_or_insert_with(|| Runs::new(&budget, None));
        let (first, mut record) = (self.first, Vec::new());
        runs.write(|writer| {
            for key in keys {
                for place in places.get(key).into_iter().flatten() {
                    let Some(document) = documents.get(*place as usize) else {
                        continue;
                    };
                    budget.spend_bytes(document.as_bytes().len())?;
                    record.clear();
                    record.extend_from_slice(key);
                    record.extend_from_slice(&first.saturating_add(*place).to_be_bytes());
                    writer.push(&record, |out| out.extend_from_slice(document.as_bytes()))?;
                }
            }
            Ok(())
        })?;
        let count = u32::try_from(documents.len()).unwrap_or(u32::MAX);
        self.first = self.first.saturating_add(count);
        self.holding.set(0)
    }

    pub fn finish(mut self) -> Result<Kept, QueryError> {
        if self.runs.is_some() {
            self.spill()?;
        }
        let documents = match self.runs {
            Some(runs) => Documents::OnDisk(runs.table()?),
            None => Documents::InMemory {
                documents: self.documents,
                places: self.path.map(|_| self.places),
                _holding: self.holding,
            },
        };
        Ok(Kept {
            collator: self.collator,
            documents,
        })
    }
}

/// Equal values have equal keys; undefined is found as null.
fn encode(value: RawBsonRef<'_>, collator: Option<&Collator>, out: &mut Vec<u8>) {
    let value = match value {
        RawBsonRef::Undefined => RawBsonRef::Null,
        value => value,
    };
    key::encode_collated(value, collator, out);
}

/// Breaks off where no more documents are wanted.
type Visit<'v> = dyn FnMut(&RawDocument) -> Result<ControlFlow<()>, QueryError> + 'v;

impl Kept {
    /// Whether it can tell the documents that have one of the values; `None`: nothing is known.
    pub fn can_find(&self, values: Option<&[RawBson]>) -> bool {
        values.is_some() || !matches!(self.documents, Documents::OnDisk(_))
    }

    /// Visits the documents that have one of the values, or all of them, in their order.
    pub fn each(
        &self,
        values: Option<&[RawBson]>,
        visit: &mut Visit<'_>,
    ) -> Result<(), QueryError> {
        let is_known = values.is_some();
        let values = values.unwrap_or_default();
        let keys = values.iter().map(|value| {
            let mut key = Vec::new();
            encode(value.as_raw_bson_ref(), self.collator.as_ref(), &mut key);
            key
        });
        match &self.documents {
            Documents::InMemory {
                documents,
                places: Some(places),
                ..
            } if is_known => each_in_memory(documents, places, keys, visit),
            Documents::InMemory { documents, .. } => {
                for document in documents {
                    if visit(document)?.is_break() {
                        break;
                    }
                }
                Ok(())
            }
            Documents::OnDisk(table) => each_on_disk(table, keys, visit),
        }
    }
}

fn each_in_memory(
    documents: &[RawDocumentBuf],
    places: &Places,
    keys: impl ExactSizeIterator<Item = Vec<u8>>,
    visit: &mut Visit<'_>,
) -> Result<(), QueryError> {
    let (several, mut found) = (keys.len() > 1, Vec::new());
    for key in keys {
        found.extend(places.get(&key[..]).into_iter().flatten().copied());
    }
    if several {
        found.sort_unstable();
        found.dedup();
    }
    for place in found {
        let Some(document) = documents.get(place as usize) else {
            continue;
        };
        if visit(document)?.is_break() {
            break;
        }
    }
    Ok(())
}

fn read(bytes: &[u8]) -> Result<&RawDocument, QueryError> {
    RawDocument::from_bytes(bytes).map_err(|_| damaged())
}

fn each_on_disk(
    table: &Table,
    mut keys: impl ExactSizeIterator<Item = Vec<u8>>,
    visit: &mut Visit<'_>,
) -> Result<(), QueryError> {
    if keys.len() == 1
        && let Some(key) = keys.next()
    {
        return table.find(&key, |_, value| Ok(visit(read(value)?)?.is_continue()));
    }
    // By their places, so that each comes once and in its order.
    let mut found = std::collections::BTreeMap::new();
    for key in keys {
        table.find(&key, |place, value| {
            found.insert(place.to_vec(), read(value)?.to_owned());
            Ok(true)
        })?;
    }
    for document in found.values() {
        if visit(document)?.is_break() {
            break;
        }
    }
    Ok(())
}
