//! LIMIT and SKIP.

use banyan_query::QueryError;
use bson::{RawDocumentBuf, cstr};

use super::{Counts, Explainer, Member, Operator, Progress, Run, Stage, pull};
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
    pulled: Vec<Member>,
}

impl Skip {
    pub fn new(skip: u64) -> Skip {
        Skip {
            skip,
            left: skip,
            pulled: Vec::new(),
        }
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
        let left = &mut self.left;
        let skip = |_: &mut Run<'_>, from: &mut Vec<Member>, out: &mut Vec<Member>| {
            let passed = from.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
            *left -= passed as u64;
            out.extend(from.drain(..).skip(passed));
            Ok(())
        };
        pull(inputs, run, most, out, &mut self.pulled, skip)
    }

    fn passes_on(&self) -> bool {
        true
    }

    fn describe(&self, stage: &mut RawDocumentBuf, _: &Counts, _: Explainer) {
        stage.append(cstr!("skipAmount"), clamp(self.skip));
    }
}
