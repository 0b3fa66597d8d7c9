//! VIRTUAL_SCAN: documents that are not stored but made as they are read.

use std::sync::Arc;

use banyan_query::QueryError;
use banyan_query::filter::Filter;
use banyan_storage::Collection;
use bson::RawDocumentBuf;

use super::{Counts, Explainer, Member, Operator, Progress, Run};
use crate::error::plan_killed;
use crate::row::Row;

pub type Documents = Box<dyn Iterator<Item = Result<RawDocumentBuf, QueryError>> + Send>;

pub struct VirtualScan {
    documents: Documents,
    filter: Arc<Filter>,
    counts: Counts,
}

impl VirtualScan {
    pub fn new(documents: Documents, filter: Arc<Filter>) -> VirtualScan {
        VirtualScan {
            documents,
            filter,
            counts: Counts::default(),
        }
    }
}

impl Operator for VirtualScan {
    fn next(
        &mut self,
        run: &mut Run<'_>,
        most: usize,
        out: &mut Vec<Member>,
    ) -> Result<Progress, QueryError> {
        let before = out.len();
        let (mut works, mut progress) = (0, Progress::More);
        while out.len() < most && run.work() {
            let Some(document) = self.documents.next().transpose()? else {
                progress = Progress::End;
                break;
            };
            works += 1;
            run.examine_document(document.as_bytes().len())?;
            if self.filter.try_matches(&document)? {
                let row = Some(Row::Owned(document));
                out.push(Member { record: 0, row });
            }
        }
        self.counts.note(works, out.len() - before, progress);
        Ok(progress)
    }

    fn save(&mut self) {
        self.counts.saves += 1;
    }

    fn restore(&mut self, _: &Collection) -> Result<(), QueryError> {
        Err(plan_killed("a virtual scan cannot be resumed"))
    }

    fn produced(&self) -> u64 {
        self.counts.advanced
    }

    fn explain(&self, explainer: &Explainer) -> RawDocumentBuf {
        explainer.stage("VIRTUAL_SCAN", Some(&self.filter), &self.counts)
    }
}
