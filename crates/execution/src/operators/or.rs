//! OR: the records of several inputs, each once.

use std::collections::HashSet;

use banyan_query::QueryError;
use banyan_storage::{Collection, RecordId};
use bson::{RawDocumentBuf, cstr};

use super::{Counts, Explainer, Member, Operator, Progress, Run, pull};
use crate::plan::explain::clamp;

/// One input after the other.
pub struct Or {
    inputs: Vec<Box<dyn Operator>>,
    /// How many inputs have ended.
    done: usize,
    seen: HashSet<RecordId>,
    pulled: Vec<Member>,
    counts: Counts,
    dropped: u64,
}

impl Or {
    pub fn new(inputs: Vec<Box<dyn Operator>>) -> Or {
        Or {
            inputs,
            done: 0,
            seen: HashSet::new(),
            pulled: Vec::new(),
            counts: Counts::default(),
            dropped: 0,
        }
    }
}

impl Operator for Or {
    fn next(
        &mut self,
        run: &mut Run<'_>,
        most: usize,
        out: &mut Vec<Member>,
    ) -> Result<Progress, QueryError> {
        let before = out.len();
        let Some(input) = self.inputs.get_mut(self.done) else {
            return Ok(Progress::End);
        };
        let (seen, dropped) = (&mut self.seen, &mut self.dropped);
        let once = |_: &mut Run<'_>, from: &mut Vec<Member>, out: &mut Vec<Member>| {
            for member in from.drain(..) {
                match seen.insert(member.record) {
                    true => out.push(member),
                    false => *dropped += 1,
                }
            }
            Ok(())
        };
        let (works, progress) = pull(&mut **input, run, most, out, &mut self.pulled, once)?;
        self.done += usize::from(progress == Progress::End);
        let progress = match self.done < self.inputs.len() {
            true => Progress::More,
            false => Progress::End,
        };
        self.counts.note(works, out.len() - before, progress);
        Ok(progress)
    }

    fn save(&mut self) {
        self.inputs.iter_mut().for_each(|input| input.save());
        self.counts.saves += 1;
    }

    fn restore(&mut self, collection: &Collection) -> Result<(), QueryError> {
        self.counts.restores += 1;
        let mut inputs = self.inputs.iter_mut();
        inputs.try_for_each(|input| input.restore(collection))
    }

    fn produced(&self) -> u64 {
        self.counts.advanced
    }

    fn explain(&self, explainer: &Explainer) -> RawDocumentBuf {
        let mut stage = explainer.stage("OR", None, &self.counts);
        if explainer.ran() {
            stage.append(cstr!("dupsTested"), clamp(self.counts.works));
            stage.append(cstr!("dupsDropped"), clamp(self.dropped));
        }
        explainer.over_all(stage, self.inputs.iter().map(|input| &**input))
    }
}
