//! $group, and $count and $sortByCount, which are short for it

use std::any::Any;
use std::collections::BTreeSet;
use std::sync::Arc;

use bson::{RawBson, RawBsonRef, RawDocument, RawDocumentBuf};
use foldhash::fast::RandomState;
use indexmap::IndexMap;
use indexmap::map::Entry as MapEntry;

use banyan_document::{DocumentWriter, elements, key};

use super::accumulator::{self, Accumulator, State};
use super::execute::{Drained, Flow, Next, Start, Step};
use super::sort;
use super::stage::{Division, Reads, Stage};
use crate::budget::{Budget, Holding, STAGE_BYTES_MAX};
use crate::context::Context;
use crate::error::{ErrorKind, QueryError};
use crate::expression::value::{check_depth, error};
use crate::expression::{Arena, Expression, Root, byte_len, is_operator};

/// Groups handed on between two looks at the results.
const GROUPS_PER_DRAIN: usize = 64;
/// What a group costs beside its key and its states' own memory.
const GROUP_BYTES: usize = 96;

#[derive(Debug)]
pub struct Group {
    id: Expression,
    accumulators: Arc<[Accumulator]>,
    mode: Mode,
    source: RawDocumentBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Documents in, results out.
    Complete,
    /// On a shard: documents in, partial states out.
    Partial,
    /// On the router: partial states in, results out.
    Merge,
}

/// The marks that the router puts into the specification it sends, as MongoDB does.
const WILL_BE_MERGED: &str = "$willBeMerged";
const DOING_MERGE: &str = "$doingMerge";

pub(super) fn parse(
    value: RawBsonRef<'_>,
    context: &Context,
    out: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    let RawBsonRef::Document(spec) = value else {
        return error(15947, "a group's fields must be specified in an object");
    };
    let (mut id, mut accumulators, mut mode) = (None, Vec::new(), Mode::Complete);
    for (name, value) in spec.iter().map_while(Result::ok) {
        match (name.as_str(), value) {
            ("_id", value) => {
                if id.is_some() {
                    return error(15948, "a group's _id may only be specified once");
                }
                id = Some(parse_id(value, context)?);
            }
            (WILL_BE_MERGED, RawBsonRef::Boolean(true)) => mode = Mode::Partial,
            (DOING_MERGE, RawBsonRef::Boolean(true)) => mode = Mode::Merge,
            (name, value) => accumulators.push(accumulator::parse(name, value, context)?),
        }
    }
    let Some(id) = id else {
        return error(15955, "a group specification must include an _id");
    };
    let accumulators = accumulators.into();
    let source = without_marks(spec);
    out.push(Arc::new(Group {
        id,
        accumulators,
        mode,
        source,
    }));
    Ok(())
}

/// The specification as the user writes it.
fn without_marks(spec: &RawDocument) -> RawDocumentBuf {
    let mut writer = DocumentWriter::with_capacity(spec.as_bytes().len());
    for element in elements(spec) {
        if !matches!(element.name(), WILL_BE_MERGED | DOING_MERGE) {
            writer.append_element(&element);
        }
    }
    writer.finish()
}

fn parse_id(value: RawBsonRef<'_>, context: &Context) -> Result<Expression, QueryError> {
    if let RawBsonRef::Document(document) = value
        && let Some((name, _)) = document.iter().next().and_then(Result::ok)
        && name.as_str().starts_with('$')
        && !is_operator(name.as_str())
    {
        return Err(QueryError::new(
            ErrorKind::InvalidPipelineOperator,
            format!("Unrecognized expression '{name}'"),
        ));
    }
    Expression::parse(value, context)
}

/// `$count: "n"` counts everything and drops the group's `_id`.
pub(super) fn parse_count(
    value: RawBsonRef<'_>,
    context: &Context,
    out: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    let RawBsonRef::String(name) = value else {
        return error(40156, "the count field must be a non-empty string");
    };
    if name.is_empty() {
        return error(40157, "the count field must be a non-empty string");
    }
    if name.starts_with('$') {
        return error(40158, "the count field cannot be a $-prefixed path");
    }
    if name.contains('.') {
        return error(40160, "the count field cannot contain '.'");
    }
    if name == "_id" {
        return error(9039800, "the count field cannot be '_id'");
    }
    let mut writer = DocumentWriter::new();
    writer.append_null("_id");
    writer.begin_document(name);
    writer.append_i32("$sum", 1);
    writer.end();
    parse(RawBsonRef::Document(&writer.finish()), context, out)?;
    super::project::parse_project(
        RawBsonRef::Document(&bson::rawdoc! {"_id": 0}),
        context,
        out,
    )
}

/// `$sortByCount: x` groups by `x`, counts, and sorts the greatest count first.
pub(super) fn parse_sort_by_count(
    value: RawBsonRef<'_>,
    context: &Context,
    out: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    match value {
        RawBsonRef::String(path) if path.starts_with('$') => {}
        RawBsonRef::String(_) => {
            return error(
                40148,
                "the sortByCount field must be defined as a $-prefixed path or an expression \
                 inside an object",
            );
        }
        RawBsonRef::Document(document) => {
            let first = document.iter().next().and_then(Result::ok);
            if !first.is_some_and(|(name, _)| name.as_str().starts_with('$')) {
                return error(
                    40147,
                    "the sortByCount field must be defined as a $-prefixed path or an expression \
                     inside an object",
                );
            }
        }
        _ => {
            return error(
                40149,
                "the sortByCount field must be specified as a string or as an object",
            );
        }
    }
    let mut writer = DocumentWriter::new();
    writer.append("_id", value);
    writer.begin_document("count");
    writer.append_i32("$sum", 1);
    writer.end();
    parse(RawBsonRef::Document(&writer.finish()), context, out)?;
    sort::parse(
        RawBsonRef::Document(&bson::rawdoc! {"count": -1}),
        context,
        out,
    )
}

/// Fields of `$group` and `$facet` are plain names.
pub(super) fn check_field_name(name: &str) -> Result<(), QueryError> {
    if name.contains('.') {
        return error(40235, format!("The field name '{name}' cannot contain '.'"));
    }
    if name.starts_with('$') {
        return error(
            40236,
            format!("The field name '{name}' cannot be an operator name"),
        );
    }
    Ok(())
}

impl Group {
    /// The top-level field that it groups by, if that is all there is to `_id`.
    pub(super) fn key_field(&self) -> Option<&str> {
        let field = match self.id.source() {
            RawBsonRef::String(path) => path.strip_prefix('$')?,
            _ => return None,
        };
        let plain = self.mode == Mode::Complete && !field.starts_with('$') && !field.contains('.');
        plain.then_some(field)
    }

    fn with_mode(&self, mode: Mode) -> Group {
        Group {
            id: self.id.clone(),
            accumulators: self.accumulators.clone(),
            mode,
            source: self.source.clone(),
        }
    }
}

impl Stage for Group {
    fn name(&self) -> &'static str {
        "$group"
    }

    fn serialize(&self, out: &mut DocumentWriter) {
        out.begin_document(self.name());
        out.append_all(&self.source);
        match self.mode {
            Mode::Complete => {}
            Mode::Partial => out.append_bool(WILL_BE_MERGED, true),
            Mode::Merge => out.append_bool(DOING_MERGE, true),
        }
        out.end();
    }

    fn reads(&self, paths: &mut BTreeSet<String>) -> Reads {
        // A merging group reads partial states, not documents.
        let mut bounded = self.mode != Mode::Merge && self.id.dependencies(paths);
        for accumulator in self.accumulators.iter() {
            bounded &= accumulator.argument.dependencies(paths);
            bounded &= accumulator.kind.dependencies(paths);
        }
        match bounded {
            true => Reads::Only,
            false => Reads::Everything,
        }
    }

    /// The shards hand over partial states, which the router puts together.
    fn split(&self) -> Division {
        Division::Both {
            shards: vec![Arc::new(self.with_mode(Mode::Partial))],
            order: None,
            router: vec![Arc::new(self.with_mode(Mode::Merge))],
        }
    }

    /// The deviations of parts do not add up to exactly that of the whole.
    fn gathers(&self) -> bool {
        let is_exact = |accumulator: &Accumulator| !accumulator.kind.is_deviation();
        self.mode != Mode::Merge && self.accumulators.iter().all(is_exact)
    }

    fn step(self: Arc<Self>, start: &Start<'_>) -> Result<Box<dyn Step>, QueryError> {
        Ok(Box::new(GroupStep::new(self, start)))
    }
}

struct Entry {
    id: RawBson,
    states: Box<[State]>,
}

pub(super) struct GroupStep {
    group: Arc<Group>,
    id: Expression,
    /// What each accumulator is given.
    arguments: Vec<Expression>,
    /// How many fields of a document all of them read.
    reads: u32,
    /// By the order-preserving encoding of `_id`: equal values share it whatever their type.
    groups: IndexMap<Box<[u8]>, Entry, RandomState>,
    arena: Arena,
    key: Vec<u8>,
    holding: Holding,
    drained: usize,
}

impl GroupStep {
    pub(super) fn new(group: Arc<Group>, start: &Start<'_>) -> GroupStep {
        let arguments = group.accumulators.iter().map(|a| &a.argument);
        let read = arguments.clone().map(Expression::reads);
        GroupStep {
            reads: read.fold(group.id.reads(), u32::saturating_add),
            id: group.id.bind(start.variables),
            arguments: arguments.map(|a| a.bind(start.variables)).collect(),
            group,
            groups: IndexMap::default(),
            arena: Arena::new(),
            key: Vec::new(),
            holding: start.budget.holding("$group"),
            drained: 0,
        }
    }

    /// Adds a document to the states of its group.
    fn accumulate(
        accumulators: &[Accumulator],
        arguments: &[Expression],
        states: &mut [State],
        root: Root<'_>,
        budget: &Budget,
    ) -> Result<isize, QueryError> {
        let document = root.document();
        let mut grown = 0;
        for ((accumulator, argument), state) in accumulators.iter().zip(arguments).zip(states) {
            let value = argument.evaluate_at(root)?;
            if !state.grows() {
                state.add(&accumulator.kind, value, document, budget)?;
                continue;
            }
            let before = state.memory_bytes();
            state.add(&accumulator.kind, value, document, budget)?;
            let after = state.memory_bytes();
            check_state(accumulator, after)?;
            grown += after as isize - before as isize;
        }
        Ok(grown)
    }

    fn merge(
        accumulators: &[Accumulator],
        states: &mut [State],
        partial: &RawDocument,
        budget: &Budget,
    ) -> Result<isize, QueryError> {
        let mut grown = 0;
        for (accumulator, state) in accumulators.iter().zip(states) {
            let Some(value) = banyan_document::field(partial, &accumulator.field) else {
                return error(
                    9961601,
                    format!("a shard sent no partial result for '{}'", accumulator.field),
                );
            };
            let before = state.memory_bytes();
            state.merge(&accumulator.kind, value, budget)?;
            let after = state.memory_bytes();
            check_state(accumulator, after)?;
            grown += after as isize - before as isize;
        }
        Ok(grown)
    }
}

/// A little less than a stage may hold, so that this is noticed first.
const STATE_BYTES_MAX: usize = STAGE_BYTES_MAX - 1024 * 1024;

/// An accumulator that holds too much by itself has an error of its own.
fn check_state(accumulator: &Accumulator, bytes: usize) -> Result<(), QueryError> {
    if bytes <= STATE_BYTES_MAX {
        return Ok(());
    }
    Err(QueryError::new(
        ErrorKind::ExceededMemoryLimit,
        format!(
            "the accumulator of '{}' used too much memory and cannot spill to disk. Memory limit: \
             {STATE_BYTES_MAX} bytes",
            accumulator.field
        ),
    ))
}

impl GroupStep {
    /// Adds the groups of later documents.
    fn absorb_groups(&mut self, later: GroupStep, budget: &Budget) -> Result<(), QueryError> {
        let later_bytes = later.holding.bytes();
        drop(later.holding);
        let mut bytes = self.holding.bytes() + later_bytes;
        for (key, entry) in later.groups {
            budget.spend(1)?;
            match self.groups.entry(key) {
                MapEntry::Vacant(vacant) => {
                    vacant.insert(entry);
                }
                MapEntry::Occupied(mut known) => {
                    let accumulators = self.group.accumulators.iter();
                    let states = known.get_mut().states.iter_mut();
                    for ((accumulator, state), later) in accumulators.zip(states).zip(entry.states)
                    {
                        let apart = state.memory_bytes() + later.memory_bytes();
                        state.absorb(&accumulator.kind, later, budget)?;
                        let together = state.memory_bytes();
                        check_state(accumulator, together)?;
                        bytes = (bytes + together).saturating_sub(apart);
                    }
                }
            }
        }
        self.holding.set(bytes)
    }
}

impl Step for GroupStep {
    fn absorb(&mut self, later: Box<dyn Step>, budget: &Budget) -> Result<(), QueryError> {
        let later: Box<dyn Any> = later;
        match later.downcast::<GroupStep>() {
            Ok(later) if self.groups.is_empty() => {
                *self = *later;
                Ok(())
            }
            Ok(later) => self.absorb_groups(*later, budget),
            Err(_) => Ok(()),
        }
    }

    fn push(&mut self, document: &RawDocument, next: &mut Next<'_>) -> Result<Flow, QueryError> {
        self.arena.reset();
        let root = self.arena.root(document).expecting(self.reads);
        let group = &*self.group;
        let id = match group.mode {
            Mode::Merge => banyan_document::field(document, "_id"),
            Mode::Complete | Mode::Partial => self.id.evaluate_at(root)?,
        };
        let id = id.unwrap_or(RawBsonRef::Null);
        // It may be larger than the document.
        next.budget.spend_bytes(byte_len(id))?;
        self.key.clear();
        key::encode_collated(id, self.id.collator(), &mut self.key);
        let index = match self.groups.get_index_of(&self.key[..]) {
            Some(index) => index,
            None => {
                let states = group.accumulators.iter().map(Accumulator::start).collect();
                let states_bytes = group.accumulators.len() * size_of::<State>();
                self.holding
                    .add(2 * self.key.len() + GROUP_BYTES + states_bytes)?;
                check_depth(id)?;
                let entry = Entry {
                    id: id.into(),
                    states,
                };
                self.groups.insert_full(self.key.as_slice().into(), entry).0
            }
        };
        let Some((_, entry)) = self.groups.get_index_mut(index) else {
            return Ok(Flow::Continue);
        };
        let (accumulators, states) = (&group.accumulators, &mut entry.states);
        let grown = match group.mode {
            Mode::Merge => Self::merge(accumulators, states, document, next.budget)?,
            Mode::Complete | Mode::Partial => {
                Self::accumulate(accumulators, &self.arguments, states, root, next.budget)?
            }
        };
        if grown != 0 {
            self.holding
                .set(self.holding.bytes().saturating_add_signed(grown))?;
        }
        Ok(Flow::Continue)
    }

    fn drain(&mut self, next: &mut Next<'_>) -> Result<Drained, QueryError> {
        for _ in 0..GROUPS_PER_DRAIN {
            let Some((_, entry)) = self.groups.get_index_mut(self.drained) else {
                self.groups = IndexMap::default();
                return Ok(Drained::Done);
            };
            self.drained += 1;
            let mut writer = DocumentWriter::new();
            writer.append("_id", entry.id.as_raw_bson_ref());
            for (accumulator, state) in self.group.accumulators.iter().zip(&mut entry.states) {
                let value = match self.group.mode {
                    Mode::Partial => state.partial(&accumulator.kind, next.budget)?,
                    Mode::Complete | Mode::Merge => state.finish(&accumulator.kind, next.budget)?,
                };
                next.budget.spend_bytes(byte_len(value.as_raw_bson_ref()))?;
                check_depth(value.as_raw_bson_ref())?;
                writer.append(&accumulator.field, value.as_raw_bson_ref());
            }
            entry.states = Box::default();
            match next.push(&writer.finish())? {
                Flow::Continue => {}
                Flow::Full => return Ok(Drained::More),
                Flow::Stop => return Ok(Drained::Done),
            }
        }
        Ok(Drained::More)
    }
}
