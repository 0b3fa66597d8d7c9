//! The operators of a plan: each finds, changes or orders what the one below it hands on.
//!
//! A plan is a tree of [`Stage`]s, each with an [`Operator`] that hands on members a batch at a time.
//! A stage counts the work of its operator and can let its snapshot go between two batches
//! ([`Stage::save`]): it keeps its position and goes on in another snapshot ([`Stage::restore`]).
//! `explain` is drawn from the tree that ran ([`Stage::explain`]).
//!
//! To add one: a file here, and the place in `plan/build.rs` that puts it into a tree.

mod cell_test;
mod collection_scan;
mod distinct_scan;
mod document_filters;
mod eof;
mod exchange;
mod explain;
mod fetch;
mod geo_near;
mod id_lookup;
mod index_pieces;
mod index_scan;
mod key_document;
mod limit;
mod metadata;
mod nearby;
mod or;
mod projection;
mod random_scan;
mod return_key;
mod returned_key;
mod sharding_filter;
mod sort;
mod sort_merge;
mod stepping;
mod text_match;
mod text_or;
mod text_score;
mod virtual_scan;
mod window;

use std::any::Any;
use std::sync::Arc;

use banyan_query::QueryError;
use banyan_query::filter::Filter;
use banyan_storage::{Collection, RecordId, Snapshot};
use bson::{RawArrayBuf, RawDocument, RawDocumentBuf, cstr};

pub use collection_scan::CollectionScan;
pub use distinct_scan::{DistinctScan, Reads};
pub use document_filters::DocumentFilters;
pub use eof::Eof;
pub use exchange::Exchange;
pub use explain::Explainer;
pub(crate) use explain::pattern as sort_pattern;
pub use fetch::Fetch;
pub use geo_near::GeoNear;
pub use id_lookup::IdLookup;
pub use index_scan::IndexScan;
pub use key_document::KeyDocument;
pub use limit::{Limit, Skip};
pub use metadata::TellMetadata;
pub use or::Or;
pub use projection::{Covered, Output, Projection};
pub use random_scan::RandomScan;
pub use return_key::ReturnKey;
pub use returned_key::KeyFields;
pub use sharding_filter::{ShardFilter, ShardingFilter};
pub use sort::Sort;
pub use sort_merge::SortMerge;
pub use text_match::TextMatch;
pub use text_or::TextOr;
pub use text_score::TextScore;
pub use virtual_scan::{Documents, VirtualScan};

use crate::interrupt::{InterruptSlot, Ticker};
use crate::row::Row;
use crate::shares::{Share, Shares};

/// What operators hand on: a record, and its document once that has been read.
pub struct Member {
    pub record: RecordId,
    /// `None` below a [`Fetch`].
    pub row: Option<Row>,
    /// The key that it was found by, where that is asked for.
    pub key: Option<Box<RawDocumentBuf>>,
    /// Whether its key has settled what is asked of its shape.
    pub is_settled: bool,
    /// The bytes of its index key that it is merged by, where they are.
    pub order: Option<Box<[u8]>>,
}

impl Member {
    /// Whose key nobody asks for.
    #[inline]
    pub fn new(record: RecordId, row: Option<Row>) -> Member {
        Member {
            record,
            row,
            key: None,
            is_settled: false,
            order: None,
        }
    }

    /// It is kept for long from now on: it lets go of the block that its document lies in.
    pub(crate) fn detach(&mut self) {
        if let Some(row) = &mut self.row {
            row.detach();
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        let key = self.key.as_ref().map_or(0, |key| key.as_bytes().len());
        self.row.as_ref().map_or(0, |row| row.as_bytes().len()) + key
    }

    /// `None`: it has no document.
    pub fn by_ref(&self) -> Option<MemberRef<'_>> {
        Some(MemberRef {
            record: &self.record,
            document: self.row.as_deref()?,
            key: self.key.as_deref(),
        })
    }
}

/// A member with its document where that lies: whoever keeps it copies it.
#[derive(Clone, Copy)]
pub struct MemberRef<'d> {
    pub record: &'d RecordId,
    pub document: &'d RawDocument,
    /// As that of a [`Member`].
    pub key: Option<&'d RawDocumentBuf>,
}

impl MemberRef<'_> {
    pub(crate) fn bytes(&self) -> usize {
        let key = self.key.map_or(0, |key| key.as_bytes().len());
        self.document.as_bytes().len() + key
    }
}

/// What is done with each member that is visited.
pub type Visitor<'v> = &'v mut dyn FnMut(MemberRef<'_>) -> Result<(), QueryError>;

/// To count a key takes about as long as to look at so many bytes.
const COUNTED_KEY_BYTES: usize = 16;

/// So many members are read at once at most.
const BATCH_MEMBERS: usize = 64;
/// So many if scripts decide about them, which are called for all of them together.
const SCRIPTED_BATCH_MEMBERS: usize = 1024;

fn batch_members(calls_script: bool, wanted: u64) -> usize {
    let most = match calls_script {
        true => SCRIPTED_BATCH_MEMBERS,
        false => BATCH_MEMBERS,
    };
    usize::try_from(wanted).map_or(most, |wanted| wanted.min(most))
}

/// Whether an operator has more to hand on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Ask again, also where nothing was handed on: the work that was allowed may be used up.
    More,
    End,
}

/// What an operator of a plan does. What all have in common, a [`Stage`] does for it: its counts,
/// its inputs' rests, and most of its explanation.
pub trait Operator: Any + Send {
    /// As MongoDB's `explain` calls it.
    fn name(&self) -> &'static str;

    /// Appends what comes next to `out`, up to `most` members in all; how many units of work that
    /// took.
    fn next(
        &mut self,
        inputs: &mut [Stage],
        run: &mut Run<'_>,
        most: usize,
        out: &mut Vec<Member>,
    ) -> Result<(u64, Progress), QueryError>;

    /// As [`Operator::next`], where nobody wants the members: how many there were, beside the work.
    fn pass(
        &mut self,
        inputs: &mut [Stage],
        run: &mut Run<'_>,
        most: u64,
    ) -> Result<(u64, u64, Progress), QueryError> {
        let most = batch_members(self.calls_script(), most);
        let mut members = Vec::with_capacity(most);
        let (works, progress) = self.next(inputs, run, most, &mut members)?;
        Ok((works, members.len() as u64, progress))
    }

    /// As [`Operator::next`], for whoever copies what it wants of a member: how many there were, beside
    /// the work. Members without a document are left out.
    fn visit(
        &mut self,
        inputs: &mut [Stage],
        run: &mut Run<'_>,
        most: usize,
        visitor: Visitor<'_>,
    ) -> Result<(u64, u64, Progress), QueryError> {
        let mut members = Vec::with_capacity(most);
        let (works, progress) = self.next(inputs, run, most, &mut members)?;
        visit_all(&members, visitor)?;
        Ok((works, members.len() as u64, progress))
    }

    /// Whether it calls scripts for what it hands on.
    fn calls_script(&self) -> bool {
        false
    }

    /// Lets go of what depends on the snapshot and keeps the position.
    fn save(&mut self) {}

    /// Another snapshot is read from now on; fails if the plan cannot go on in it.
    fn restore(&mut self, _: &Collection) -> Result<(), QueryError> {
        Ok(())
    }

    /// An operator that does the same and has done nothing yet, for one share of what the scan
    /// below reads. `None`: it has to see everything.
    fn part(&self, _: &Share) -> Option<Box<dyn Operator>> {
        None
    }

    /// What is left to read below it, to be divided among several: `None` if that is not much, or
    /// not known.
    fn shares(
        &mut self,
        inputs: &mut [Stage],
        snapshot: &Snapshot,
    ) -> Result<Option<Arc<Shares>>, QueryError> {
        match inputs {
            [only] => only.shares(snapshot),
            _ => Ok(None),
        }
    }

    /// Whether there will be shares once it has looked at so much that it is worth their while.
    fn may_be_divided(&self, inputs: &[Stage]) -> bool {
        match inputs {
            [only] => only.may_be_divided(),
            _ => false,
        }
    }

    /// Adds to its own counts those of a part.
    fn absorb(&mut self, _: &dyn Operator) {}

    /// Whether it still reads from its inputs.
    fn reads_inputs(&self) -> bool {
        true
    }

    /// How many members it would have handed on but for having to read all of its input first.
    fn held_back(&self) -> Option<u64> {
        None
    }

    /// Whether it hands on what comes, so that its input tells how much is found.
    fn passes_on(&self) -> bool {
        false
    }

    /// The filter that it matches documents with.
    fn filter(&self) -> Option<&Filter> {
        None
    }

    /// Whether its inputs are shown as a list.
    fn merges(&self) -> bool {
        false
    }

    /// Whether it is a stage of its own to whoever asks for an explanation.
    fn is_shown(&self) -> bool {
        true
    }

    /// Adds to what is said of its input what there is to say of an operator that is not shown.
    fn annotate(&self, _: &mut RawDocumentBuf) {}

    /// Adds what is said of this operator alone.
    fn describe(&self, _: &mut RawDocumentBuf, _: &Counts, _: Explainer) {}
}

/// An operator in its place in a plan.
pub struct Stage {
    operator: Box<dyn Operator>,
    inputs: Vec<Stage>,
    counts: Counts,
}

impl Stage {
    pub fn new(operator: impl Operator + 'static) -> Stage {
        Stage::over_all(Vec::new(), operator)
    }

    /// An operator over an input.
    pub fn over(input: Stage, operator: impl Operator + 'static) -> Stage {
        Stage::over_all(vec![input], operator)
    }

    pub fn over_all(inputs: Vec<Stage>, operator: impl Operator + 'static) -> Stage {
        Stage {
            operator: Box::new(operator),
            inputs,
            counts: Counts::default(),
        }
    }

    /// Appends what comes next to `out`, up to `most` members in all.
    pub fn next(
        &mut self,
        run: &mut Run<'_>,
        most: usize,
        out: &mut Vec<Member>,
    ) -> Result<Progress, QueryError> {
        let before = out.len();
        let (works, progress) = self.operator.next(&mut self.inputs, run, most, out)?;
        self.counts
            .note(works, (out.len() - before) as u64, progress);
        Ok(progress)
    }

    /// Reads on by up to so many members, which nobody wants: how many there were.
    pub fn pass(&mut self, run: &mut Run<'_>, most: u64) -> Result<(u64, Progress), QueryError> {
        let (works, passed, progress) = self.operator.pass(&mut self.inputs, run, most)?;
        self.counts.note(works, passed, progress);
        Ok((passed, progress))
    }

    /// As [`Stage::next`], for whoever copies what it wants of a member.
    pub fn visit(
        &mut self,
        run: &mut Run<'_>,
        most: usize,
        visitor: Visitor<'_>,
    ) -> Result<Progress, QueryError> {
        let (works, visited, progress) =
            self.operator.visit(&mut self.inputs, run, most, visitor)?;
        self.counts.note(works, visited, progress);
        Ok(progress)
    }

    /// How many members are worth reading at once.
    pub fn batch_members(&self) -> usize {
        batch_members(self.calls_script(), u64::MAX)
    }

    fn calls_script(&self) -> bool {
        self.operator.calls_script() || self.inputs.iter().any(Stage::calls_script)
    }

    /// Lets go of what depends on the snapshot and keeps the position.
    pub fn save(&mut self) {
        self.inputs.iter_mut().for_each(Stage::save);
        self.operator.save();
        self.counts.saves += 1;
    }

    /// Another snapshot is read from now on; fails if the plan cannot go on in it.
    pub fn restore(&mut self, collection: &Collection) -> Result<(), QueryError> {
        self.counts.restores += 1;
        if self.operator.reads_inputs() {
            let mut inputs = self.inputs.iter_mut();
            inputs.try_for_each(|input| input.restore(collection))?;
        }
        self.operator.restore(collection)
    }

    /// The same operators, which have done nothing yet, for one share of what the scan at the
    /// bottom reads. `None`: one of them has to see everything.
    pub fn part(&self, share: &Share) -> Option<Stage> {
        let inputs = self.inputs.iter().map(|input| input.part(share));
        Some(Stage {
            inputs: inputs.collect::<Option<_>>()?,
            operator: self.operator.part(share)?,
            counts: Counts::default(),
        })
    }

    /// What is left to read of the scan at the bottom, if it is much.
    pub fn shares(&mut self, snapshot: &Snapshot) -> Result<Option<Arc<Shares>>, QueryError> {
        self.operator.shares(&mut self.inputs, snapshot)
    }

    /// Whether there will be shares once the scan at the bottom has turned out to be large.
    pub fn may_be_divided(&self) -> bool {
        self.operator.may_be_divided(&self.inputs)
    }

    /// Adds to its own counts those of a part.
    pub fn absorb(&mut self, part: &Stage) {
        for (input, part) in self.inputs.iter_mut().zip(&part.inputs) {
            input.absorb(part);
        }
        self.operator.absorb(&*part.operator);
        self.counts.add(&part.counts);
    }

    /// How many members it has handed on, or would have but for having to read all of its input
    /// first: what a trial of several plans compares.
    pub fn produced(&self) -> u64 {
        match self.inputs.first() {
            Some(input) if self.operator.passes_on() => input.produced(),
            _ => self.operator.held_back().unwrap_or(self.counts.advanced),
        }
    }

    /// The stage as MongoDB's `explain` shows it, with those below it.
    pub fn explain(&self, explainer: Explainer) -> RawDocumentBuf {
        if !self.operator.is_shown()
            && let Some(input) = self.inputs.first()
        {
            let mut stage = input.explain(explainer);
            self.operator.annotate(&mut stage);
            return stage;
        }
        let operator = &*self.operator;
        let mut stage = explainer.stage(operator.name(), operator.filter(), &self.counts);
        operator.describe(&mut stage, &self.counts, explainer);
        let mut inputs = self.inputs.iter().map(|input| input.explain(explainer));
        if operator.merges() {
            stage.append(cstr!("inputStages"), inputs.collect::<RawArrayBuf>());
        } else if let Some(input) = inputs.next() {
            stage.append(cstr!("inputStage"), input);
        }
        stage
    }
}

/// What a plan has done so far.
#[derive(Debug, Clone, Copy, Default)]
pub struct Examined {
    pub keys: u64,
    pub documents: u64,
    /// Units of work: a key or a document that was looked at, a member that was passed on.
    pub works: u64,
}

/// A plan while it runs: what all of its operators use.
pub struct Run<'r> {
    pub snapshot: &'r Snapshot,
    ticker: &'r mut Ticker,
    /// Units of work that may be done before control goes back to whoever runs the plan.
    allowed: u64,
    /// Whether it may do all that there is to do: it is not on trial.
    is_unbounded: bool,
    /// Whether more may be read than is asked for now.
    reads_ahead: bool,
    examined: &'r mut Examined,
}

impl Examined {
    pub fn add(&mut self, other: &Examined) {
        self.keys += other.keys;
        self.documents += other.documents;
        self.works += other.works;
    }
}

impl<'r> Run<'r> {
    pub fn new(
        snapshot: &'r Snapshot,
        ticker: &'r mut Ticker,
        examined: &'r mut Examined,
        allowed: u64,
    ) -> Run<'r> {
        Run {
            snapshot,
            ticker,
            allowed,
            is_unbounded: allowed == u64::MAX,
            reads_ahead: false,
            examined,
        }
    }

    /// What comes next will be asked for soon, or is not much.
    pub fn reading_ahead(mut self) -> Run<'r> {
        self.reads_ahead = true;
        self
    }

    /// Whether another unit of work may be done. It is counted.
    #[inline]
    fn work(&mut self) -> bool {
        if self.allowed == 0 {
            return false;
        }
        self.allowed -= 1;
        self.examined.works += 1;
        true
    }

    fn slot(&self) -> Arc<InterruptSlot> {
        self.ticker.slot().clone()
    }

    fn is_exhausted(&self) -> bool {
        self.allowed == 0
    }

    /// Something was looked for that is not there.
    #[inline]
    fn tick(&mut self) -> Result<(), QueryError> {
        self.ticker.tick()
    }

    /// A key was looked at.
    #[inline]
    fn examine_key(&mut self) -> Result<(), QueryError> {
        self.examined.keys += 1;
        self.ticker.tick()
    }

    /// So many units of work, of those that may still be done.
    fn allow(&self, most: u64) -> u64 {
        most.min(self.allowed)
    }

    /// So many keys were counted, each a unit of work. No more than are allowed.
    fn examine_keys(&mut self, keys: u64) -> Result<(), QueryError> {
        self.allowed = self.allowed.saturating_sub(keys);
        self.examined.works += keys;
        self.examined.keys += keys;
        self.ticker.tick_over(keys as usize * COUNTED_KEY_BYTES)
    }

    /// A document of so many bytes was looked at.
    #[inline]
    fn examine_document(&mut self, bytes: usize) -> Result<(), QueryError> {
        self.examined.documents += 1;
        self.ticker.tick_over(bytes)
    }
}

/// An operator's own counts.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    works: u64,
    advanced: u64,
    saves: u64,
    restores: u64,
    ended: bool,
}

impl Counts {
    fn add(&mut self, part: &Counts) {
        self.works += part.works;
        self.advanced += part.advanced;
        self.ended |= part.ended;
    }

    /// Takes note of what a call has come to: members were handed on after so many steps.
    fn note(&mut self, works: u64, advanced: u64, progress: Progress) {
        self.works += works;
        self.advanced += advanced;
        if progress == Progress::End && !self.ended {
            self.works += 1;
            self.ended = true;
        }
    }
}

/// Has an operator's only input append what comes next: how many members those are.
fn pass_on(
    inputs: &mut [Stage],
    run: &mut Run<'_>,
    most: usize,
    out: &mut Vec<Member>,
) -> Result<(u64, Progress), QueryError> {
    let before = out.len();
    let progress = match inputs.first_mut() {
        Some(input) => input.next(run, most, out)?,
        None => Progress::End,
    };
    Ok(((out.len() - before) as u64, progress))
}

fn visit_all(members: &[Member], visitor: Visitor<'_>) -> Result<(), QueryError> {
    let mut members = members.iter().filter_map(Member::by_ref);
    members.try_for_each(visitor)
}

/// Has an operator's only input visit what comes next: how many members those are.
fn visit_on(
    inputs: &mut [Stage],
    run: &mut Run<'_>,
    most: usize,
    visitor: Visitor<'_>,
) -> Result<(u64, u64, Progress), QueryError> {
    let Some(input) = inputs.first_mut() else {
        return Ok((0, 0, Progress::End));
    };
    let mut visited = 0;
    let progress = input.visit(run, most, &mut |member| {
        visited += 1;
        visitor(member)
    })?;
    Ok((visited, visited, progress))
}

/// Reads batch after batch of an operator's only input until there is something in `out`, the input has
/// ended, or the work that is allowed is used up. `take` moves what it wants from the first list to
/// the second.
fn pull(
    inputs: &mut [Stage],
    run: &mut Run<'_>,
    most: usize,
    out: &mut Vec<Member>,
    pulled: &mut Vec<Member>,
    mut take: impl FnMut(&mut Run<'_>, &mut Vec<Member>, &mut Vec<Member>) -> Result<(), QueryError>,
) -> Result<(u64, Progress), QueryError> {
    let Some(input) = inputs.first_mut() else {
        return Ok((0, Progress::End));
    };
    let before = out.len();
    let mut works = 0;
    loop {
        pulled.clear();
        let progress = input.next(run, most.saturating_sub(out.len()), pulled)?;
        works += pulled.len() as u64;
        take(run, pulled, out)?;
        if progress == Progress::End || out.len() > before || run.is_exhausted() {
            return Ok((works, progress));
        }
    }
}
