//! EOF: nothing to find.

use banyan_query::QueryError;

use super::{Member, Operator, Progress, Run, Stage};

/// What a query of a collection that does not exist runs.
pub struct Eof;

impl Operator for Eof {
    fn name(&self) -> &'static str {
        "EOF"
    }

    fn next(
        &mut self,
        _: &mut [Stage],
        _: &mut Run<'_>,
        _: usize,
        _: &mut Vec<Member>,
    ) -> Result<(u64, Progress), QueryError> {
        Ok((0, Progress::End))
    }
}
