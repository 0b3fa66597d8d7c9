//! VIRTUAL_SCAN: documents that are not stored but made as they are read.

use std::sync::Arc;

use banyan_query::QueryError;
use banyan_query::filter::Filter;
use banyan_storage::{Collection, RecordId};
use bson::RawDocumentBuf;

use super::{Member, Operator, Progress, Run, Stage};
use crate::error::plan_killed;
use crate::row::Row;

pub type Documents = Box<dyn Iterator<Item = Result<RawDocumentBuf, QueryError>> + Send>;

pub struct VirtualScan {
    documents: Documents,
    filter: Arc<Filter>,
}

impl VirtualScan {
    pub fn new(documents: Documents, filter: Arc<Filter>) -> VirtualScan {
        VirtualScan { documents, filter }
    }
}

impl Operator for VirtualScan {
    fn name(&self) -> &'static str {
        "VIRTUAL_SCAN"
    }

    fn next(
        &mut self,
        _: &mut [Stage],
        run: &mut Run<'_>,
        most: usize,
        out: &mut Vec<Member>,
    ) -> Result<(u64, Progress), QueryError> {
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
                let record = RecordId::number(0);
                out.push(Member::new(record, row));
            }
        }
        Ok((works, progress))
    }

    fn restore(&mut self, _: &Collection) -> Result<(), QueryError> {
        Err(plan_killed("a virtual scan cannot be resumed"))
    }

    fn filter(&self) -> Option<&Filter> {
        Some(&self.filter)
    }
}
