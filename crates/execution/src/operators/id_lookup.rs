//! IDHACK: the document with an `_id`.

use std::sync::Arc;

use banyan_query::QueryError;
use banyan_storage::{Collection, Index};
use bson::{RawDocumentBuf, cstr};

use super::nearby::document_of;
use super::{Counts, Explainer, KeyFields, Member, Operator, Progress, Run, Stage};
use crate::error;
use crate::plan::explain::clamp;
use crate::row::Row;

/// Two lookups: the key in the index of `_id`, and the record.
pub struct IdLookup {
    collection: Arc<Collection>,
    index: Arc<Index>,
    key: Vec<u8>,
    /// Where the key is handed on with the document.
    returned: Option<KeyFields>,
    done: bool,
    found: bool,
}

impl IdLookup {
    pub fn new(collection: Arc<Collection>, index: Arc<Index>, key: Vec<u8>) -> IdLookup {
        IdLookup {
            collection,
            index,
            key,
            returned: None,
            done: false,
            found: false,
        }
    }

    pub fn returning(mut self, key: KeyFields) -> IdLookup {
        self.returned = Some(key);
        self
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
        let entry = run.snapshot.unique_entry(&self.index, &self.key);
        let Some((record, types)) = entry.map_err(error::storage)? else {
            return Ok((0, Progress::End));
        };
        let returned = self.returned.as_ref();
        let key = returned.map(|fields| fields.read(&self.key, &types));
        let key = key.transpose()?.map(Box::new);
        run.examine_key()?;
        let found = document_of(run, &self.collection, &record)?;
        run.examine_document(found.as_bytes().len())?;
        self.found = true;
        let row = Some(Row::Record(found));
        out.push(Member {
            key,
            ..Member::new(record, row)
        });
        Ok((1, Progress::End))
    }

    fn describe(&self, stage: &mut RawDocumentBuf, _: &Counts, explainer: Explainer) {
        if explainer.ran() {
            stage.append(cstr!("keysExamined"), clamp(u64::from(self.found)));
            stage.append(cstr!("docsExamined"), clamp(u64::from(self.found)));
        }
    }
}
