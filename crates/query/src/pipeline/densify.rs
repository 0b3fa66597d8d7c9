//! $densify: documents for the values that are missing in a sequence of numbers or dates
//!
//! The documents are sorted first, by the field, or by the partition and the field where each
//! partition is filled by itself. Of each partition it is known which value comes next; when a
//! document has a later one, those before it are made.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

use bson::{RawArray, RawBson, RawBsonRef, RawDocument, RawDocumentBuf};
use indexmap::IndexMap;

use banyan_document::{DocumentWriter, Number, compare, key};

use super::sort;
use super::specification::{Fields, Kind, missing, wrong_type};
use super::stage::{Reads, Stage};
use super::stage_run::{Drained, Flow, Next, StageRun, Start};
use super::unwind::{write_at, write_maybe_at};
use crate::context::Context;
use crate::error::{ErrorKind, QueryError};
use crate::expression::value::{error, is_nullish, items, type_name};
use crate::expression::{Arena, Expression, FieldPath};
use crate::memory::{Holding, consumer};

/// So many documents may be made.
const GENERATED_MAX: u64 = 500_000;
/// What a partition takes beside its key and its values.
const PARTITION_BYTES: usize = 128;

#[derive(Debug)]
pub struct Densify {
    field: FieldPath,
    partition: Vec<Partitioned>,
    bounds: Bounds,
    steps: Steps,
    source: RawDocumentBuf,
}

#[derive(Debug)]
struct Partitioned {
    path: FieldPath,
    value: Expression,
}

#[derive(Debug)]
enum Bounds {
    /// From the least value of all to the greatest, in each partition.
    Full,
    /// From the least value of the partition to its greatest.
    Partition,
    /// From the first, up to the second.
    Range(RawBson, RawBson),
}

/// From one value to the next, and back.
#[derive(Debug)]
enum Steps {
    /// Of a double and a decimal the first is rounded to 15 digits, other than in `$add`.
    Numbers(Number),
    /// Of dates: expressions over `{v: value}`.
    Dates {
        next: Expression,
        previous: Expression,
    },
}

const KNOWN: &[(&str, Kind)] = &[
    ("field", Kind::String),
    ("partitionByFields", Kind::Strings),
    (
        "range",
        Kind::Form(|range| RangeFields::of(range).map(drop)),
    ),
];
const KNOWN_OF_RANGE: &[(&str, Kind)] = &[
    ("step", Kind::Any),
    ("unit", Kind::String),
    ("bounds", Kind::Any),
];

/// The stage without the sort.
pub(super) const INTERNAL: &str = "$_internalDensify";

pub(super) fn parse(
    value: RawBsonRef<'_>,
    context: &Context,
    out: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    let densify = Densify::parse(value, context)?;
    let mut order = DocumentWriter::new();
    if !matches!(densify.bounds, Bounds::Full) {
        for partitioned in &densify.partition {
            append_once(&mut order, &partitioned.path, &densify.field);
        }
    }
    order.append_i32(&densify.field.to_string(), 1);
    sort::parse(RawBsonRef::Document(&order.finish()), context, out)?;
    out.push(Arc::new(densify));
    Ok(())
}

pub(super) fn parse_sorted(
    value: RawBsonRef<'_>,
    context: &Context,
    out: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    out.push(Arc::new(Densify::parse(value, context)?));
    Ok(())
}

impl Densify {
    fn parse(value: RawBsonRef<'_>, context: &Context) -> Result<Densify, QueryError> {
        let RawBsonRef::Document(source) = value else {
            return Err(QueryError::new(
                ErrorKind::FailedToParse,
                format!(
                    "The $densify stage specification must be an object, found {}",
                    type_name(Some(value))
                ),
            ));
        };
        let fields = Fields::new("$densify", source, KNOWN)?;
        let field = fields
            .string("field")
            .ok_or_else(|| missing("$densify.field"))?;
        let partition = fields.array("partitionByFields");
        let range = fields
            .document("range")
            .ok_or_else(|| missing("$densify.range"))?;
        let field = FieldPath::parse(field)?;
        let partition = match partition {
            Some(array) => partition_fields(array, context)?,
            None => Vec::new(),
        };
        let (bounds, steps) = parse_range(range, !partition.is_empty(), context)?;
        Ok(Densify {
            field,
            partition,
            bounds,
            steps,
            source: source.to_owned(),
        })
    }
}

fn append_once(order: &mut DocumentWriter, path: &FieldPath, field: &FieldPath) {
    if path != field {
        order.append_i32(&path.to_string(), 1);
    }
}

fn partition_fields(array: &RawArray, context: &Context) -> Result<Vec<Partitioned>, QueryError> {
    let mut fields = Vec::new();
    for path in items(array).filter_map(|item| item.as_str()) {
        let path = FieldPath::parse(path)?;
        let value = format!("${path}");
        let value = Expression::parse(RawBsonRef::String(&value), context)?;
        fields.push(Partitioned { path, value });
    }
    Ok(fields)
}

/// What a range says, as it is written.
struct RangeFields<'a> {
    step: RawBsonRef<'a>,
    number: Number,
    unit: Option<&'a str>,
    bounds: RawBsonRef<'a>,
}

impl<'a> RangeFields<'a> {
    fn of(range: &'a RawDocument) -> Result<RangeFields<'a>, QueryError> {
        let fields = Fields::new("$densify.range", range, KNOWN_OF_RANGE)?;
        let step = fields
            .get("step")
            .filter(|step| !is_nullish(Some(*step)))
            .ok_or_else(|| missing("$densify.range.step"))?;
        let Some(number) = Number::from_raw(step) else {
            let types = "types '[int, decimal, double, long']";
            return Err(wrong_type("$densify.range.step", step, types));
        };
        let bounds = fields
            .get("bounds")
            .ok_or_else(|| missing("$densify.range.bounds"))?;
        Ok(RangeFields {
            step,
            number,
            unit: fields.string("unit"),
            bounds,
        })
    }
}

fn parse_range(
    range: &RawDocument,
    partitioned: bool,
    context: &Context,
) -> Result<(Bounds, Steps), QueryError> {
    let RangeFields {
        step,
        number,
        unit,
        bounds,
    } = RangeFields::of(range)?;
    if number.compare(Number::Int32(0)).is_le() || number.is_nan() {
        return error(
            5733401,
            "The step parameter in a range statement must be a strictly positive numeric value",
        );
    }
    let steps = Steps::new(step, number, unit, context)?;
    let bounds = match bounds {
        RawBsonRef::String("full") => Bounds::Full,
        RawBsonRef::String("partition") if partitioned => Bounds::Partition,
        RawBsonRef::String("partition") => {
            return error(
                5733408,
                "One cannot specify the bounds as 'partition' without specifying a non-empty \
                 array of partitionByFields. You may have meant to specify 'full' bounds.",
            );
        }
        RawBsonRef::String(_) => {
            return error(
                5946802,
                "Bounds string must either be 'full' or 'partition'",
            );
        }
        RawBsonRef::Array(array) => explicit_bounds(array, step, unit.is_some())?,
        _ => {
            return error(
                5733404,
                "The bounds in a range statement must be the string 'full', 'partition', or an \
                 ascending array of two numbers or two dates",
            );
        }
    };
    if unit.is_some() && number.to_i64_exact().is_none() {
        return error(
            6586400,
            "The step parameter in a range statement must be a whole number when densifying a \
             date range",
        );
    }
    Ok((bounds, steps))
}

fn explicit_bounds(
    array: &RawArray,
    step: RawBsonRef<'_>,
    has_unit: bool,
) -> Result<Bounds, QueryError> {
    let bounds: Vec<_> = items(array).collect();
    let [low, high] = *bounds.as_slice() else {
        return error(
            5733403,
            "A bounding array in a range statement must have exactly two elements",
        );
    };
    let is_date = |value| matches!(value, RawBsonRef::DateTime(_));
    let is_number = |value| Number::from_raw(value).is_some();
    // Values of any two types are in some order, and that is looked at first.
    if compare(low, high).is_gt() {
        return error(
            5733402,
            "A bounding array must be an ascending array of either two dates or two numbers",
        );
    }
    if !is_date(low) && !is_number(low) {
        return error(5946800, "Explicit bounds must be numeric or dates");
    }
    match (is_date(low), has_unit) {
        (false, true) => return error(5733409, "Numeric bounds may not have unit parameter"),
        (true, false) => return error(5733410, "A bounding array of dates must specify a unit"),
        _ if is_date(low) != is_date(high) || is_number(low) != is_number(high) => {
            return error(
                5733406,
                "A bounding array must contain either both dates or both numeric types",
            );
        }
        _ => {}
    }
    let (a, b) = (low.element_type(), high.element_type());
    if !is_date(low) && (a != b || a != step.element_type()) {
        return error(
            5876900,
            "Upper bound, lower bound, and step must all have the same type",
        );
    }
    Ok(Bounds::Range(low.into(), high.into()))
}

impl Steps {
    fn new(
        step: RawBsonRef<'_>,
        number: Number,
        unit: Option<&str>,
        context: &Context,
    ) -> Result<Steps, QueryError> {
        let Some(unit) = unit else {
            return Ok(Steps::Numbers(number));
        };
        let expression = |operator: &str| {
            let mut writer = DocumentWriter::new();
            writer.begin_document(operator);
            writer.append_str("startDate", "$v");
            writer.append_str("unit", unit);
            writer.append("amount", step);
            writer.end();
            Expression::parse(RawBsonRef::Document(&writer.finish()), context)
        };
        let steps = Steps::Dates {
            next: expression("$dateAdd")?,
            previous: expression("$dateSubtract")?,
        };
        // An unknown unit is an error whether there are documents or not.
        let epoch = RawBson::DateTime(bson::DateTime::from_millis(0));
        let unknown = |failed: &QueryError| failed.kind == ErrorKind::FailedToParse;
        if let Some(failed) = steps.next(&epoch).err().filter(unknown) {
            return Err(failed);
        }
        Ok(steps)
    }

    fn are_of_dates(&self) -> bool {
        matches!(self, Steps::Dates { .. })
    }

    fn step(expression: &Expression, value: RawBsonRef<'_>) -> Result<RawBson, QueryError> {
        let mut writer = DocumentWriter::new();
        writer.append("v", value);
        let stepped = expression.evaluate_owned(&writer.finish())?;
        Ok(stepped.unwrap_or(RawBson::Null))
    }

    fn next(&self, value: &RawBson) -> Result<RawBson, QueryError> {
        self.stepped(value, Number::add, |next, _| next)
    }

    fn previous(&self, value: &RawBson) -> Result<RawBson, QueryError> {
        self.stepped(value, Number::subtract, |_, previous| previous)
    }

    fn stepped<'a>(
        &'a self,
        value: &RawBson,
        number: impl Fn(Number, Number) -> Number,
        date: impl Fn(&'a Expression, &'a Expression) -> &'a Expression,
    ) -> Result<RawBson, QueryError> {
        let value = value.as_raw_bson_ref();
        match self {
            Steps::Numbers(by) => {
                let from = Number::from_raw(value);
                let stepped = from.map(|from| number(from, *by).to_raw().into());
                Ok(stepped.unwrap_or(RawBson::Null))
            }
            Steps::Dates { next, previous } => Steps::step(date(next, previous), value),
        }
    }

    /// The first value of a range in which a document has the first one, `value`.
    fn first(&self, low: &RawBson, value: RawBsonRef<'_>) -> Result<RawBson, QueryError> {
        if !self.are_of_dates() || order(low, value) == Ordering::Equal {
            return Ok(low.clone());
        }
        self.onto(low)
    }

    /// A value as a step leads to it, as the reference counts: a month back from the 31st and a
    /// month on may be the 30th, and a whole number becomes what the step is.
    fn onto(&self, value: &RawBson) -> Result<RawBson, QueryError> {
        self.next(&self.previous(value)?)
    }

    /// Refuses what no step leads to.
    fn check(&self, value: RawBsonRef<'_>) -> Result<(), QueryError> {
        let found = match value {
            RawBsonRef::DateTime(_) => "date",
            value if Number::from_raw(value).is_some() => "numeric",
            _ => return error(5733201, "Densify field type must be numeric or a date"),
        };
        match (found, self.are_of_dates()) {
            ("date", false) => error(
                6053600,
                "Encountered date densify value in collection when step does not have a date unit.",
            ),
            ("numeric", true) => error(
                6053600,
                "Encountered numeric densify value in collection when step has a date unit.",
            ),
            _ => Ok(()),
        }
    }
}

fn order(a: &RawBson, b: RawBsonRef<'_>) -> Ordering {
    compare(a.as_raw_bson_ref(), b)
}

impl Stage for Densify {
    fn name(&self) -> &'static str {
        INTERNAL
    }

    fn serialize(&self, out: &mut DocumentWriter) {
        out.append_doc(self.name(), &self.source);
    }

    fn reads(&self, paths: &mut BTreeSet<String>) -> Reads {
        paths.insert(self.field.first().to_owned());
        let partition = self.partition.iter().map(|p| p.path.first().to_owned());
        paths.extend(partition);
        Reads::AndPasses
    }

    fn run(self: Arc<Self>, start: &Start<'_>) -> Result<Box<dyn StageRun>, QueryError> {
        Ok(Box::new(DensifyRun {
            densify: self,
            partitions: IndexMap::new(),
            first: None,
            last: None,
            waiting: None,
            finishing: 0,
            is_behind_range: false,
            generated: 0,
            holding: start.budget.holding(&consumer::DENSIFY),
            arena: Arena::new(),
            key: Vec::new(),
        }))
    }
}

impl Densify {
    /// The fields by which a document is in its partition.
    fn in_common(
        &self,
        document: &RawDocument,
        arena: &Arena,
    ) -> Result<RawDocumentBuf, QueryError> {
        let mut common = RawDocumentBuf::new();
        for partitioned in &self.partition {
            let value = partitioned.value.evaluate(document, arena)?;
            let mut writer = DocumentWriter::new();
            write_maybe_at(&common, &partitioned.path, value, &mut writer);
            common = writer.finish();
        }
        Ok(common)
    }
}

struct DensifyRun {
    densify: Arc<Densify>,
    partitions: IndexMap<Box<[u8]>, Partition>,
    /// The least and the greatest value so far.
    first: Option<RawBson>,
    last: Option<RawBson>,
    /// A document before which values of its partition are still to be made.
    waiting: Option<Waiting>,
    /// The partition that is brought to its end.
    finishing: usize,
    /// Whether the documents have come to the end of an explicit range.
    is_behind_range: bool,
    generated: u64,
    holding: Holding,
    arena: Arena,
    key: Vec<u8>,
}

struct Partition {
    /// The fields that all its documents have in common.
    values: RawDocumentBuf,
    next: RawBson,
}

struct Waiting {
    document: RawDocumentBuf,
    value: RawBson,
    partition: usize,
    /// What is made before it has of its partition's fields: equal numbers may be of another type
    /// than those of the documents before.
    values: Option<RawDocumentBuf>,
    /// Whether there was nothing to make before it when it came.
    is_made: bool,
}

impl StageRun for DensifyRun {
    fn push(&mut self, document: &RawDocument, next: &mut Next<'_>) -> Result<Flow, QueryError> {
        while self.waiting.is_some() {
            if self.resume(next)? == Flow::Stop {
                return Ok(Flow::Stop);
            }
        }
        let value = self.densify.field.read_plain(document).unwrap_or(None);
        let value = match value {
            None | Some(RawBsonRef::Null | RawBsonRef::Undefined) => return next.push(document),
            Some(value) => value,
        };
        // Behind the end of the range nothing is made any more, and nothing is looked at.
        if self.is_behind_range && self.densify.partition.is_empty() {
            return next.push(document);
        }
        self.densify.steps.check(value)?;
        let partition = self.partition(document, value)?;
        if self.first.is_none() {
            self.first = Some(value.into());
        }
        self.last = Some(value.into());
        let following = self.partitions.get_index(partition);
        let following = following.map(|(_, partition)| &partition.next);
        let is_made = following.is_some_and(|following| order(following, value).is_ge());
        let values = match is_made || self.densify.partition.is_empty() {
            true => None,
            false => Some(self.densify.in_common(document, &self.arena)?),
        };
        self.waiting = Some(Waiting {
            document: document.to_owned(),
            value: value.into(),
            partition,
            values,
            is_made,
        });
        self.resume(next)
    }

    fn resume(&mut self, next: &mut Next<'_>) -> Result<Flow, QueryError> {
        let Some(waiting) = self.waiting.take() else {
            return Ok(Flow::Continue);
        };
        let value = waiting.value.as_raw_bson_ref();
        loop {
            let values = waiting.values.as_deref();
            match self.make(waiting.partition, values, value, false, next)? {
                Some(Flow::Continue) => {}
                Some(flow) => {
                    self.waiting = Some(waiting);
                    return Ok(flow);
                }
                None => break,
            }
        }
        if let Some((_, partition)) = self.partitions.get_index_mut(waiting.partition) {
            let following = order(&partition.next, value);
            // When MongoDB takes the end for reached, which a range of one value has not.
            self.is_behind_range |= match &self.densify.bounds {
                Bounds::Range(low, high) => {
                    let is_single = order(low, high.as_raw_bson_ref()).is_eq();
                    match order(high, value) {
                        Ordering::Less if is_single => true,
                        Ordering::Equal if is_single => false,
                        Ordering::Less | Ordering::Equal => following.is_le() || waiting.is_made,
                        Ordering::Greater => false,
                    }
                }
                Bounds::Full | Bounds::Partition => false,
            };
            if following.is_eq() {
                // The next value is reckoned from that of the document, with its type and digits.
                partition.next = self.densify.steps.next(&waiting.value)?;
            }
        }
        next.push(&waiting.document)
    }

    fn drain(&mut self, next: &mut Next<'_>) -> Result<Drained, QueryError> {
        let densify = self.densify.clone();
        let end = match (&densify.bounds, &self.last) {
            (Bounds::Partition, _) | (Bounds::Full, None) => return Ok(Drained::Done),
            (Bounds::Full, Some(last)) => last.clone(),
            (Bounds::Range(low, high), _) => {
                if self.partitions.is_empty() {
                    let (values, next) = (RawDocumentBuf::new(), low.clone());
                    let partition = Partition { values, next };
                    self.partitions.insert(Box::default(), partition);
                }
                high.clone()
            }
        };
        while self.finishing < self.partitions.len() {
            match self.make(self.finishing, None, end.as_raw_bson_ref(), true, next)? {
                Some(Flow::Continue) => {}
                Some(Flow::Full) => return Ok(Drained::More),
                Some(Flow::Stop) => return Ok(Drained::Done),
                None => self.finishing += 1,
            }
        }
        Ok(Drained::Done)
    }
}

impl DensifyRun {
    /// The document's partition, by its place.
    fn partition(
        &mut self,
        document: &RawDocument,
        value: RawBsonRef<'_>,
    ) -> Result<usize, QueryError> {
        self.arena.reset();
        self.key.clear();
        for partitioned in &self.densify.partition {
            let value = partitioned.value.evaluate(document, &self.arena)?;
            // What is missing is no null.
            self.key.push(u8::from(value.is_some()));
            let collator = partitioned.value.collator();
            let shown = value.unwrap_or(RawBsonRef::Null);
            key::encode_collated(shown, collator, &mut self.key);
        }
        if let Some(known) = self.partitions.get_index_of(&self.key[..]) {
            return Ok(known);
        }
        let common = self.densify.in_common(document, &self.arena)?;
        let next = match &self.densify.bounds {
            Bounds::Full => match &self.first {
                Some(first) if order(first, value) != Ordering::Equal => {
                    self.densify.steps.onto(first)?
                }
                _ => value.into(),
            },
            Bounds::Partition => value.into(),
            Bounds::Range(low, _) => self.densify.steps.first(low, value)?,
        };
        let bytes = self.key.len() + common.as_bytes().len() + PARTITION_BYTES;
        self.holding.add(bytes)?;
        let partition = Partition {
            values: common,
            next,
        };
        let key = self.key.as_slice().into();
        Ok(self.partitions.insert_full(key, partition).0)
    }

    /// Makes the next document of a partition, if its value comes before `end`, or at it where
    /// the greatest value of all ends the partition. It has `values`, or those of the partition's first
    /// document.
    fn make(
        &mut self,
        index: usize,
        values: Option<&RawDocument>,
        end: RawBsonRef<'_>,
        finishing: bool,
        next: &mut Next<'_>,
    ) -> Result<Option<Flow>, QueryError> {
        let Some((_, partition)) = self.partitions.get_index_mut(index) else {
            return Ok(None);
        };
        let is_within = match (order(&partition.next, end), &self.densify.bounds) {
            (Ordering::Less, Bounds::Range(low, high)) => {
                let high = high.as_raw_bson_ref();
                // A range of one value has that value.
                order(&partition.next, high).is_lt()
                    || (order(low, high).is_eq() && order(&partition.next, high).is_eq())
            }
            // The end of a partition that has come to its range makes no document.
            (Ordering::Equal, Bounds::Range(low, _)) => {
                let alone = self.last.is_none() || !self.densify.partition.is_empty();
                finishing && alone && order(low, end).is_eq()
            }
            (Ordering::Less, _) => true,
            // A step that is too small to lead on from there has made it already.
            (Ordering::Equal, Bounds::Full) => {
                let following = self.densify.steps.next(&partition.next)?;
                finishing && !order(&following, partition.next.as_raw_bson_ref()).is_eq()
            }
            _ => false,
        };
        if !is_within {
            return Ok(None);
        }
        let field = &self.densify.field;
        let values = values.unwrap_or(&partition.values);
        if let Ok(Some(_)) = field.read_plain(values) {
            return error(
                5733306,
                "DocGenerator cannot include field that is being densified",
            );
        }
        self.generated += 1;
        if self.generated > GENERATED_MAX {
            return error(
                5897900,
                format!(
                    "Generated {} documents in $densify, which is over the limit of \
                     {GENERATED_MAX}. Increase the 'internalQueryMaxAllowedDensifyDocs' parameter \
                     to allow more generated documents",
                    self.generated
                ),
            );
        }
        let following = self.densify.steps.next(&partition.next)?;
        let value = std::mem::replace(&mut partition.next, following);
        let mut writer = DocumentWriter::new();
        let value = value.as_raw_bson_ref();
        write_at(values, &self.densify.field, value, &mut writer);
        next.push(&writer.finish()).map(Some)
    }
}
