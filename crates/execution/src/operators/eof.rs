//! EOF: nothing to find.

use banyan_query::QueryError;
use banyan_storage::Collection;
use bson::RawDocumentBuf;

use super::{Counts, Explainer, Member, Operator, Progress, Run};

/// What a query of a collection that does not exist runs.
#[derive(Debug, Default)]
pub struct Eof {
    counts: Counts,
}

impl Operator for Eof {
    fn next(
        &mut self,
        _: &mut Run<'_>,
        _: usize,
        _: &mut Vec<Member>,
    ) -> Result<Progress, QueryError> {
        self.counts.note(0, 0, Progress::End);
        Ok(Progress::End)
    }

    fn save(&mut self) {}

    fn restore(&mut self, _: &Collection) -> Result<(), QueryError> {
        Ok(())
    }

    fn produced(&self) -> u64 {
        self.counts.advanced
    }

    fn explain(&self, explainer: &Explainer) -> RawDocumentBuf {
        explainer.stage("EOF", None, &self.counts)
    }
}
