//! A `$group` at work.

use std::any::Any;
use std::sync::Arc;

use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use banyan_document::{DocumentWriter, first_value, key};

use super::evaluated::Evaluated;
use super::groups::{Entry, Groups, id_document_of};
use super::specification::{Group, Mode};
use super::spilled::{Merging, write_groups};
use crate::budget::Budget;
use crate::error::QueryError;
use crate::expression::value::check_depth;
use crate::expression::{Arena, Expression, Root, byte_len};
use crate::memory::{Holding, consumer};
use crate::pipeline::accumulator::{self, Accumulator, State};
use crate::pipeline::stage_run::{Drained, Flow, Next, StageRun, Start, append_count, not_alike};
use crate::spill::Runs;
use crate::variables::Variables;

/// Groups handed on between two looks at the results.
const GROUPS_PER_DRAIN: usize = 64;
/// What a group costs beside its key and its states' own memory.
const GROUP_BYTES: usize = 96;

/// What the accumulators are given of a document.
struct Given<'g> {
    accumulators: &'g [Accumulator],
    arguments: &'g [Expression],
    /// What those have come to, where that is known.
    known: Option<&'g Evaluated>,
}

pub(super) struct GroupRun {
    pub(super) group: Arc<Group>,
    pub(super) id: Expression,
    /// Those of the `$lookup` stages around.
    variables: Variables,
    /// What each accumulator is given.
    pub(super) arguments: Vec<Expression>,
    /// How many fields of a document all of them read.
    pub(super) reads: u32,
    groups: Groups,
    pub(super) arena: Arena,
    key: Vec<u8>,
    /// What a new group is made of.
    id_buffer: Vec<u8>,
    states: Vec<State>,
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
            groups: Groups::of_width(group.accumulators.len()),
            group,
            arena: Arena::new(),
            key: Vec::new(),
            id_buffer: Vec::new(),
            states: Vec::new(),
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

    /// From here on groups on disk and those in memory are brought together.
    fn begin_merging(&mut self, budget: &Budget) -> Result<(), QueryError> {
        if let Some(runs) = self.runs.take() {
            let merging = Merging::new(runs, &self.groups, &self.variables, budget)?;
            self.merging = Some(merging);
        }
        Ok(())
    }

    /// What the next group has come to, written over what is in a buffer.
    fn next_result(
        &mut self,
        buffer: Vec<u8>,
        budget: &Budget,
    ) -> Result<Option<RawDocumentBuf>, QueryError> {
        let mut merged = match &mut self.merging {
            Some(merging) => merging.next(&self.group, &mut self.groups, budget)?,
            None => None,
        };
        let parts = match &mut merged {
            Some(merged) => merged.parts_mut(),
            None if self.merging.is_none() && self.drained < self.groups.len() => {
                self.drained += 1;
                self.groups.parts_mut(self.drained - 1)
            }
            None => return Ok(None),
        };
        let result = self.group.result(parts, self.group.mode, buffer, budget)?;
        Ok(Some(result))
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
            return later.groups.each_group(|hash, key, id, states| {
                self.absorb_group((hash, key), id, states, budget)
            });
        }
        later.begin_merging(budget)?;
        let mut key = Vec::new();
        while let Some(merging) = &mut later.merging
            && let Some(Entry { id, states }) =
                merging.next(&later.group, &mut later.groups, budget)?
        {
            let shown = first_value(&id).unwrap_or(RawBsonRef::Null);
            key.clear();
            key::encode_collated(shown, self.id.collator(), &mut key);
            let hash = Groups::hash(&key);
            self.absorb_group((hash, &key), &id, &mut states.into_iter(), budget)?;
        }
        Ok(())
    }

    fn absorb_group(
        &mut self,
        (hash, key): (u64, &[u8]),
        id: &RawDocument,
        later: &mut dyn Iterator<Item = State>,
        budget: &Budget,
    ) -> Result<(), QueryError> {
        budget.spend(1)?;
        let mut grown = 0;
        match self.groups.find(hash, key) {
            None => {
                grown += self.bytes_of_group(key);
                let states = later.zip(&mut self.grown).map(|(state, sum)| {
                    *sum += state.memory_bytes();
                    grown += state.memory_bytes() as isize;
                    state
                });
                self.groups.add((hash, key), id, states);
            }
            Some(at) => {
                let accumulators = self.group.accumulators.iter().zip(&mut self.grown);
                let states = self.groups.states_mut(at).iter_mut().zip(later);
                for ((accumulator, sum), (state, later)) in accumulators.zip(states) {
                    let before = state.memory_bytes();
                    state.absorb(&accumulator.kind, later, budget)?;
                    let after = state.memory_bytes();
                    accumulator.check(after, budget.memory())?;
                    let more = after as isize - before as isize;
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

    /// What a new group takes, beyond what its states hold.
    fn bytes_of_group(&self, key: &[u8]) -> isize {
        let states_bytes = self.group.accumulators.len() * size_of::<State>();
        (2 * key.len() + GROUP_BYTES + states_bytes) as isize
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
            Err(_) => Err(not_alike()),
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
        self.begin_merging(next.budget)?;
        let mut buffer = Vec::new();
        for _ in 0..GROUPS_PER_DRAIN {
            let Some(result) = self.next_result(buffer, next.budget)? else {
                self.groups = Groups::default();
                self.merging = None;
                return Ok(Drained::Done);
            };
            self.output_bytes += result.as_bytes().len() as u64;
            match next.push(&result)? {
                Flow::Continue => {}
                Flow::Full => return Ok(Drained::More),
                Flow::Stop => return Ok(Drained::Done),
            }
            buffer = result.into_bytes();
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
    pub(super) fn add(
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
        let hash = Groups::hash(&self.key);
        let mut grown = 0;
        let at = match self.groups.find(hash, &self.key) {
            Some(at) => at,
            None => {
                let of = accumulator::Group::new(id, &self.variables);
                self.states.clear();
                for accumulator in &*group.accumulators {
                    self.states.push(accumulator.start(of)?);
                }
                grown = self.bytes_of_group(&self.key);
                check_depth(id)?;
                let id = id_document_of(id, std::mem::take(&mut self.id_buffer));
                let states = self.states.drain(..);
                let at = self.groups.add((hash, &self.key), &id, states);
                self.id_buffer = id.into_bytes();
                at
            }
        };
        let states = self.groups.states_mut(at);
        grown += match group.mode {
            Mode::Merge => group.merge(states, document, budget)?,
            Mode::Complete | Mode::Partial => {
                let given = Given {
                    accumulators: &group.accumulators,
                    arguments: &self.arguments,
                    known,
                };
                Self::accumulate(&given, states, root, &mut self.grown, budget)?
            }
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
