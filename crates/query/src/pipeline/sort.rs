//! $sort, with the limit that follows it: then only so many documents are kept

use std::collections::BTreeSet;
use std::sync::Arc;

use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use banyan_document::DocumentWriter;

use super::dependencies::Pruner;
use super::limit::Limit;
use super::sort_key::SortKey;
use super::stage::{Changes, Division, Reads, Stage};
use super::stage_run::{Drained, Flow, Next, StageRun, Start, append_count};
use crate::context::Context;
use crate::error::QueryError;
use crate::expression::value::error;
use crate::sort::{SortStats, Sorted, Sorter};

/// Documents handed on between two looks at the results.
const DOCUMENTS_PER_DRAIN: usize = 64;

#[derive(Clone, Debug)]
pub struct Sort {
    pub key: SortKey,
    /// No more than this many results are needed.
    pub limit: Option<u64>,
}

pub(super) fn parse(
    value: RawBsonRef<'_>,
    context: &Context,
    out: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    let RawBsonRef::Document(document) = value else {
        return error(15973, "the $sort key specification must be an object");
    };
    if document.is_empty() {
        return error(15976, "$sort stage must have at least one sort key");
    }
    out.push(Arc::new(Sort {
        key: SortKey::parse(document, context)?,
        limit: None,
    }));
    Ok(())
}

impl Stage for Sort {
    fn name(&self) -> &'static str {
        "$sort"
    }

    fn serialize(&self, out: &mut DocumentWriter) {
        out.append_doc(self.name(), &self.key.source);
    }

    fn reads(&self, paths: &mut BTreeSet<String>) -> Reads {
        self.key.dependencies(paths);
        Reads::AndPasses
    }

    fn changes(&self) -> Changes {
        Changes::nothing()
    }

    /// Each shard sorts its part, and the router merges the streams.
    fn split(&self) -> Division {
        let mut shards: Vec<Arc<dyn Stage>> = vec![Arc::new(self.clone())];
        if let Some(limit) = self.limit {
            shards.push(Arc::new(Limit(limit)));
        }
        Division::Both {
            shards,
            order: Some(self.key.clone()),
            router: Vec::new(),
        }
    }

    fn is_filter_transparent(&self) -> bool {
        true
    }

    fn run(self: Arc<Self>, start: &Start<'_>) -> Result<Box<dyn StageRun>, QueryError> {
        let limit = self
            .limit
            .map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
        Ok(Box::new(SortRun {
            key: self.key.clone(),
            pruner: Pruner::new(&start.needed),
            state: State::Reading(Sorter::new(limit, start.budget)),
        }))
    }
}

struct SortRun {
    key: SortKey,
    pruner: Pruner,
    state: State,
}

enum State {
    Reading(Sorter<RawDocumentBuf>),
    Sorted(Sorted<RawDocumentBuf>),
    Done(SortStats),
}

impl SortRun {
    fn stats(&self) -> SortStats {
        match &self.state {
            State::Reading(sorter) => sorter.stats(),
            State::Sorted(sorted) => sorted.stats(),
            State::Done(stats) => *stats,
        }
    }
}

impl StageRun for SortRun {
    fn push(&mut self, document: &RawDocument, _: &mut Next<'_>) -> Result<Flow, QueryError> {
        let State::Reading(sorter) = &mut self.state else {
            return Ok(Flow::Stop);
        };
        let key = self.key.pattern.key(document)?;
        if sorter.wants(&key) {
            let document = self.pruner.prune(document);
            let bytes = document.as_bytes().len();
            sorter.push(key, document, bytes)?;
        }
        Ok(Flow::Continue)
    }

    fn drain(&mut self, next: &mut Next<'_>) -> Result<Drained, QueryError> {
        let done = State::Done(self.stats());
        if matches!(self.state, State::Reading(_))
            && let State::Reading(sorter) = std::mem::replace(&mut self.state, done)
        {
            self.state = State::Sorted(sorter.finish()?);
        }
        for _ in 0..DOCUMENTS_PER_DRAIN {
            let document = match &mut self.state {
                State::Sorted(sorted) => sorted.next_item()?,
                _ => None,
            };
            let Some(document) = document else {
                self.state = State::Done(self.stats());
                return Ok(Drained::Done);
            };
            match next.push(&document)? {
                Flow::Continue => {}
                Flow::Full => return Ok(Drained::More),
                Flow::Stop => return Ok(Drained::Done),
            }
        }
        Ok(Drained::More)
    }

    fn explain(&self, out: &mut DocumentWriter) {
        let stats = self.stats();
        append_count(out, "totalDataSizeSortedBytesEstimate", stats.bytes);
        out.append_bool("usedDisk", stats.spills > 0);
        append_count(out, "spills", stats.spills);
    }
}
