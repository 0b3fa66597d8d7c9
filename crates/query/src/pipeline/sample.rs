//! $sample: as many documents as asked for, each as likely as any other

use std::collections::BTreeSet;
use std::sync::Arc;

use bson::{RawBsonRef, RawDocument, RawDocumentBuf};
use rand::Rng;

use banyan_document::{DocumentWriter, Number};

use super::stage::{Division, Reads, Stage};
use super::stage_run::{Drained, Flow, Next, StageRun, Start};
use crate::context::Context;
use crate::error::QueryError;
use crate::expression::value::error;
use crate::memory::consumer;
use crate::sort::{Sorted, Sorter};

pub(super) fn parse(
    value: RawBsonRef<'_>,
    _: &Context,
    out: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    let RawBsonRef::Document(document) = value else {
        return error(28745, "the $sample stage specification must be an object");
    };
    let mut size = None;
    for (name, value) in document.iter().map_while(Result::ok) {
        if name.as_str() != "size" {
            return error(28748, format!("unrecognized option to $sample: {name}"));
        }
        let Some(number) = Number::from_raw(value) else {
            return error(28746, "size argument to $sample must be a number");
        };
        match u64::try_from(number.to_i64_rounded()) {
            Ok(value) => size = Some(value),
            Err(_) => return error(28747, "size argument to $sample must not be negative"),
        }
    }
    match size {
        Some(size) => out.push(Arc::new(Sample { size })),
        None => return error(28749, "$sample stage must specify a size"),
    }
    Ok(())
}

#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub size: u64,
}

impl Stage for Sample {
    fn name(&self) -> &'static str {
        "$sample"
    }

    fn serialize(&self, out: &mut DocumentWriter) {
        out.begin_document(self.name());
        out.append_i64("size", i64::try_from(self.size).unwrap_or(i64::MAX));
        out.end();
    }

    fn reads(&self, _: &mut BTreeSet<String>) -> Reads {
        Reads::AndPasses
    }

    fn split(&self) -> Division {
        Division::Both {
            shards: vec![Arc::new(*self)],
            order: None,
            router: vec![Arc::new(*self)],
        }
    }

    fn run(self: Arc<Self>, start: &Start<'_>) -> Result<Box<dyn StageRun>, QueryError> {
        Ok(Box::new(SampleRun {
            size: self.size,
            state: State::Reading(Sorter::of(
                &consumer::SAMPLE,
                Some(usize::try_from(self.size).unwrap_or(usize::MAX)),
                start.budget,
            )),
        }))
    }
}

/// Sorts by a number drawn for each document, and keeps the first.
struct SampleRun {
    size: u64,
    state: State,
}

enum State {
    Reading(Sorter<RawDocumentBuf>),
    Sorted(Sorted<RawDocumentBuf>),
    Done,
}

impl StageRun for SampleRun {
    fn push(&mut self, document: &RawDocument, _: &mut Next<'_>) -> Result<Flow, QueryError> {
        let State::Reading(sorter) = &mut self.state else {
            return Ok(Flow::Stop);
        };
        if self.size == 0 {
            return Ok(Flow::Stop);
        }
        let drawn = rand::rng().random::<u64>().to_be_bytes();
        if sorter.wants(&drawn) {
            let bytes = document.as_bytes();
            sorter.push_with(&drawn, bytes.len(), |out| out.extend_from_slice(bytes))?;
        }
        Ok(Flow::Continue)
    }

    fn drain(&mut self, next: &mut Next<'_>) -> Result<Drained, QueryError> {
        let mut sorted = match std::mem::replace(&mut self.state, State::Done) {
            State::Done => return Ok(Drained::Done),
            State::Reading(sorter) => sorter.finish()?,
            State::Sorted(sorted) => sorted,
        };
        let Some(document) = sorted.next_item()? else {
            return Ok(Drained::Done);
        };
        self.state = State::Sorted(sorted);
        match next.push(&document)? {
            Flow::Continue | Flow::Full => Ok(Drained::More),
            Flow::Stop => Ok(Drained::Done),
        }
    }
}
