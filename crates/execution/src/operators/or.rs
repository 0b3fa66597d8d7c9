//! OR: the records of several inputs, each once.

use std::collections::HashSet;

use banyan_query::QueryError;
use banyan_storage::RecordId;
use bson::{RawDocumentBuf, cstr};

use super::{Counts, Explainer, Member, Operator, Progress, Run, Stage, pull};
use crate::plan::explain::clamp;

/// One input after the other.
#[derive(Default)]
pub struct Or {
    /// How many inputs have ended.
    done: usize,
    seen: HashSet<RecordId>,
    pulled: Vec<Member>,
    dropped: u64,
}

impl Operator for Or {
    fn name(&self) -> &'static str {
        "OR"
    }

    fn next(
        &mut self,
        inputs: &mut [Stage],
        run: &mut Run<'_>,
        most: usize,
        out: &mut Vec<Member>,
    ) -> Result<(u64, Progress), QueryError> {
        let count = inputs.len();
        let input = inputs.get_mut(self.done..).unwrap_or_default();
        let (seen, dropped) = (&mut self.seen, &mut self.dropped);
        let once = |_: &mut Run<'_>, from: &mut Vec<Member>, out: &mut Vec<Member>| {
            for member in from.drain(..) {
                match seen.insert(member.record.clone()) {
                    true => out.push(member),
                    false => *dropped += 1,
                }
            }
            Ok(())
        };
        let (works, progress) = pull(input, run, most, out, &mut self.pulled, once)?;
        self.done += usize::from(progress == Progress::End);
        let progress = match self.done < count {
            true => Progress::More,
            false => Progress::End,
        };
        Ok((works, progress))
    }

    fn merges(&self) -> bool {
        true
    }

    fn describe(&self, stage: &mut RawDocumentBuf, counts: &Counts, explainer: Explainer) {
        if explainer.ran() {
            stage.append(cstr!("dupsTested"), clamp(counts.works));
            stage.append(cstr!("dupsDropped"), clamp(self.dropped));
        }
    }
}
