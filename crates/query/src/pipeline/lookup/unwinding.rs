//! A `$lookup` and the `$unwind` of its results: a document for each foreign document, without the
//! array of them.

use std::collections::VecDeque;
use std::sync::Arc;

use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use banyan_document::DocumentWriter;

use super::find::Finder;
use crate::error::QueryError;
use crate::memory::{Holding, consumer};
use crate::pipeline::stage_run::{Flow, Next, StageRun, Start};
use crate::pipeline::unwind::{Unwind, write_at, write_without};

pub(super) struct UnwindingRun {
    finder: Finder,
    unwind: Arc<Unwind>,
    /// What was found for a document and not handed on yet.
    document: RawDocumentBuf,
    found: VecDeque<RawDocumentBuf>,
    /// Of the first of them.
    index: i64,
    holding: Holding,
}

impl UnwindingRun {
    pub fn new(finder: Finder, unwind: Arc<Unwind>, start: &Start<'_>) -> UnwindingRun {
        UnwindingRun {
            finder,
            unwind,
            document: RawDocumentBuf::new(),
            found: VecDeque::new(),
            index: 0,
            holding: start.budget.holding(&consumer::LOOKUP_RESULT),
        }
    }

    /// One result: the document with what was found.
    fn emit(
        &self,
        found: Option<RawBsonRef<'_>>,
        index: RawBsonRef<'_>,
        next: &mut Next<'_>,
    ) -> Result<Flow, QueryError> {
        let output = &self.unwind.path;
        let bytes = self.document.as_bytes().len();
        next.budget.spend_bytes(bytes)?;
        let mut writer = DocumentWriter::with_capacity(2 * bytes);
        match found {
            Some(found) => write_at(&self.document, output, found, &mut writer),
            None => {
                // Documents on the way to the field are made all the same.
                let mut set = DocumentWriter::with_capacity(bytes + 32);
                write_at(&self.document, output, RawBsonRef::Null, &mut set);
                write_without(&set.finish(), output, &mut writer);
            }
        }
        let result = writer.finish();
        let Some(path) = &self.unwind.include_array_index else {
            return next.push(&result);
        };
        let mut writer = DocumentWriter::with_capacity(result.as_bytes().len() + 32);
        write_at(&result, path, index, &mut writer);
        next.push(&writer.finish())
    }
}

impl StageRun for UnwindingRun {
    fn push(&mut self, document: &RawDocument, next: &mut Next<'_>) -> Result<Flow, QueryError> {
        while !self.found.is_empty() {
            if self.resume(next)? == Flow::Stop {
                return Ok(Flow::Stop);
            }
        }
        self.document = document.to_owned();
        self.index = 0;
        let (found, holding) = (&mut self.found, &mut self.holding);
        holding.set(document.as_bytes().len())?;
        self.finder.find(document, &mut |document| {
            holding.add(document.as_bytes().len() + size_of::<RawDocumentBuf>())?;
            found.push_back(document.to_owned());
            Ok(())
        })?;
        if !self.found.is_empty() {
            return self.resume(next);
        }
        match self.unwind.preserve_null_and_empty_arrays {
            true => self.emit(None, RawBsonRef::Null, next),
            false => Ok(Flow::Continue),
        }
    }

    fn explain(&self, out: &mut DocumentWriter) {
        self.finder.lookup.cost.explain(out);
    }

    fn resume(&mut self, next: &mut Next<'_>) -> Result<Flow, QueryError> {
        while let Some(found) = self.found.pop_front() {
            let index = RawBsonRef::Int64(self.index);
            self.index += 1;
            let flow = self.emit(Some(RawBsonRef::Document(&found)), index, next)?;
            if flow != Flow::Continue {
                return Ok(flow);
            }
        }
        Ok(Flow::Continue)
    }
}
