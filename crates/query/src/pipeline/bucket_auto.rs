//! $bucketAuto: about as many documents in each of so many buckets
//!
//! The documents are sorted by the value that they are grouped by. A bucket takes its share of
//! them, and then those that its upper boundary, which a granularity may have rounded, still takes
//! in.

use std::any::Any;
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

use bson::{RawBson, RawBsonRef, RawDocument, RawDocumentBuf};

use banyan_document::{Collator, DocumentWriter, Number, compare_collated, elements, key};

use super::accumulator::{self, Accumulator, State};
use super::bucket;
use super::granularity::Granularity;
use super::stage::{Reads, Stage};
use super::stage_run::{Drained, Flow, Next, StageRun, Start};
use crate::budget::Budget;
use crate::context::Context;
use crate::error::{ErrorKind, QueryError};
use crate::expression::value::{check_depth, describe, error, show, type_name};
use crate::expression::{Arena, Expression, byte_len};
use crate::memory::consumer;
use crate::sort::{Parts, Sorted, Sorters};
use crate::spill::Spilled;

#[derive(Debug)]
pub struct BucketAuto {
    group_by: Expression,
    buckets: u64,
    accumulators: Vec<Accumulator>,
    granularity: Option<Granularity>,
    source: RawDocumentBuf,
}

pub(super) fn parse(
    value: RawBsonRef<'_>,
    context: &Context,
    out: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    let RawBsonRef::Document(source) = value else {
        return error(
            40240,
            format!(
                "The argument to $bucketAuto must be an object, but found type: {}",
                type_name(Some(value))
            ),
        );
    };
    let (mut group_by, mut buckets, mut output, mut granularity) = (None, None, None, None);
    for (name, value) in source.iter().map_while(Result::ok) {
        match (name.as_str(), value) {
            ("groupBy", value) => group_by = Some(parse_group_by(value, context)?),
            ("buckets", value) => buckets = Some(parse_buckets(value)?),
            ("output", RawBsonRef::Document(document)) => {
                output = Some(parse_output(document, context)?);
            }
            ("output", other) => {
                return error(
                    40244,
                    format!(
                        "The $bucketAuto 'output' field must be an object, but found type: {}",
                        type_name(Some(other))
                    ),
                );
            }
            ("granularity", RawBsonRef::String(name)) => {
                granularity = Some(Granularity::parse(name)?);
            }
            ("granularity", other) => {
                return error(
                    40261,
                    format!(
                        "The $bucketAuto 'granularity' field must be a string, but found type: {}",
                        type_name(Some(other))
                    ),
                );
            }
            (other, _) => {
                return error(
                    40245,
                    format!("Unrecognized option to $bucketAuto: {other}"),
                );
            }
        }
    }
    let (Some(group_by), Some(buckets)) = (group_by, buckets) else {
        return error(
            40246,
            "$bucketAuto requires 'groupBy' and 'buckets' to be specified",
        );
    };
    let buckets = check_buckets(buckets)?;
    let accumulators = match output.filter(|output| !output.is_empty()) {
        Some(accumulators) => accumulators,
        None => parse_output(&bson::rawdoc! { "count": { "$sum": 1 } }, context)?,
    };
    out.push(Arc::new(BucketAuto {
        group_by,
        buckets,
        accumulators,
        granularity,
        source: source.to_owned(),
    }));
    Ok(())
}

fn parse_output(output: &RawDocument, context: &Context) -> Result<Vec<Accumulator>, QueryError> {
    let mut accumulators = Vec::new();
    for (name, value) in output.iter().map_while(Result::ok) {
        let accumulator = accumulator::parse(name.as_str(), value, context)?;
        // The values that a bucket spans are not known before it is full.
        if let Some(n) = accumulator.kind.of_key()
            && n.reads() > 0
        {
            return error(4544714, "Can't refer to the group key in $bucketAuto");
        }
        accumulators.push(accumulator);
    }
    Ok(accumulators)
}

fn parse_group_by(value: RawBsonRef<'_>, context: &Context) -> Result<Expression, QueryError> {
    if !bucket::is_expression(value) {
        return error(
            40239,
            format!(
                "The $bucketAuto 'groupBy' field must be defined as a $-prefixed path or an \
                 expression object, but found: {}",
                show(value)
            ),
        );
    }
    Expression::parse(value, context)
}

fn parse_buckets(value: RawBsonRef<'_>) -> Result<i32, QueryError> {
    let Some(number) = Number::from_raw(value) else {
        return error(
            40241,
            format!(
                "The $bucketAuto 'buckets' field must be a numeric value, but found type: {}",
                type_name(Some(value))
            ),
        );
    };
    number.to_i32_exact().ok_or_else(|| {
        QueryError::new(
            ErrorKind::Location(40242),
            format!(
                "The $bucketAuto 'buckets' field must be representable as a 32-bit integer, but \
                 found {}",
                describe(Some(value))
            ),
        )
    })
}

fn check_buckets(count: i32) -> Result<u64, QueryError> {
    match u64::try_from(count) {
        Ok(count) if count > 0 => Ok(count),
        _ => error(
            40243,
            format!("The $bucketAuto 'buckets' field must be greater than 0, but found: {count}"),
        ),
    }
}

impl Stage for BucketAuto {
    fn name(&self) -> &'static str {
        "$bucketAuto"
    }

    fn serialize(&self, out: &mut DocumentWriter) {
        out.append_doc(self.name(), &self.source);
    }

    fn reads(&self, paths: &mut BTreeSet<String>) -> Reads {
        let mut bounded = self.group_by.dependencies(paths);
        for accumulator in &self.accumulators {
            bounded &= accumulator.argument.dependencies(paths);
            bounded &= accumulator.kind.dependencies(paths);
        }
        match bounded {
            true => Reads::Only,
            false => Reads::Everything,
        }
    }

    fn gathers(&self) -> bool {
        true
    }

    fn run(self: Arc<Self>, start: &Start<'_>) -> Result<Box<dyn StageRun>, QueryError> {
        let arguments = self.accumulators.iter().map(|a| &a.argument);
        let (consumer, together) = (&consumer::BUCKET_AUTO, start.together());
        let sorters = Sorters::of(consumer, None, start.budget, together);
        Ok(Box::new(BucketAutoRun {
            group_by: self.group_by.bind(start.variables),
            arguments: arguments.map(|a| a.bind(start.variables)).collect(),
            input: Input::Reading(Parts::new(&sorters)),
            stage: self,
            arena: Arena::new(),
        }))
    }
}

struct BucketAutoRun {
    stage: Arc<BucketAuto>,
    group_by: Expression,
    arguments: Vec<Expression>,
    input: Input,
    arena: Arena,
}

enum Input {
    Reading(Parts<Grouped>),
    Sorted(Buckets),
    Done,
}

/// A document and what it is grouped by.
#[derive(Debug)]
struct Grouped {
    value: RawBson,
    document: RawDocumentBuf,
}

impl Grouped {
    /// Appends what one with these is read from.
    fn put(value: RawBsonRef<'_>, document: &RawDocument, out: &mut Vec<u8>) {
        let mut writer = DocumentWriter::with_capacity(document.as_bytes().len() + 32);
        writer.append("v", value);
        writer.append_doc("d", document);
        out.extend_from_slice(writer.finish().as_bytes());
    }
}

impl Spilled for Grouped {
    fn write(&self, out: &mut Vec<u8>) {
        Grouped::put(self.value.as_raw_bson_ref(), &self.document, out);
    }

    fn read(bytes: &[u8]) -> Option<Grouped> {
        let written = RawDocument::from_bytes(bytes).ok()?;
        let mut fields = elements(written);
        Some(Grouped {
            value: fields.next()?.value().into(),
            document: fields.next()?.value().as_document()?.to_owned(),
        })
    }
}

/// The buckets that are still to be made.
struct Buckets {
    /// The document that comes next, and those behind it.
    next: Option<Grouped>,
    rest: Sorted<Grouped>,
    share: u64,
    made: u64,
    /// The upper boundary of the last one.
    previous: Option<RawBson>,
}

impl Buckets {
    fn next(&mut self) -> Result<Option<Grouped>, QueryError> {
        let following = match self.next {
            Some(_) => self.rest.next_item()?,
            None => None,
        };
        Ok(std::mem::replace(&mut self.next, following))
    }
}

impl StageRun for BucketAutoRun {
    fn push(&mut self, document: &RawDocument, _: &mut Next<'_>) -> Result<Flow, QueryError> {
        self.arena.reset();
        let Input::Reading(parts) = &mut self.input else {
            return Ok(Flow::Stop);
        };
        let value = self.group_by.evaluate(document, &self.arena)?;
        if let Some(granularity) = &self.stage.granularity {
            granularity.check(value)?;
        }
        let value = value.unwrap_or(RawBsonRef::Null);
        let mut order = Vec::new();
        key::encode_collated(value, self.group_by.collator(), &mut order);
        let bytes = byte_len(value) + document.as_bytes().len() + size_of::<Grouped>();
        parts
            .own()
            .push_with(&order, bytes, |out| Grouped::put(value, document, out))?;
        Ok(Flow::Continue)
    }

    fn begin(&mut self, part: u64) -> bool {
        let Input::Reading(parts) = &mut self.input else {
            return false;
        };
        parts.own().begin(part);
        true
    }

    fn seal(&mut self) -> Result<(), QueryError> {
        match &mut self.input {
            Input::Reading(parts) => parts.own().seal(),
            Input::Sorted(_) | Input::Done => Ok(()),
        }
    }

    fn absorb(&mut self, later: Box<dyn StageRun>, _: &Budget) -> Result<(), QueryError> {
        let later: Box<dyn Any> = later;
        if let Input::Reading(parts) = &mut self.input
            && let Ok(later) = later.downcast::<BucketAutoRun>()
            && let Input::Reading(later) = later.input
        {
            parts.absorb(later);
        }
        Ok(())
    }

    fn drain(&mut self, next: &mut Next<'_>) -> Result<Drained, QueryError> {
        let mut buckets = match std::mem::replace(&mut self.input, Input::Done) {
            Input::Done => return Ok(Drained::Done),
            Input::Sorted(buckets) => buckets,
            Input::Reading(parts) => {
                // Half of a document counts as one.
                let share = (2 * parts.len() + self.stage.buckets) / (2 * self.stage.buckets);
                let mut rest = parts.finish()?;
                Buckets {
                    next: rest.next_item()?,
                    rest,
                    share: share.max(1),
                    made: 0,
                    previous: None,
                }
            }
        };
        let Some(bucket) = self.bucket(&mut buckets, next.budget)? else {
            return Ok(Drained::Done);
        };
        self.input = Input::Sorted(buckets);
        match next.push(&bucket)? {
            Flow::Continue | Flow::Full => Ok(Drained::More),
            Flow::Stop => Ok(Drained::Done),
        }
    }
}

impl BucketAutoRun {
    fn bucket(
        &mut self,
        buckets: &mut Buckets,
        budget: &Budget,
    ) -> Result<Option<RawDocumentBuf>, QueryError> {
        let Some(first) = buckets.next()? else {
            return Ok(None);
        };
        buckets.made += 1;
        let accumulators = self.stage.accumulators.iter();
        let states = accumulators.map(|a| a.start(accumulator::Group::none()));
        let mut filling = Filling {
            states: states.collect::<Result<_, _>>()?,
            min: first.value.clone(),
            max: first.value.clone(),
        };
        self.add(&mut filling, first, budget)?;
        for _ in 1..buckets.share {
            match buckets.next()? {
                Some(more) => self.add(&mut filling, more, budget)?,
                None => break,
            }
        }
        if buckets.made == self.stage.buckets {
            while let Some(more) = buckets.next()? {
                self.add(&mut filling, more, budget)?;
            }
        }
        let stage = self.stage.clone();
        match &stage.granularity {
            Some(granularity) => self.round(granularity, buckets, &mut filling, budget)?,
            None => {
                let collator = stage.group_by.collator();
                let at = |max: &RawBson, next: &Grouped| order(&next.value, max, collator).is_eq();
                self.take_while(buckets, &mut filling, at, budget)?;
                if let Some(next) = &buckets.next {
                    filling.max = next.value.clone();
                }
            }
        }
        buckets.previous = Some(filling.max.clone());
        self.finish(filling, budget).map(Some)
    }

    /// Rounds the boundaries outward, and takes in what lies within them then.
    fn round(
        &mut self,
        granularity: &Granularity,
        buckets: &mut Buckets,
        filling: &mut Filling,
        budget: &Budget,
    ) -> Result<(), QueryError> {
        let boundary = granularity.up(filling.max.as_raw_bson_ref());
        filling.max = boundary.clone();
        let within = |_: &RawBson, next: &Grouped| order(&next.value, &boundary, None).is_lt();
        self.take_while(buckets, filling, within, budget)?;
        filling.max = boundary;
        let is_zero = Number::from_raw(filling.max.as_raw_bson_ref()).is_some_and(Number::is_zero);
        if is_zero && let Some(next) = &buckets.next {
            // Nothing is rounded up from zero: the next bucket begins below its first value.
            filling.max = granularity.down(next.value.as_raw_bson_ref());
        }
        filling.min = match buckets.previous.take() {
            Some(previous) => previous,
            None => granularity.down(filling.min.as_raw_bson_ref()),
        };
        Ok(())
    }

    /// Adds documents as long as `fits` says so of the upper boundary and the next one.
    fn take_while(
        &mut self,
        buckets: &mut Buckets,
        filling: &mut Filling,
        fits: impl Fn(&RawBson, &Grouped) -> bool,
        budget: &Budget,
    ) -> Result<(), QueryError> {
        while buckets
            .next
            .as_ref()
            .is_some_and(|next| fits(&filling.max, next))
            && let Some(next) = buckets.next()?
        {
            self.add(filling, next, budget)?;
        }
        Ok(())
    }

    fn add(
        &mut self,
        filling: &mut Filling,
        grouped: Grouped,
        budget: &Budget,
    ) -> Result<(), QueryError> {
        budget.spend_bytes(grouped.document.as_bytes().len())?;
        self.arena.reset();
        let accumulators = self.stage.accumulators.iter().zip(&self.arguments);
        for ((accumulator, argument), state) in accumulators.zip(&mut filling.states) {
            if !state.needs_input() {
                continue;
            }
            let value = argument.evaluate(&grouped.document, &self.arena)?;
            state.add(&accumulator.kind, value, &grouped.document, budget)?;
            accumulator.check(state.memory_bytes(), budget.memory())?;
        }
        filling.max = grouped.value;
        Ok(())
    }

    fn finish(&self, mut filling: Filling, budget: &Budget) -> Result<RawDocumentBuf, QueryError> {
        let mut writer = DocumentWriter::new();
        let names = self.stage.accumulators.iter().map(|a| &*a.field);
        if !names.clone().any(|name| name == "_id") {
            writer.begin_document("_id");
            writer.append("min", filling.min.as_raw_bson_ref());
            writer.append("max", filling.max.as_raw_bson_ref());
            writer.end();
        }
        for (accumulator, state) in self.stage.accumulators.iter().zip(&mut filling.states) {
            let value = state.finish(&accumulator.kind, budget)?;
            budget.spend_bytes(byte_len(value.as_raw_bson_ref()))?;
            check_depth(value.as_raw_bson_ref())?;
            writer.append(&accumulator.field, value.as_raw_bson_ref());
        }
        Ok(writer.finish())
    }
}

/// A bucket that is being filled.
struct Filling {
    states: Vec<State>,
    min: RawBson,
    max: RawBson,
}

fn order(a: &RawBson, b: &RawBson, collator: Option<&Collator>) -> Ordering {
    compare_collated(a.as_raw_bson_ref(), b.as_raw_bson_ref(), collator)
}
