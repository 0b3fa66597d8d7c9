//! IDHACK: the document with an `_id`.

use std::sync::Arc;

use banyan_query::QueryError;
use banyan_storage::{Collection, Index};
use bson::{RawDocumentBuf, cstr};

use super::fetch::document_of;
use super::{Counts, Explainer, Member, Operator, Progress, Run};
use crate::error;
use crate::plan::explain::clamp;
use crate::row::Row;

/// Two lookups: the key in the index of `_id`, and the record.
pub struct IdLookup {
    collection: Arc<Collection>,
    index: Arc<Index>,
    key: Vec<u8>,
    counts: Counts,
    found: bool,
}

impl IdLookup {
    pub fn new(collection: Arc<Collection>, index: Arc<Index>, key: Vec<u8>) -> IdLookup {
        IdLookup {
            collection,
            index,
            key,
            counts: Counts::default(),
            found: false,
        }
    }
}

impl Operator for IdLookup {
    fn next(
        &mut self,
        run: &mut Run<'_>,
        most: usize,
        out: &mut Vec<Member>,
    ) -> Result<Progress, QueryError> {
        if self.counts.ended {
            return Ok(Progress::End);
        }
        if most <= out.len() || !run.work() {
            return Ok(Progress::More);
        }
        let record = run.snapshot.unique_lookup(&self.index, &self.key);
        let Some(record) = record.map_err(error::storage)? else {
            self.counts.note(0, 0, Progress::End);
            return Ok(Progress::End);
        };
        run.examine_key()?;
        let found = document_of(run, &self.collection, record)?;
        run.examine_document(found.as_bytes().len())?;
        self.found = true;
        let row = Some(Row::Record(found));
        out.push(Member { record, row });
        self.counts.note(1, 1, Progress::End);
        Ok(Progress::End)
    }

    fn save(&mut self) {
        self.counts.saves += 1;
    }

    fn restore(&mut self, _: &Collection) -> Result<(), QueryError> {
        self.counts.restores += 1;
        Ok(())
    }

    fn produced(&self) -> u64 {
        self.counts.advanced
    }

    fn explain(&self, explainer: &Explainer) -> RawDocumentBuf {
        let mut stage = explainer.stage("IDHACK", None, &self.counts);
        if explainer.ran() {
            stage.append(cstr!("keysExamined"), clamp(u64::from(self.found)));
            stage.append(cstr!("docsExamined"), clamp(u64::from(self.found)));
        }
        stage
    }
}
