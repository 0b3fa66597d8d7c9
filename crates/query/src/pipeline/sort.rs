//! $sort, with the limit that follows it: then only so many documents are kept

use std::any::Any;
use std::collections::BTreeSet;
use std::sync::Arc;

use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use banyan_document::DocumentWriter;

use super::dependencies::Pruner;
use super::limit::Limit;
use super::sort_key::SortKey;
use super::stage::{Changes, Division, Reads, Stage};
use super::stage_run::{Drained, Flow, Next, StageRun, Start, append_count};
use crate::budget::Budget;
use crate::context::Context;
use crate::error::QueryError;
use crate::expression::value::error;
use crate::sort::{Parts, SortStats, Sorted, Sorter, Sorters};
use crate::spill::damaged;

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

    fn gathers(&self) -> bool {
        true
    }

    fn is_filter_transparent(&self) -> bool {
        true
    }

    fn run(self: Arc<Self>, start: &Start<'_>) -> Result<Box<dyn StageRun>, QueryError> {
        let limit = self
            .limit
            .map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
        let sorters = Sorters::within(limit, start.budget, start.together());
        Ok(Box::new(SortRun {
            key: self.key.clone(),
            pruner: Pruner::new(&start.needed),
            state: State::Reading(Parts::new(&sorters)),
            bytes: Vec::new(),
        }))
    }
}

struct SortRun {
    key: SortKey,
    pruner: Pruner,
    state: State,
    /// The key of a document.
    bytes: Vec<u8>,
}

enum State {
    Reading(Parts<RawDocumentBuf>),
    Sorted(Sorted<RawDocumentBuf>),
    Done(SortStats),
}

impl SortRun {
    /// Its own, while it reads.
    fn sorter(&mut self) -> Option<&mut Sorter<RawDocumentBuf>> {
        match &mut self.state {
            State::Reading(parts) => Some(parts.own()),
            State::Sorted(_) | State::Done(_) => None,
        }
    }

    fn stats(&self) -> SortStats {
        match &self.state {
            State::Reading(parts) => parts.stats(),
            State::Sorted(sorted) => sorted.stats(),
            State::Done(stats) => *stats,
        }
    }
}

impl StageRun for SortRun {
    fn push(&mut self, document: &RawDocument, _: &mut Next<'_>) -> Result<Flow, QueryError> {
        let State::Reading(parts) = &mut self.state else {
            return Ok(Flow::Stop);
        };
        self.bytes.clear();
        self.key.pattern.write_key(document, &mut self.bytes)?;
        let prune = |out: &mut Vec<u8>| self.pruner.prune_into(document, out);
        let bytes = document.as_bytes().len();
        parts.own().push_with(&self.bytes, bytes, prune)?;
        Ok(Flow::Continue)
    }

    fn begin(&mut self, part: u64) -> bool {
        match self.sorter() {
            Some(sorter) => {
                sorter.begin(part);
                true
            }
            None => false,
        }
    }

    fn seal(&mut self) -> Result<(), QueryError> {
        self.sorter().map_or(Ok(()), Sorter::seal)
    }

    fn absorb(&mut self, later: Box<dyn StageRun>, _: &Budget) -> Result<(), QueryError> {
        let later: Box<dyn Any> = later;
        if let State::Reading(parts) = &mut self.state
            && let Ok(later) = later.downcast::<SortRun>()
            && let State::Reading(later) = later.state
        {
            parts.absorb(later);
        }
        Ok(())
    }

    fn drain(&mut self, next: &mut Next<'_>) -> Result<Drained, QueryError> {
        let done = State::Done(self.stats());
        if matches!(self.state, State::Reading(_))
            && let State::Reading(parts) = std::mem::replace(&mut self.state, done)
        {
            self.state = State::Sorted(parts.finish()?);
        }
        for _ in 0..DOCUMENTS_PER_DRAIN {
            let document = match &mut self.state {
                State::Sorted(sorted) => sorted.next_piece()?,
                _ => None,
            };
            let Some(document) = document else {
                self.state = State::Done(self.stats());
                return Ok(Drained::Done);
            };
            let document = RawDocument::from_bytes(&document[..]).map_err(|_| damaged())?;
            match next.push(document)? {
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
