//! LIMIT and SKIP.

use banyan_query::QueryError;
use bson::{RawDocumentBuf, cstr};

use super::{Counts, Explainer, Member, Operator, Progress, Run, Stage};
use crate::plan::explain::clamp;

/// The first so many.
pub struct Limit {
    limit: u64,
    left: u64,
}

impl Limit {
    pub fn new(limit: u64) -> Limit {
        Limit { limit, left: limit }
    }
}

impl Operator for Limit {
    fn name(&self) -> &'static str {
        "LIMIT"
    }

    fn next(
        &mut self,
        inputs: &mut [Stage],
        run: &mut Run<'_>,
        most: usize,
        out: &mut Vec<Member>,
    ) -> Result<(u64, Progress), QueryError> {
        let before = out.len();
        let left = usize::try_from(self.left).unwrap_or(usize::MAX);
        let most = most.min(before.saturating_add(left));
        let mut progress = match inputs.first_mut().filter(|_| left > 0) {
            None => Progress::End,
            Some(input) => input.next(run, most, out)?,
        };
        let taken = (out.len() - before) as u64;
        self.left -= taken;
        if self.left == 0 {
            progress = Progress::End;
        }
        Ok((taken, progress))
    }

    fn passes_on(&self) -> bool {
        true
    }

    fn describe(&self, stage: &mut RawDocumentBuf, _: &Counts, _: Explainer) {
        stage.append(cstr!("limitAmount"), clamp(self.limit));
    }
}

/// All but the first so many.
pub struct Skip {
    skip: u64,
    left: u64,
}

impl Skip {
    pub fn new(skip: u64) -> Skip {
        Skip { skip, left: skip }
    }
}

impl Operator for Skip {
    fn name(&self) -> &'static str {
        "SKIP"
    }

    fn next(
        &mut self,
        inputs: &mut [Stage],
        run: &mut Run<'_>,
        most: usize,
        out: &mut Vec<Member>,
    ) -> Result<(u64, Progress), QueryError> {
        let Some(input) = inputs.first_mut() else {
            return Ok((0, Progress::End));
        };
        let mut works = 0;
        while self.left > 0 {
            let (passed, progress) = input.pass(run, self.left)?;
            self.left -= passed;
            works += passed;
            if progress == Progress::End || run.is_exhausted() {
                return Ok((works, progress));
            }
        }
        let before = out.len();
        let progress = input.next(run, most, out)?;
        works += (out.len() - before) as u64;
        Ok((works, progress))
    }

    fn passes_on(&self) -> bool {
        true
    }

    fn describe(&self, stage: &mut RawDocumentBuf, _: &Counts, _: Explainer) {
        stage.append(cstr!("skipAmount"), clamp(self.skip));
    }
}
