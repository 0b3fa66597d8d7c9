//! SHARDING_FILTER: leaves out the documents that another shard owns.

use std::sync::Arc;

use banyan_query::QueryError;
use banyan_storage::Collection;
use bson::{RawDocument, RawDocumentBuf, cstr};

use super::{Counts, Explainer, Member, Operator, Progress, Run, pull};
use crate::plan::explain::clamp;

/// Which documents of a collection this shard owns, as of one shard version.
pub trait ShardFilter: Send + Sync {
    fn owns(&self, document: &RawDocument) -> bool;
}

pub struct ShardingFilter {
    input: Box<dyn Operator>,
    filter: Arc<dyn ShardFilter>,
    pulled: Vec<Member>,
    counts: Counts,
    left_out: u64,
}

impl ShardingFilter {
    pub fn new(input: Box<dyn Operator>, filter: Arc<dyn ShardFilter>) -> ShardingFilter {
        ShardingFilter {
            input,
            filter,
            pulled: Vec::new(),
            counts: Counts::default(),
            left_out: 0,
        }
    }
}

impl Operator for ShardingFilter {
    fn next(
        &mut self,
        run: &mut Run<'_>,
        most: usize,
        out: &mut Vec<Member>,
    ) -> Result<Progress, QueryError> {
        let before = out.len();
        let (filter, left_out) = (&self.filter, &mut self.left_out);
        let own = |_: &mut Run<'_>, from: &mut Vec<Member>, out: &mut Vec<Member>| {
            for member in from.drain(..) {
                match &member.row {
                    Some(row) if !filter.owns(row) => *left_out += 1,
                    _ => out.push(member),
                }
            }
            Ok(())
        };
        let (works, progress) = pull(&mut *self.input, run, most, out, &mut self.pulled, own)?;
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
        self.counts.advanced
    }

    fn explain(&self, explainer: &Explainer) -> RawDocumentBuf {
        let mut stage = explainer.stage("SHARDING_FILTER", None, &self.counts);
        if explainer.ran() {
            stage.append(cstr!("chunkSkips"), clamp(self.left_out));
        }
        explainer.over(stage, &*self.input)
    }
}
