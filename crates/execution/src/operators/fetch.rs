//! FETCH: the documents of the records that its input names.

use std::sync::Arc;

use banyan_query::QueryError;
use banyan_query::filter::Filter;
use banyan_storage::{Collection, StorageError};
use bson::{RawDocument, RawDocumentBuf, cstr};

use super::{Counts, Explainer, Member, Operator, Progress, Run, pull};
use crate::error;
use crate::plan::explain::clamp;
use crate::row::Row;

pub struct Fetch {
    input: Box<dyn Operator>,
    collection: Arc<Collection>,
    /// `None`: the input names matching documents only.
    filter: Option<Arc<Filter>>,
    pulled: Vec<Member>,
    counts: Counts,
    examined: u64,
}

impl Fetch {
    pub fn new(
        input: Box<dyn Operator>,
        collection: Arc<Collection>,
        filter: Option<Arc<Filter>>,
    ) -> Fetch {
        Fetch {
            input,
            collection,
            filter,
            pulled: Vec::new(),
            counts: Counts::default(),
            examined: 0,
        }
    }
}

/// The document that a key of an index of the same snapshot names: without one, the index lies.
pub(super) fn document_of(
    run: &mut Run<'_>,
    collection: &Collection,
    record: u64,
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
    fn next(
        &mut self,
        run: &mut Run<'_>,
        most: usize,
        out: &mut Vec<Member>,
    ) -> Result<Progress, QueryError> {
        let before = out.len();
        let (collection, filter, examined) = (&self.collection, &self.filter, &mut self.examined);
        let fetch = |run: &mut Run<'_>, from: &mut Vec<Member>, out: &mut Vec<Member>| {
            for Member { record, .. } in from.drain(..) {
                let found = document_of(run, collection, record)?;
                *examined += 1;
                let document: &RawDocument = &found;
                run.examine_document(document.as_bytes().len())?;
                let matches = match filter {
                    Some(filter) => filter.try_matches(document)?,
                    None => true,
                };
                if matches {
                    let row = Some(Row::Record(found));
                    out.push(Member { record, row });
                }
            }
            Ok(())
        };
        let (works, progress) = pull(&mut *self.input, run, most, out, &mut self.pulled, fetch)?;
        self.counts.note(works, out.len() - before, progress);
        Ok(progress)
    }

    fn save(&mut self) {
        self.input.save();
        self.counts.saves += 1;
    }

    fn restore(&mut self, collection: &Collection) -> Result<(), QueryError> {
        self.counts.restores += 1;
        self.input.restore(collection)
    }

    fn produced(&self) -> u64 {
        self.counts.advanced
    }

    fn explain(&self, explainer: &Explainer) -> RawDocumentBuf {
        let filter = self.filter.as_deref();
        let mut stage = explainer.stage("FETCH", filter, &self.counts);
        if explainer.ran() {
            stage.append(cstr!("docsExamined"), clamp(self.examined));
        }
        explainer.over(stage, &*self.input)
    }
}
