//! LIMIT and SKIP.

use banyan_query::QueryError;
use banyan_storage::Collection;
use bson::{RawDocumentBuf, cstr};

use super::{Counts, Explainer, Member, Operator, Progress, Run, pull};
use crate::plan::explain::clamp;

/// The first so many.
pub struct Limit {
    input: Box<dyn Operator>,
    limit: u64,
    left: u64,
    counts: Counts,
}

impl Limit {
    pub fn new(input: Box<dyn Operator>, limit: u64) -> Limit {
        Limit {
            input,
            limit,
            left: limit,
            counts: Counts::default(),
        }
    }
}

impl Operator for Limit {
    fn next(
        &mut self,
        run: &mut Run<'_>,
        most: usize,
        out: &mut Vec<Member>,
    ) -> Result<Progress, QueryError> {
        let before = out.len();
        let left = usize::try_from(self.left).unwrap_or(usize::MAX);
        let most = most.min(before.saturating_add(left));
        let mut progress = match left {
            0 => Progress::End,
            _ => self.input.next(run, most, out)?,
        };
        let taken = out.len() - before;
        self.left -= taken as u64;
        if self.left == 0 {
            progress = Progress::End;
        }
        self.counts.note(taken as u64, taken, progress);
        Ok(progress)
    }

    fn save(&mut self) {
        self.input.save();
        self.counts.saves += 1;
    }

    fn restore(&mut self, collection: &Collection) -> Result<(), QueryError> {
        self.counts.restores += 1;
        self.input.restore(collection)
    }

    fn produced(&self) -> u64 {
        self.input.produced()
    }

    fn explain(&self, explainer: &Explainer) -> RawDocumentBuf {
        let mut stage = explainer.stage("LIMIT", None, &self.counts);
        stage.append(cstr!("limitAmount"), clamp(self.limit));
        explainer.over(stage, &*self.input)
    }
}

/// All but the first so many.
pub struct Skip {
    input: Box<dyn Operator>,
    skip: u64,
    left: u64,
    pulled: Vec<Member>,
    counts: Counts,
}

impl Skip {
    pub fn new(input: Box<dyn Operator>, skip: u64) -> Skip {
        Skip {
            input,
            skip,
            left: skip,
            pulled: Vec::new(),
            counts: Counts::default(),
        }
    }
}

impl Operator for Skip {
    fn next(
        &mut self,
        run: &mut Run<'_>,
        most: usize,
        out: &mut Vec<Member>,
    ) -> Result<Progress, QueryError> {
        let before = out.len();
        let left = &mut self.left;
        let skip = |_: &mut Run<'_>, from: &mut Vec<Member>, out: &mut Vec<Member>| {
            let passed = from.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
            *left -= passed as u64;
            out.extend(from.drain(..).skip(passed));
            Ok(())
        };
        let (works, progress) = pull(&mut *self.input, run, most, out, &mut self.pulled, skip)?;
        self.counts.note(works, out.len() - before, progress);
        Ok(progress)
    }

    fn save(&mut self) {
        self.input.save();
        self.counts.saves += 1;
    }

    fn restore(&mut self, collection: &Collection) -> Result<(), QueryError> {
        self.counts.restores += 1;
        self.input.restore(collection)
    }

    fn produced(&self) -> u64 {
        self.input.produced()
    }

    fn explain(&self, explainer: &Explainer) -> RawDocumentBuf {
        let mut stage = explainer.stage("SKIP", None, &self.counts);
        stage.append(cstr!("skipAmount"), clamp(self.skip));
        explainer.over(stage, &*self.input)
    }
}
