//! $sample: as many documents as asked for, each as likely as any other

use std::collections::BTreeSet;
use std::sync::Arc;

use bson::{RawBsonRef, RawDocument, RawDocumentBuf};
use rand::Rng;

use banyan_document::{DocumentWriter, Number};

use super::execute::{Drained, Flow, Next, Start, Step};
use super::stage::{Division, Reads, Stage};
use crate::budget::Holding;
use crate::context::Context;
use crate::error::QueryError;
use crate::expression::value::error;

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
        match u64::try_from(number.to_i64_saturating()) {
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

    fn step(self: Arc<Self>, start: &Start<'_>) -> Result<Box<dyn Step>, QueryError> {
        Ok(Box::new(SampleStep {
            size: self.size,
            seen: 0,
            holding: start.budget.holding("$sample"),
            kept: Vec::new(),
        }))
    }
}

/// A reservoir: document `n` replaces a kept one with probability size/n.
struct SampleStep {
    size: u64,
    seen: u64,
    holding: Holding,
    kept: Vec<RawDocumentBuf>,
}

impl Step for SampleStep {
    fn push(&mut self, document: &RawDocument, _: &mut Next<'_>) -> Result<Flow, QueryError> {
        if self.size == 0 {
            return Ok(Flow::Stop);
        }
        self.seen += 1;
        let mut bytes = self.holding.bytes();
        if (self.kept.len() as u64) < self.size {
            self.kept.push(document.to_owned());
        } else {
            let index = rand::rng().random_range(0..self.seen);
            let Some(slot) = usize::try_from(index)
                .ok()
                .and_then(|i| self.kept.get_mut(i))
            else {
                return Ok(Flow::Continue);
            };
            bytes -= held(slot);
            *slot = document.to_owned();
        }
        self.holding.set(bytes + held(document))?;
        Ok(Flow::Continue)
    }

    fn drain(&mut self, next: &mut Next<'_>) -> Result<Drained, QueryError> {
        if self.kept.is_empty() {
            return Ok(Drained::Done);
        }
        // Which document stands where in the reservoir says something about when it came.
        let index = rand::rng().random_range(0..self.kept.len());
        let document = self.kept.swap_remove(index);
        match next.push(&document)? {
            Flow::Continue | Flow::Full => Ok(Drained::More),
            Flow::Stop => Ok(Drained::Done),
        }
    }
}

/// What keeping a document takes.
fn held(document: &RawDocument) -> usize {
    document.as_bytes().len() + size_of::<RawDocumentBuf>()
}
