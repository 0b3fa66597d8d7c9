//! $group, and $count and $sortByCount, which are short for it

mod evaluated;
mod scripted;

use std::any::Any;
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

use bson::{RawBson, RawBsonRef, RawDocument, RawDocumentBuf};
use foldhash::fast::RandomState;
use indexmap::IndexMap;
use indexmap::map::Entry as MapEntry;

use banyan_document::{DocumentWriter, Number, elements, key};

use self::evaluated::Evaluated;
use super::accumulator::{self, Accumulator, Kind, State};
use super::ahead::Ahead;
use super::group_key::Key;
use super::sort;
use super::stage::{Division, Reads, Stage};
use super::stage_run::{Drained, Flow, Next, StageRun, Start, append_count};
use crate::budget::Budget;
use crate::context::Context;
use crate::error::QueryError;
use crate::expression::value::{check_depth, error};
use crate::expression::{Arena, Expression, Root, byte_len};
use crate::memory::{self, Holding, consumer};
use crate::merge_sort;
use crate::spill::{Merge, Runs, damaged};
use crate::variables::Variables;

/// Groups handed on between two looks at the results.
const GROUPS_PER_DRAIN: usize = 64;
/// What a group costs beside its key and its states' own memory.
const GROUP_BYTES: usize = 96;

#[derive(Debug)]
pub struct Group {
    id: Key,
    accumulators: Arc<[Accumulator]>,
    mode: Mode,
    source: RawDocumentBuf,
}

/// Which document of a group is enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Representative {
    Any,
    First,
    Last,
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
                id = Some(Key::parse(value, context)?);
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
impl Group {
    /// The top-level field that it groups by, if that is all there is to `_id`.
    pub(super) fn key_field(&self) -> Option<&str> {
        let field = match self.id.expression.source() {
            RawBsonRef::String(path) => path.strip_prefix('$')?,
            _ => return None,
        };
        let plain = self.mode == Mode::Complete && !field.starts_with('$') && !field.contains('.');
        plain.then_some(field)
    }

    /// Whether it puts all documents into one group and does nothing but count them.
    pub fn counts(&self) -> bool {
        let is_count = |accumulator: &Accumulator| {
            let argument = accumulator.argument.as_constant();
            matches!(accumulator.kind, Kind::Sum) && argument == Some(RawBsonRef::Int32(1))
        };
        self.mode != Mode::Merge
            && self.id.expression.as_constant().is_some()
            && self.accumulators.iter().all(is_count)
    }

    /// A group that makes of one document what this one, which counts, makes of `count` documents.
    pub fn of_count(&self, count: u64) -> Result<Arc<dyn Stage>, QueryError> {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        let count = Number::narrow(count).to_raw();
        let argument = Expression::parse(count, &Context::default())?;
        let accumulator = |accumulator: &Accumulator| Accumulator {
            field: accumulator.field.clone(),
            operator: accumulator.operator,
            kind: Kind::Sum,
            argument: argument.clone(),
        };
        Ok(Arc::new(Group {
            accumulators: self.accumulators.iter().map(accumulator).collect(),
            ..self.with_mode(self.mode)
        }))
    }

    /// The path whose values it groups by, where it needs no more than one document of each group:
    /// any, the first or the last.
    pub fn representative(&self) -> Option<(String, Representative)> {
        let path = self
            .id
            .expression
            .as_field_path()
            .filter(|_| self.mode != Mode::Merge)?;
        let mut kinds = self
            .accumulators
            .iter()
            .map(|accumulator| &accumulator.kind);
        let representative = match self.accumulators.first().map(|first| &first.kind) {
            None => Representative::Any,
            Some(Kind::First) => Representative::First,
            Some(Kind::Last) => Representative::Last,
            Some(_) => return None,
        };
        let is_alike = |kind: &Kind| match representative {
            Representative::Any => true,
            Representative::First => matches!(kind, Kind::First),
            Representative::Last => matches!(kind, Kind::Last),
        };
        kinds
            .all(is_alike)
            .then(|| (path.to_string(), representative))
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
        let mut bounded = self.mode != Mode::Merge && self.id.expression.dependencies(paths);
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

    fn calls_script(&self) -> bool {
        let mut arguments = self.accumulators.iter().map(|a| &a.argument);
        self.mode != Mode::Merge
            && (self.id.expression.calls_script() || arguments.any(Expression::calls_script))
    }

    fn gathers(&self) -> bool {
        let is_exact = |accumulator: &Accumulator| accumulator.kind.is_exact_in_parts();
        self.mode != Mode::Merge && self.accumulators.iter().all(is_exact)
    }

    fn run(self: Arc<Self>, start: &Start<'_>) -> Result<Box<dyn StageRun>, QueryError> {
        let looks_ahead = start.looks_ahead() && self.calls_script();
        Ok(Ahead::of(GroupRun::new(self, start), looks_ahead))
    }
}

/// By the order-preserving encoding of `_id`: equal values share it whatever their type.
type Groups = IndexMap<Box<[u8]>, Entry, RandomState>;

struct Entry {
    id: RawBson,
    states: Box<[State]>,
}

impl Entry {
    fn take(&mut self) -> Entry {
        Entry {
            id: std::mem::replace(&mut self.id, RawBson::Null),
            states: std::mem::take(&mut self.states),
        }
    }
}

impl Group {
    /// What a group has come to, as documents that come out in this mode are.
    fn result(
        &self,
        entry: &mut Entry,
        mode: Mode,
        budget: &Budget,
    ) -> Result<RawDocumentBuf, QueryError> {
        let mut writer = DocumentWriter::new();
        writer.append("_id", entry.id.as_raw_bson_ref());
        for (accumulator, state) in self.accumulators.iter().zip(&mut entry.states) {
            let value = match mode {
                Mode::Partial => state.partial(&accumulator.kind, budget)?,
                Mode::Complete | Mode::Merge => state.finish(&accumulator.kind, budget)?,
            };
            budget.spend_bytes(byte_len(value.as_raw_bson_ref()))?;
            check_depth(value.as_raw_bson_ref())?;
            writer.append(&accumulator.field, value.as_raw_bson_ref());
        }
        Ok(writer.finish())
    }

    /// Adds a partial result to the states; how much they have grown.
    fn merge(
        &self,
        states: &mut [State],
        partial: &RawDocument,
        budget: &Budget,
    ) -> Result<isize, QueryError> {
        let mut grown = 0;
        let mut values = elements(partial).skip(1);
        for (accumulator, state) in self.accumulators.iter().zip(states) {
            let value = values.next().filter(|v| v.name() == &*accumulator.field);
            let Some(value) = value else {
                let field = &accumulator.field;
                return error(9961601, format!("there is no partial result for '{field}'"));
            };
            let before = state.memory_bytes();
            state.merge(&accumulator.kind, value.value(), budget)?;
            let after = state.memory_bytes();
            accumulator.check(after, budget.memory())?;
            grown += after as isize - before as isize;
        }
        Ok(grown)
    }
}

/// What the accumulators are given of a document.
struct Given<'g> {
    accumulators: &'g [Accumulator],
    arguments: &'g [Expression],
    /// What those have come to, where that is known.
    known: Option<&'g Evaluated>,
}

pub(super) struct GroupRun {
    group: Arc<Group>,
    id: Expression,
    /// Those of the `$lookup` stages around.
    variables: Variables,
    /// What each accumulator is given.
    arguments: Vec<Expression>,
    /// How many fields of a document all of them read.
    reads: u32,
    groups: Groups,
    arena: Arena,
    key: Vec<u8>,
    holding: Holding,
    /// What did not fit.
    runs: Option<Runs>,
    merging: Option<Merging>,
    drained: usize,
    spills: u64,
    /// What the states of each accumulator hold beyond themselves, and with themselves at most.
    grown: Box<[usize]>,
    peaks: Box<[usize]>,
    output_bytes: u64,
}

impl GroupRun {
    pub(super) fn new(group: Arc<Group>, start: &Start<'_>) -> GroupRun {
        let arguments = group.accumulators.iter().map(|a| &a.argument);
        let read = arguments.clone().map(Expression::reads);
        let zeros = || vec![0; group.accumulators.len()].into();
        GroupRun {
            reads: read.fold(group.id.expression.reads(), u32::saturating_add),
            id: group.id.expression.bind(start.variables),
            arguments: arguments.map(|a| a.bind(start.variables)).collect(),
            variables: start.variables.clone(),
            grown: zeros(),
            peaks: zeros(),
            group,
            groups: Groups::default(),
            arena: Arena::new(),
            key: Vec::new(),
            holding: start.budget.holding(&consumer::GROUP),
            runs: None,
            merging: None,
            drained: 0,
            spills: 0,
            output_bytes: 0,
        }
    }

    /// Adds a document to the states of its group.
    fn accumulate(
        given: &Given<'_>,
        states: &mut [State],
        root: Root<'_>,
        sums: &mut [usize],
        budget: &Budget,
    ) -> Result<isize, QueryError> {
        let document = root.document();
        let mut grown = 0;
        let accumulators = given.accumulators.iter().zip(given.arguments);
        let states = states.iter_mut().zip(sums);
        for (at, ((accumulator, argument), (state, sum))) in accumulators.zip(states).enumerate() {
            if !state.needs_input() {
                continue;
            }
            let value = match given.known {
                Some(known) => known.argument(at)?,
                None => argument.evaluate_at(root)?,
            };
            if !state.grows() {
                state.add(&accumulator.kind, value, document, budget)?;
                continue;
            }
            let before = state.memory_bytes();
            state.add(&accumulator.kind, value, document, budget)?;
            let after = state.memory_bytes();
            if after != before {
                accumulator.check(after, budget.memory())?;
                *sum = sum.saturating_add_signed(after as isize - before as isize);
                grown += after as isize - before as isize;
            }
        }
        Ok(grown)
    }

    /// Writes the groups to a run.
    #[cold]
    fn spill(&mut self, budget: &Budget) -> Result<(), QueryError> {
        if !budget.may_spill() {
            return Err(self.holding.exceeded());
        }
        self.note_peaks();
        self.grown.fill(0);
        let runs = self.runs.get_or_insert_with(|| Runs::new(budget, None));
        write_groups(&self.group, &mut self.groups, runs, budget)?;
        self.groups.clear();
        self.spills += 1;
        self.holding.set(0)
    }

    fn note_peaks(&mut self) {
        let states = self.groups.len() * size_of::<State>();
        for (peak, grown) in self.peaks.iter_mut().zip(&self.grown) {
            *peak = (*peak).max(states + grown);
        }
    }

    /// The next group that is to be handed on.
    fn next_group(&mut self, budget: &Budget) -> Result<Option<Entry>, QueryError> {
        if let Some(runs) = self.runs.take() {
            self.merging = Some(Merging::new(runs, &self.groups, &self.variables, budget)?);
        }
        if let Some(merging) = &mut self.merging {
            return merging.next(&self.group, &mut self.groups, budget);
        }
        let entry = self.groups.get_index_mut(self.drained);
        self.drained += 1;
        Ok(entry.map(|(_, entry)| entry.take()))
    }
}

impl GroupRun {
    /// Adds the groups of later documents.
    fn absorb_groups(&mut self, mut later: GroupRun, budget: &Budget) -> Result<(), QueryError> {
        self.spills += later.spills;
        for (peak, later) in self.peaks.iter_mut().zip(&later.peaks) {
            *peak = (*peak).max(*later);
        }
        if later.runs.is_none() {
            later.holding.set(0)?;
            for (key, entry) in std::mem::take(&mut later.groups) {
                self.absorb_group(key, entry, budget)?;
            }
            return Ok(());
        }
        while let Some(entry) = later.next_group(budget)? {
            let mut key = Vec::new();
            key::encode_collated(entry.id.as_raw_bson_ref(), self.id.collator(), &mut key);
            self.absorb_group(key.into(), entry, budget)?;
        }
        Ok(())
    }

    fn absorb_group(
        &mut self,
        key: Box<[u8]>,
        later: Entry,
        budget: &Budget,
    ) -> Result<(), QueryError> {
        budget.spend(1)?;
        let memory = |state: &State| state.memory_bytes() as isize;
        let mut grown = 0;
        match self.groups.entry(key) {
            MapEntry::Vacant(vacant) => {
                let states_bytes = later.states.len() * size_of::<State>();
                grown += (2 * vacant.key().len() + GROUP_BYTES + states_bytes) as isize;
                for (state, sum) in later.states.iter().zip(&mut self.grown) {
                    grown += memory(state);
                    *sum += state.memory_bytes();
                }
                vacant.insert(later);
            }
            MapEntry::Occupied(mut known) => {
                let accumulators = self.group.accumulators.iter().zip(&mut self.grown);
                let states = known.get_mut().states.iter_mut().zip(later.states);
                for ((accumulator, sum), (state, later)) in accumulators.zip(states) {
                    let before = memory(state);
                    state.absorb(&accumulator.kind, later, budget)?;
                    accumulator.check(state.memory_bytes(), budget.memory())?;
                    let more = memory(state) - before;
                    *sum = sum.saturating_add_signed(more);
                    grown += more;
                }
            }
        }
        let bytes = self.holding.bytes().saturating_add_signed(grown);
        match self.holding.fits(bytes) {
            true => Ok(()),
            false => self.spill(budget),
        }
    }
}

impl StageRun for GroupRun {
    fn absorb(&mut self, later: Box<dyn StageRun>, budget: &Budget) -> Result<(), QueryError> {
        let later: Box<dyn Any> = later;
        match later.downcast::<GroupRun>() {
            Ok(later) if self.groups.is_empty() && self.runs.is_none() => {
                *self = *later;
                Ok(())
            }
            Ok(later) => self.absorb_groups(*later, budget),
            Err(_) => Ok(()),
        }
    }

    fn push(&mut self, document: &RawDocument, next: &mut Next<'_>) -> Result<Flow, QueryError> {
        self.add(document, None, next.budget)?;
        Ok(Flow::Continue)
    }

    fn drain(&mut self, next: &mut Next<'_>) -> Result<Drained, QueryError> {
        if self.drained == 0 {
            self.note_peaks();
        }
        for _ in 0..GROUPS_PER_DRAIN {
            let Some(mut entry) = self.next_group(next.budget)? else {
                self.groups = Groups::default();
                self.merging = None;
                return Ok(Drained::Done);
            };
            let result = self
                .group
                .result(&mut entry, self.group.mode, next.budget)?;
            self.output_bytes += result.as_bytes().len() as u64;
            match next.push(&result)? {
                Flow::Continue => {}
                Flow::Full => return Ok(Drained::More),
                Flow::Stop => return Ok(Drained::Done),
            }
        }
        Ok(Drained::More)
    }

    fn explain(&self, out: &mut DocumentWriter) {
        out.begin_document("maxAccumulatorMemoryUsageBytes");
        for (accumulator, peak) in self.group.accumulators.iter().zip(&self.peaks) {
            append_count(out, &accumulator.field, *peak as u64);
        }
        out.end();
        append_count(out, "totalOutputDataSizeBytes", self.output_bytes);
        out.append_bool("usedDisk", self.spills > 0);
        append_count(out, "spills", self.spills);
    }
}

impl GroupRun {
    /// Takes a document; `known` is what its expressions have come to, where that has been worked out.
    fn add(
        &mut self,
        document: &RawDocument,
        known: Option<&Evaluated>,
        budget: &Budget,
    ) -> Result<(), QueryError> {
        self.arena.reset();
        let root = self.arena.root(document).expecting(self.reads);
        let group = &*self.group;
        let id = match (group.mode, known) {
            (Mode::Merge, _) => banyan_document::field(document, "_id"),
            (Mode::Complete | Mode::Partial, Some(known)) => known.id(),
            (Mode::Complete | Mode::Partial, None) => group.id.shown(self.id.evaluate_at(root)?),
        };
        let id = id.unwrap_or(RawBsonRef::Null);
        // It may be larger than the document.
        budget.spend_bytes(byte_len(id))?;
        self.key.clear();
        key::encode_collated(id, self.id.collator(), &mut self.key);
        let mut grown = 0;
        let index = match self.groups.get_index_of(&self.key[..]) {
            Some(index) => index,
            None => {
                let of = accumulator::Group::new(id, &self.variables);
                let states = group.accumulators.iter().map(|a| a.start(of));
                let states = states.collect::<Result<_, _>>()?;
                let states_bytes = group.accumulators.len() * size_of::<State>();
                grown = (2 * self.key.len() + GROUP_BYTES + states_bytes) as isize;
                check_depth(id)?;
                let entry = Entry {
                    id: id.into(),
                    states,
                };
                self.groups.insert_full(self.key.as_slice().into(), entry).0
            }
        };
        grown += match (group.mode, self.groups.get_index_mut(index)) {
            (Mode::Merge, Some((_, entry))) => group.merge(&mut entry.states, document, budget)?,
            (_, Some((_, entry))) => {
                let given = Given {
                    accumulators: &group.accumulators,
                    arguments: &self.arguments,
                    known,
                };
                let (states, sums) = (&mut entry.states, &mut self.grown);
                Self::accumulate(&given, states, root, sums, budget)?
            }
            (_, None) => 0,
        };
        if grown != 0 {
            let bytes = self.holding.bytes().saturating_add_signed(grown);
            // A group alone would have to be put together again: its accumulators have limits.
            let alone = self.groups.len() == 1 && budget.may_spill();
            if !self.holding.fits(bytes) && !alone {
                self.spill(budget)?;
            }
        }
        Ok(())
    }
}

/// Writes all groups to a run: in the order of their keys, with their partial states.
fn write_groups(
    group: &Group,
    groups: &mut Groups,
    runs: &mut Runs,
    budget: &Budget,
) -> Result<(), QueryError> {
    let before = runs.written;
    let order = sorted(groups, budget)?;
    runs.write(|writer| {
        for index in order {
            let Some((key, entry)) = groups.get_index_mut(index) else {
                continue;
            };
            let partial = group.result(entry, Mode::Partial, budget)?;
            budget.spend_bytes(partial.as_bytes().len())?;
            writer.push(key, |out| out.extend_from_slice(partial.as_bytes()))?;
        }
        Ok(())
    })?;
    let (figures, after) = (&budget.memory().figures, runs.written);
    memory::count(&figures.group_spills, 1);
    memory::count(&figures.groups_spilled, after.records - before.records);
    memory::count(&figures.group_bytes_spilled, after.bytes - before.bytes);
    Ok(())
}

/// The places of the groups in the order of their keys.
fn sorted(groups: &Groups, budget: &Budget) -> Result<Vec<usize>, QueryError> {
    let key = |index: &usize| groups.get_index(*index).map(|(key, _)| key);
    let compare = |a: &usize, b: &usize| key(a).cmp(&key(b));
    let weight = |index: &usize| key(index).map_or(0, |key| key.len());
    merge_sort::sort((0..groups.len()).collect(), compare, weight, budget)
}

/// All groups, those on disk and those left in memory, in the order of their keys.
struct Merging {
    disk: Merge,
    /// Those of the `$lookup` stages around.
    variables: Variables,
    memory: std::iter::Peekable<std::vec::IntoIter<usize>>,
    key: Vec<u8>,
}

impl Merging {
    fn new(
        runs: Runs,
        groups: &Groups,
        variables: &Variables,
        budget: &Budget,
    ) -> Result<Merging, QueryError> {
        Ok(Merging {
            disk: runs.merge()?,
            variables: variables.clone(),
            memory: sorted(groups, budget)?.into_iter().peekable(),
            key: Vec::new(),
        })
    }

    /// The next group, its parts put together in the order in which they were made.
    fn next(
        &mut self,
        group: &Group,
        groups: &mut Groups,
        budget: &Budget,
    ) -> Result<Option<Entry>, QueryError> {
        let held = self
            .memory
            .peek()
            .and_then(|index| groups.get_index(*index));
        let (held, top) = (held.map(|(key, _)| &key[..]), self.disk.top());
        let (on_disk, in_memory) = match (top, held) {
            (None, None) => return Ok(None),
            (None, Some(_)) => (false, true),
            (Some(_), None) => (true, false),
            (Some((key, _)), Some(held)) => match key.cmp(held) {
                Ordering::Less => (true, false),
                Ordering::Equal => (true, true),
                Ordering::Greater => (false, true),
            },
        };
        let mut merged = match (on_disk, top) {
            (true, Some((key, _))) => {
                self.key.clear();
                self.key.extend_from_slice(key);
                Some(self.read_disk(group, budget)?)
            }
            _ => None,
        };
        if in_memory
            && let Some(index) = self.memory.next()
            && let Some((_, entry)) = groups.get_index_mut(index)
        {
            match &mut merged {
                None => merged = Some(entry.take()),
                Some(merged) => {
                    let partial = group.result(entry, Mode::Partial, budget)?;
                    group.merge(&mut merged.states, &partial, budget)?;
                    entry.take();
                }
            }
        }
        Ok(merged)
    }

    /// What all runs have of the group that comes first.
    fn read_disk(&mut self, group: &Group, budget: &Budget) -> Result<Entry, QueryError> {
        let mut id: Option<RawBson> = None;
        let mut entry = Entry {
            id: RawBson::Null,
            states: Box::default(),
        };
        while let Some((key, value)) = self.disk.top()
            && key == self.key
        {
            budget.spend_bytes(key.len() + value.len())?;
            let partial = RawDocument::from_bytes(value).map_err(|_| damaged())?;
            // Of equal values the one that came first is shown.
            if id.is_none() {
                let first = elements(partial)
                    .next()
                    .map_or(RawBsonRef::Null, |id| id.value());
                let of = accumulator::Group::new(first, &self.variables);
                let states = group.accumulators.iter().map(|a| a.start(of));
                entry.states = states.collect::<Result<_, _>>()?;
                id = Some(first.into());
            }
            group.merge(&mut entry.states, partial, budget)?;
            self.disk.advance()?;
        }
        entry.id = id.unwrap_or(RawBson::Null);
        Ok(entry)
    }
}
