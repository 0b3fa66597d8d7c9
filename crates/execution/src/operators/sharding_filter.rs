//! SHARDING_FILTER: leaves out the documents that another shard owns.

use std::any::Any;
use std::collections::BTreeSet;
use std::sync::Arc;

use banyan_query::QueryError;
use bson::{RawDocument, RawDocumentBuf, cstr};

use super::{Counts, Explainer, Member, Operator, Progress, Run, Stage, Visitor, pull, visit_on};
use crate::plan::explain::clamp;
use crate::shares::Share;

/// Which documents of a collection this shard owns, as of one shard version.
pub trait ShardFilter: Send + Sync {
    fn owns(&self, document: &RawDocument) -> bool;

    /// Whether it may own a document from `min` on and before `max`, values of the shard key.
    fn owns_part_of(&self, min: &RawDocument, max: &RawDocument) -> bool;

    /// Adds the paths that decide it.
    fn dependencies(&self, paths: &mut BTreeSet<String>);
}

pub struct ShardingFilter {
    filter: Arc<dyn ShardFilter>,
    pulled: Vec<Member>,
    left_out: u64,
}

impl ShardingFilter {
    pub fn new(filter: Arc<dyn ShardFilter>) -> ShardingFilter {
        ShardingFilter {
            filter,
            pulled: Vec::new(),
            left_out: 0,
        }
    }
}

impl Operator for ShardingFilter {
    fn name(&self) -> &'static str {
        "SHARDING_FILTER"
    }

    fn next(
        &mut self,
        inputs: &mut [Stage],
        run: &mut Run<'_>,
        most: usize,
        out: &mut Vec<Member>,
    ) -> Result<(u64, Progress), QueryError> {
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
        pull(inputs, run, most, out, &mut self.pulled, own)
    }

    fn visit(
        &mut self,
        inputs: &mut [Stage],
        run: &mut Run<'_>,
        most: usize,
        visitor: Visitor<'_>,
    ) -> Result<(u64, u64, Progress), QueryError> {
        let (filter, left_out) = (&self.filter, &mut self.left_out);
        let mut visited = 0;
        let (works, _, progress) = visit_on(inputs, run, most, &mut |member| {
            if !filter.owns(member.document) {
                *left_out += 1;
                return Ok(());
            }
            visited += 1;
            visitor(member)
        })?;
        Ok((works, visited, progress))
    }

    fn part(&self, _: &Share) -> Option<Box<dyn Operator>> {
        Some(Box::new(ShardingFilter::new(self.filter.clone())))
    }

    fn absorb(&mut self, part: &dyn Operator) {
        let part: &dyn Any = part;
        if let Some(part) = part.downcast_ref::<ShardingFilter>() {
            self.left_out += part.left_out;
        }
    }

    fn describe(&self, stage: &mut RawDocumentBuf, _: &Counts, explainer: Explainer) {
        if explainer.ran() {
            stage.append(cstr!("chunkSkips"), clamp(self.left_out));
        }
    }
}
