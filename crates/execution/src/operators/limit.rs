//! LIMIT and SKIP.

use banyan_query::QueryError;
use bson::{RawDocumentBuf, cstr};

use super::{Counts, Explainer, Member, Operator, Progress, Run, Stage, pass_on};
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
        if self.left == 0 {
            return Ok((0, Progress::End));
        }
        let left = usize::try_from(self.left).unwrap_or(usize::MAX);
        let most = most.min(out.len().saturating_add(left));
        let (taken, progress) = pass_on(inputs, run, most, out)?;
        self.left -= taken;
        match self.left {
            0 => Ok((taken, Progress::End)),
            _ => Ok((taken, progress)),
        }
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
        let mut skipped = 0;
        while let Some(input) = inputs.first_mut().filter(|_| self.left > 0) {
            let (passed, progress) = input.pass(run, self.left)?;
            self.left -= passed;
            skipped += passed;
            if progress == Progress::End || run.is_exhausted() {
                return Ok((skipped, progress));
            }
        }
        let (works, progress) = pass_on(inputs, run, most, out)?;
        Ok((skipped + works, progress))
    }

    fn passes_on(&self) -> bool {
        true
    }

    fn describe(&self, stage: &mut RawDocumentBuf, _: &Counts, _: Explainer) {
        stage.append(cstr!("skipAmount"), clamp(self.skip));
    }
}
