//! IDHACK: the document with an `_id`.

use std::sync::Arc;

use banyan_query::QueryError;
use banyan_storage::{Collection, Index};
use bson::{RawDocumentBuf, cstr};

use super::fetch::document_of;
use super::{Counts, Explainer, Member, Operator, Progress, Run, Stage};
use crate::error;
use crate::plan::explain::clamp;
use crate::row::Row;

/// Two lookups: the key in the index of `_id`, and the record.
pub struct IdLookup {
    collection: Arc<Collection>,
    index: Arc<Index>,
    key: Vec<u8>,
    done: bool,
    found: bool,
}

impl IdLookup {
    pub fn new(collection: Arc<Collection>, index: Arc<Index>, key: Vec<u8>) -> IdLookup {
        IdLookup {
            collection,
            index,
            key,
            done: false,
            found: false,
        }
    }
}

impl Operator for IdLookup {
    fn name(&self) -> &'static str {
        "IDHACK"
    }

    fn next(
        &mut self,
        _: &mut [Stage],
        run: &mut Run<'_>,
        most: usize,
        out: &mut Vec<Member>,
    ) -> Result<(u64, Progress), QueryError> {
        if self.done {
            return Ok((0, Progress::End));
        }
        if most <= out.len() || !run.work() {
            return Ok((0, Progress::More));
        }
        self.done = true;
        let record = run.snapshot.unique_lookup(&self.index, &self.key);
        let Some(record) = record.map_err(error::storage)? else {
            return Ok((0, Progress::End));
        };
        run.examine_key()?;
        let found = document_of(run, &self.collection, &record)?;
        run.examine_document(found.as_bytes().len())?;
        self.found = true;
        let row = Some(Row::Record(found));
        out.push(Member { record, row });
        Ok((1, Progress::End))
    }

    fn describe(&self, stage: &mut RawDocumentBuf, _: &Counts, explainer: Explainer) {
        if explainer.ran() {
            stage.append(cstr!("keysExamined"), clamp(u64::from(self.found)));
            stage.append(cstr!("docsExamined"), clamp(u64::from(self.found)));
        }
    }
}
