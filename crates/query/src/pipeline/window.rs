//! $setWindowFields: values of the documents around a document, in the order of its partition
//!
//! The documents are sorted by their partition and by `sortBy`. Of each partition every function
//! of `table.rs` gives a value for each document, most of them over the window of documents
//! that `bounds.rs` finds for it.

mod accumulated;
mod around;
mod bounds;
mod calculus;
mod fill;
mod function;
mod moving;
mod partition;
mod place;
mod ranges;
mod scaler;
mod sliding;
mod table;

use std::collections::BTreeSet;
use std::sync::Arc;

use bson::{RawBson, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};

use banyan_document::{DocumentWriter, key};

use super::dependencies::{Dependencies, Needed, Pruner};
use super::project::Projector;
use super::sort_key::SortKey;
use super::specification::{Fields, Kind, missing};
use super::stage::{Changes, Reads, Stage};
use super::stage_run::{Drained, Flow, Next, StageRun, Start, append_count};
use crate::budget::Budget;
use crate::context::{BoundConstant, Context};
use crate::error::{ErrorKind, QueryError};
use crate::expression::value::{error, type_name};
use crate::expression::{Arena, Expression, FieldPath, byte_len};
use crate::memory::{Holding, consumer};
use crate::sort::{SortPattern, Sorted, Sorter};
use crate::spill::{Cursor, List};
use crate::variables::Variables;
use around::{Around, failed};
use function::{Function, Values};
use partition::{Partition, Placed, held};

#[derive(Debug)]
pub struct SetWindowFields {
    partition: Option<Expression>,
    order: Option<SortKey>,
    outputs: Vec<Output>,
    /// Sets the fields to the values of variables.
    setter: Projector,
    source: RawDocumentBuf,
}

#[derive(Debug)]
struct Output {
    path: Box<str>,
    function: Box<dyn Function>,
}

/// Where what a partition comes to stands while it is sorted.
const COMPUTED: &str = "v";

const KNOWN: &[(&str, Kind)] = &[
    ("partitionBy", Kind::Any),
    ("sortBy", Kind::Document),
    ("output", Kind::Document),
];

pub(super) fn parse(
    value: RawBsonRef<'_>,
    context: &Context,
    out: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    let RawBsonRef::Document(source) = value else {
        let found = type_name(Some(value));
        return Err(failed(format!(
            "the $setWindowFields stage specification must be an object, found {found}"
        )));
    };
    let fields = Fields::new("$setWindowFields", source, KNOWN)?;
    let output = fields.document("output");
    let output = output.ok_or_else(|| missing("$setWindowFields.output"))?;
    let order = fields.document("sortBy");
    let by = fields.get("partitionBy");
    // What it comes to is told once the functions are known to be well formed.
    let form = || by.map(|by| Expression::parse(by, context)).transpose();
    let (_, failure) = context.folding.keeping_failure(form)?;
    let sorted = order.filter(|order| !order.is_empty());
    let sorted = sorted
        .map(|order| SortKey::parse(order, context))
        .transpose()?;
    let outputs = parse_outputs(output, order, context)?;
    if let Some(failure) = failure {
        return Err(failure);
    }
    let partition = context.folding.at_once(|| parse_partition(by, context))?;
    if let Some(by) = partition.as_ref().filter(|by| by.is_bound()) {
        let constant = || -> Arc<dyn BoundConstant> { Arc::new(ConstantPartition(by.clone())) };
        context.folding.note_bound(constant);
    }
    let order = match partition {
        Some(_) => sorted.map(SortKey::coming_second),
        None => sorted,
    };
    let stage = SetWindowFields {
        order,
        outputs,
        setter: setter(output, context)?,
        partition,
        source: source.to_owned(),
    };
    out.push(Arc::new(stage));
    Ok(())
}

/// Where a document sorts whose partition is an array: as it does in a `$sort`, which comes before the
/// partitions are told apart.
fn write_array_key(
    partition: &Expression,
    document: &RawDocument,
    value: RawBsonRef<'_>,
    order: &mut Vec<u8>,
) -> Result<(), QueryError> {
    let path = partition.as_field_path().map(FieldPath::to_string);
    let mut by = DocumentWriter::new();
    by.append_i32(path.as_deref().unwrap_or(COMPUTED), 1);
    let pattern = SortPattern::parse(&by.finish(), partition.collator())?;
    match path {
        Some(_) => pattern.write_key(document, order),
        None => {
            let mut computed = DocumentWriter::new();
            computed.append(COMPUTED, value);
            pattern.write_key(&computed.finish(), order)
        }
    }
}

fn array_partition() -> QueryError {
    QueryError::new(
        ErrorKind::TypeMismatch,
        "An expression used to partition cannot evaluate to value of type array",
    )
}

/// What documents are parted by, of which none has a part in it.
#[derive(Debug)]
struct ConstantPartition(Expression);

impl BoundConstant for ConstantPartition {
    fn check(&self, variables: &Variables) -> Result<(), QueryError> {
        match self.0.bind(variables).evaluate_owned(&rawdoc! {})? {
            Some(RawBson::Array(_)) => Err(array_partition()),
            _ => Ok(()),
        }
    }
}

/// `None` if all documents are one partition.
fn parse_partition(
    value: Option<RawBsonRef<'_>>,
    context: &Context,
) -> Result<Option<Expression>, QueryError> {
    let Some(value) = value else {
        return Ok(None);
    };
    if let RawBsonRef::String("$$ROOT" | "$$CURRENT") = value {
        return error(16409, "FieldPath::tail() called on single element path");
    }
    let expression = Expression::parse(value, context)?;
    match expression.as_constant() {
        Some(RawBsonRef::Array(_)) => {
            context.folding.failed(array_partition())?;
            Ok(None)
        }
        Some(_) => Ok(None),
        None => Ok(Some(expression)),
    }
}

fn parse_outputs<'a>(
    output: &RawDocument,
    order: Option<&'a RawDocument>,
    context: &'a Context,
) -> Result<Vec<Output>, QueryError> {
    let direction = |value: RawBsonRef<'_>| {
        banyan_document::Number::from_raw(value).map_or(1, |n| n.to_i64_saturating())
    };
    let fields = |order: &'a RawDocument| {
        let fields = order.iter().map_while(Result::ok);
        fields.map(|(name, value)| (name.as_str(), direction(value)))
    };
    let around = Around {
        order: order.map(|order| fields(order).collect()),
        context,
    };
    let mut outputs = Vec::new();
    let mut known = BTreeSet::new();
    for (path, spec) in output.iter().map_while(Result::ok) {
        context.budget.spend_part()?;
        let RawBsonRef::Document(spec) = spec else {
            return Err(failed(format!("The field '{path}' must be an object")));
        };
        if meets(path.as_str(), &known) {
            return Err(conflicting());
        }
        known.insert(path.as_str());
        outputs.push(Output {
            path: path.as_str().into(),
            function: table::parse(spec, &around)?,
        });
    }
    Ok(outputs)
}

/// Whether one of the paths is this one, or leads to it or on from it.
fn meets(path: &str, known: &BTreeSet<&str>) -> bool {
    let above = |(at, _)| known.contains(&path[..at]);
    let below = format!("{path}.");
    let next = known.range(below.as_str()..).next();
    known.contains(path)
        || path.match_indices('.').any(above)
        || next.is_some_and(|next| next.starts_with(&below))
}

fn conflicting() -> QueryError {
    QueryError::new(
        ErrorKind::Location(6307900),
        "$setWindowFields 'output' specification contains two conflicting paths",
    )
}

/// Sets each path to a variable, as `$addFields` does.
fn setter(output: &RawDocument, context: &Context) -> Result<Projector, QueryError> {
    let paths: Vec<_> = output.iter().flatten().map(|(path, _)| path).collect();
    let names: Vec<_> = (0..paths.len()).map(|index| format!("f{index}")).collect();
    let mut writer = DocumentWriter::new();
    for (path, name) in paths.iter().zip(&names) {
        writer.append_str(path.as_str(), &format!("$${name}"));
    }
    let context = Context {
        scope: context.scope.with(names.iter().map(String::as_str)),
        ..context.clone()
    };
    let set = writer.finish();
    Projector::parse_add_fields(&set, &context).map_err(|failed| match failed.kind {
        ErrorKind::Location(40176) => conflicting(),
        _ => failed,
    })
}

impl Stage for SetWindowFields {
    fn name(&self) -> &'static str {
        "$setWindowFields"
    }

    fn serialize(&self, out: &mut DocumentWriter) {
        out.append_doc(self.name(), &self.source);
    }

    fn reads(&self, paths: &mut BTreeSet<String>) -> Reads {
        let mut bounded = self.partition.iter().all(|by| by.dependencies(paths));
        self.order
            .iter()
            .for_each(|order| order.dependencies(paths));
        for output in &self.outputs {
            bounded &= output.function.dependencies(paths);
        }
        match bounded {
            true => Reads::AndPasses,
            false => Reads::Everything,
        }
    }

    fn changes(&self) -> Changes {
        Changes::at(self.outputs.iter().map(|output| &*output.path))
    }

    fn run(self: Arc<Self>, start: &Start<'_>) -> Result<Box<dyn StageRun>, QueryError> {
        self.outputs
            .iter()
            .try_for_each(|output| output.function.check())?;
        Ok(Box::new(WindowRun {
            pruner: Pruner::new(&self.kept(&start.needed)),
            needed: Needed::of(&start.needed),
            partition: self.partition.as_ref().map(|by| by.bind(start.variables)),
            stage: self,
            variables: start.variables.clone(),
            input: Input::Reading(Sorter::new(None, start.budget)),
            ahead: None,
            holding: start.budget.holding(&consumer::WINDOW),
            done: Done::nothing(start.budget),
            spills: 0,
            peak: 0,
            arena: Arena::new(),
        }))
    }
}

impl SetWindowFields {
    /// What of a document is looked at once it has its place in the order.
    fn kept(&self, needed: &Dependencies) -> Dependencies {
        let Dependencies::Paths(needed) = needed else {
            return Dependencies::Whole;
        };
        let mut paths = needed.clone();
        let mut outputs = self.outputs.iter();
        if !outputs.all(|output| output.function.dependencies(&mut paths)) {
            return Dependencies::Whole;
        }
        // Ranks and windows of values look at it again.
        if let Some(order) = &self.order {
            order.dependencies(&mut paths);
        }
        Dependencies::Paths(paths)
    }
}

struct WindowRun {
    stage: Arc<SetWindowFields>,
    pruner: Pruner,
    /// What the stages behind it look at.
    needed: Needed,
    partition: Option<Expression>,
    /// The variables of the `$lookup` stages around.
    variables: Variables,
    input: Input,
    /// The first document of the next partition, with its key.
    ahead: Option<(Vec<u8>, Placed)>,
    /// What the functions hold of a partition.
    holding: Holding,
    done: Done,
    spills: u64,
    /// The most that was held of a partition.
    peak: usize,
    arena: Arena,
}

enum Input {
    Reading(Sorter<Placed>),
    Sorted(Sorted<Placed>),
}

/// A partition with the values of the functions, while its documents are handed on.
struct Done {
    documents: List,
    cursor: Cursor,
    /// Of each function, for each document.
    values: Vec<Values>,
    at: usize,
}

impl Done {
    fn nothing(budget: &Budget) -> Done {
        Done::of(List::new(&consumer::PARTITION, budget), Vec::new())
    }

    fn of(documents: List, values: Vec<Values>) -> Done {
        Done {
            documents,
            cursor: Cursor::default(),
            values,
            at: 0,
        }
    }
}

impl StageRun for WindowRun {
    fn push(&mut self, document: &RawDocument, next: &mut Next<'_>) -> Result<Flow, QueryError> {
        self.arena.reset();
        let Input::Reading(sorter) = &mut self.input else {
            return Ok(Flow::Stop);
        };
        let mut order = Vec::new();
        let mut refused = false;
        if let Some(partition) = &self.partition {
            let value = partition.evaluate(document, &self.arena)?;
            let value = value.unwrap_or(RawBsonRef::Null);
            next.budget.spend_bytes(byte_len(value))?;
            refused = matches!(value, RawBsonRef::Array(_));
            match refused {
                true => write_array_key(partition, document, value, &mut order)?,
                false => key::encode_collated(value, partition.collator(), &mut order),
            }
        }
        let partition = if refused {
            Placed::REFUSED
        } else {
            order.len()
        };
        if let Some(key) = &self.stage.order {
            key.pattern.write_key(document, &mut order)?;
        }
        let bytes = document.as_bytes().len() + size_of::<Placed>();
        sorter.push_with(&order, bytes, |out| {
            Placed::put_partition(partition, out);
            self.pruner.prune_into(document, out);
        })?;
        Ok(Flow::Continue)
    }

    fn drain(&mut self, next: &mut Next<'_>) -> Result<Drained, QueryError> {
        self.sort(next.budget)?;
        let done = &mut self.done;
        let Some(document) = done.documents.next(&mut done.cursor)? else {
            let more = self.evaluate_partition(next)?;
            return Ok(if more { Drained::More } else { Drained::Done });
        };
        self.arena.reset();
        let values = done.values.iter().map(|values| {
            let value = values.get(done.at).and_then(Option::as_ref);
            value.map(RawBson::as_raw_bson_ref)
        });
        let variables = self.variables.with(values);
        done.at += 1;
        let mut writer = DocumentWriter::with_capacity(document.as_bytes().len() + 16);
        let setter = &self.stage.setter;
        setter.apply(document, &self.arena, &variables, &self.needed, &mut writer)?;
        match next.push(&writer.finish())? {
            Flow::Continue | Flow::Full => Ok(Drained::More),
            Flow::Stop => Ok(Drained::Done),
        }
    }

    fn explain(&self, out: &mut DocumentWriter) {
        append_count(out, "maxTotalMemoryUsageBytes", self.peak as u64);
        out.append_bool("usedDisk", self.spills > 0);
        append_count(out, "spills", self.spills);
    }
}

impl WindowRun {
    /// Sorts what has come, once.
    fn sort(&mut self, budget: &Budget) -> Result<(), QueryError> {
        let Input::Reading(sorter) = &mut self.input else {
            return Ok(());
        };
        let sorter = std::mem::replace(sorter, Sorter::new(None, budget));
        self.spills += sorter.stats().spills;
        let mut sorted = sorter.finish()?;
        self.ahead = sorted.next_entry()?;
        self.input = Input::Sorted(sorted);
        Ok(())
    }

    /// Evaluates the functions over the next partition; false if there is none.
    fn evaluate_partition(&mut self, next: &mut Next<'_>) -> Result<bool, QueryError> {
        self.done = Done::nothing(next.budget);
        self.holding.set(0)?;
        let Input::Sorted(sorted) = &mut self.input else {
            return Ok(false);
        };
        let Some((key, first)) = self.ahead.take() else {
            return Ok(false);
        };
        if first.is_refused() {
            return Err(array_partition());
        }
        let mut documents = List::new(&consumer::PARTITION, next.budget);
        let (partition, mut refused) = (&key[..first.partition], false);
        documents.push(first.document)?;
        while let Some((key, placed)) = sorted.next_entry()? {
            next.budget.spend(1)?;
            if placed.is_refused() {
                refused = true;
                break;
            }
            if key[..placed.partition] != *partition {
                self.ahead = Some((key, placed));
                break;
            }
            documents.push(placed.document)?;
        }
        let partition = Partition {
            documents: &documents,
            variables: &self.variables,
            budget: next.budget,
        };
        let mut values = Vec::with_capacity(self.stage.outputs.len());
        for output in &self.stage.outputs {
            let kept = self.holding.bytes();
            let results = output.function.evaluate(&partition, &mut self.holding)?;
            // What the function worked with is gone.
            let bytes: usize = results.iter().map(|value| held(value.as_ref())).sum();
            self.holding.set(kept + bytes)?;
            values.push(results);
        }
        // The documents before it have been looked at when it comes.
        if refused {
            return Err(array_partition());
        }
        self.spills += documents.spills();
        self.peak = self.peak.max(documents.peak() + self.holding.peak());
        self.done = Done::of(documents, values);
        Ok(true)
    }
}
