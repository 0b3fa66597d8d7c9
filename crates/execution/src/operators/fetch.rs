//! FETCH: the documents of the records that its input names.

use std::any::Any;
use std::sync::Arc;

use banyan_query::QueryError;
use banyan_query::filter::Filter;
use banyan_storage::{Collection, RecordId, StorageError};
use bson::{RawDocumentBuf, cstr};

use super::{Counts, Explainer, Member, Operator, Progress, Run, Stage, pull};
use crate::error;
use crate::plan::explain::clamp;
use crate::row::Row;
use crate::shares::Share;

pub struct Fetch {
    collection: Arc<Collection>,
    /// `None`: the input names matching documents only.
    filter: Option<Arc<Filter>>,
    pulled: Vec<Member>,
    examined: u64,
}

impl Fetch {
    pub fn new(collection: Arc<Collection>, filter: Option<Arc<Filter>>) -> Fetch {
        Fetch {
            collection,
            filter,
            pulled: Vec::new(),
            examined: 0,
        }
    }
}

/// The document that a key of an index of the same snapshot names: without one, the index lies.
pub(super) fn document_of(
    run: &mut Run<'_>,
    collection: &Collection,
    record: &RecordId,
) -> Result<banyan_storage::Record, QueryError> {
    let found = run.snapshot.record(collection.id, record);
    let Some(document) = found.map_err(error::storage)? else {
        return Err(error::storage(StorageError::Damaged {
            place: format!("index of {}", collection.namespace),
            reason: format!("a key names record {record}, which does not exist"),
        }));
    };
    Ok(document)
}

impl Operator for Fetch {
    fn name(&self) -> &'static str {
        "FETCH"
    }

    fn next(
        &mut self,
        inputs: &mut [Stage],
        run: &mut Run<'_>,
        most: usize,
        out: &mut Vec<Member>,
    ) -> Result<(u64, Progress), QueryError> {
        let (collection, filter, examined) = (&self.collection, &self.filter, &mut self.examined);
        let fetch = |run: &mut Run<'_>, from: &mut Vec<Member>, out: &mut Vec<Member>| {
            for Member { record, row } in from.drain(..) {
                let row = match row {
                    // A clustered scan has read it.
                    Some(row) => row,
                    None => {
                        let found = document_of(run, collection, &record)?;
                        *examined += 1;
                        run.examine_document(found.as_bytes().len())?;
                        Row::Record(found)
                    }
                };
                let matches = match filter {
                    Some(filter) => filter.try_matches(&row)?,
                    None => true,
                };
                if matches {
                    let row = Some(row);
                    out.push(Member { record, row });
                }
            }
            Ok(())
        };
        pull(inputs, run, most, out, &mut self.pulled, fetch)
    }

    fn part(&self, _: &Share) -> Option<Box<dyn Operator>> {
        let fetch = Fetch::new(self.collection.clone(), self.filter.clone());
        Some(Box::new(fetch))
    }

    fn absorb(&mut self, part: &dyn Operator) {
        let part: &dyn Any = part;
        if let Some(part) = part.downcast_ref::<Fetch>() {
            self.examined += part.examined;
        }
    }

    fn filter(&self) -> Option<&Filter> {
        self.filter.as_deref()
    }

    fn describe(&self, stage: &mut RawDocumentBuf, _: &Counts, explainer: Explainer) {
        if explainer.ran() {
            stage.append(cstr!("docsExamined"), clamp(self.examined));
        }
    }
}
