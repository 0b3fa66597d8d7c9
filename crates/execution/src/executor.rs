//! Running a plan: one for every reader of documents.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use banyan_query::filter::Filter;
use banyan_query::{CanonicalQuery, QueryError};
use banyan_storage::{Collection, RecordId, Snapshot};
use bson::{RawDocument, RawDocumentBuf, cstr, rawdoc};

use crate::cache::CandidateStats;
use crate::error::plan_killed;
use crate::interrupt::{InterruptSlot, Ticker};
use crate::later::LaterStates;
use crate::operators::{
    Documents, Examined, Explainer, Member, MemberRef, Progress, Run, Stage, VirtualScan,
};
use crate::packed::{Packed, Packer};
use crate::parallel::{self, Counter, Sink, Workers};
use crate::plan::explain::clamp;
use crate::plan::summary::Summary;
use crate::plan::{self, Solution};
use crate::request::{ReadView, Request};
use crate::row::{HANDED_ON_BYTES, Row, RowStream};
use crate::stats::PlanSummaryStats;
use crate::windows::{Reader, Room, Windows};

/// For a member of a batch so many bytes are read, except for a document that is larger alone.
const MEMBER_BYTES: usize = 2048;
/// So many keys are read until a plan is asked again whether several may go on.
const LOOK_AGAIN: u64 = 4096;
/// Keys alone are counted so many times as fast as documents are read.
const KEYS_FOR_A_DOCUMENT: u64 = 4;
/// So many are counted before the plan's figures are told.
const COUNTED_AT_ONCE: u64 = 4096;

/// One thread looks at so many documents before others join in handing them on.
const LOOKED_AT_MIN: u64 = 512;

/// So many of those that were found on all cores are handed on at once.
const HANDED_ON_AT_ONCE: usize = 64;

/// Whether documents are read before they are asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reading {
    /// Whoever changes documents wants them as they are stored, in the newest state.
    Plainly,
    Ahead,
}

/// What is found in a share of a window.
struct Found {
    packer: Packer<RecordId>,
    room: Room,
}

impl Found {
    fn finish(self) -> Option<Packed<RecordId>> {
        Some(self.packer.finish()).filter(|packed| !packed.is_empty())
    }
}

impl Sink for Found {
    fn take(&mut self, member: MemberRef<'_>) -> Result<(), QueryError> {
        self.room.take(member.document.as_bytes().len());
        self.packer.push(member.record.clone(), member.document);
        Ok(())
    }

    fn is_full(&mut self) -> bool {
        self.room.is_used_up()
    }

    fn wanted(&self, most: usize) -> usize {
        self.room.wanted(most)
    }
}

/// A plan at work.
pub struct Executor {
    collection: Option<Arc<Collection>>,
    /// `None` while it rests.
    snapshot: Option<Snapshot>,
    later: Option<LaterStates>,
    root: Stage,
    ticker: Ticker,
    examined: Examined,
    /// What was found and not handed on.
    ahead: VecDeque<Member>,
    /// Once what is left is read on all cores.
    windows: Option<Windows<Packed<RecordId>>>,
    /// So many bytes are asked for at once, if that is known.
    asked: Option<usize>,
    /// So many were handed on before anything was read in windows.
    handed_on_bytes: u64,
    /// When so many documents were looked at, it is asked whether what is left is to be read so.
    asks_at: u64,
    /// What is told once that has been handed on.
    failed: Option<QueryError>,
    ended: bool,
    /// So many members are read at once next.
    batch: usize,
    batch_max: usize,
    out: Vec<Member>,
    is_sorted: bool,
    began: Instant,
    pub stats: Arc<PlanSummaryStats>,
    /// What was not chosen, as it would begin: nothing of it runs. Kept for explanations only.
    pub(crate) rejected: Vec<Stage>,
    pub(crate) candidates: Vec<CandidateStats>,
    pub(crate) has_index_filter: bool,
    query: Arc<CanonicalQuery>,
    /// What each of several workers has done, if there were several.
    workers: Workers,
}

impl Executor {
    pub(crate) fn new(
        view: &ReadView,
        request: &Request<'_>,
        solution: &Solution,
        slot: &Arc<InterruptSlot>,
    ) -> Result<Executor, QueryError> {
        let root = plan::build(view.collection.as_ref(), request, solution)?;
        let summary = Summary::of(solution);
        let mut executor = Executor::run(view, root, summary, &request.query, slot);
        executor.is_sorted = request.query.order.pattern().is_some() && !solution.sorted;
        Ok(executor)
    }

    /// Over documents that are not stored. They come in the order that is asked for, unless the
    /// request has a sort.
    pub fn over(
        documents: Documents,
        view: &ReadView,
        request: &Request<'_>,
        slot: &Arc<InterruptSlot>,
    ) -> Executor {
        let scan = VirtualScan::new(documents, request.query.filter.clone());
        let root = plan::finish(Stage::new(scan), request, false, None);
        let mut executor = Executor::run(view, root, Summary::Nothing, &request.query, slot);
        executor.is_sorted = request.query.order.pattern().is_some();
        executor
    }

    fn run(
        view: &ReadView,
        root: Stage,
        summary: Summary,
        query: &Arc<CanonicalQuery>,
        slot: &Arc<InterruptSlot>,
    ) -> Executor {
        Executor {
            collection: view.collection.clone(),
            snapshot: Some(view.snapshot.clone()),
            later: view.later.clone(),
            ticker: Ticker::new(slot.clone()),
            examined: Examined::default(),
            ahead: VecDeque::new(),
            windows: None,
            asked: None,
            handed_on_bytes: 0,
            asks_at: LOOKED_AT_MIN,
            failed: None,
            ended: false,
            batch: 1,
            batch_max: root.batch_members(),
            out: Vec::new(),
            is_sorted: false,
            began: Instant::now(),
            root,
            stats: Arc::new(PlanSummaryStats::new(summary, query.clone())),
            rejected: Vec::new(),
            candidates: Vec::new(),
            has_index_filter: false,
            query: query.clone(),
            workers: Workers::default(),
        }
    }

    /// Has all that it finds taken in by sinks, on as many cores as are free, and hands those back
    /// in the order of what they have seen. `None`: its plan is none of a large scan, or that of a
    /// collection has begun to run.
    pub fn divide<S: Sink>(
        &mut self,
        make: impl Fn() -> Result<S, QueryError> + Send + Sync + 'static,
    ) -> Result<Option<Vec<S>>, QueryError> {
        if parallel::workers() < 2 || self.windows.is_some() {
            return Ok(None);
        }
        let make = Arc::new(make);
        if !self.has_begun()
            && let Some(sinks) = self.gather(&make)?
        {
            return Ok(Some(sinks));
        }
        if !self.root.may_be_divided() {
            return Ok(None);
        }
        // It is not known yet whether it is much.
        let mut sink = make()?;
        sink.begin(0);
        let mut asks_at = LOOK_AGAIN;
        let mut rest = None;
        loop {
            let mut found = self.ahead.drain(..);
            found.try_for_each(|member| sink.keep(member))?;
            drop(found);
            if self.ended {
                break;
            }
            if self.examined.keys >= asks_at {
                asks_at = self.examined.keys + LOOK_AGAIN;
                rest = self.gather(&make)?;
                if rest.is_some() {
                    break;
                }
            }
            self.advance(self.batch_max, u64::MAX)?;
        }
        sink.seal()?;
        let rest = rest.into_iter().flatten();
        Ok(Some(std::iter::once(sink).chain(rest).collect()))
    }

    fn has_begun(&self) -> bool {
        self.ended || self.examined.works > 0 || !self.ahead.is_empty()
    }

    /// What is left of the plan, if it is known to be much.
    fn gather<M, S>(&mut self, make: &Arc<M>) -> Result<Option<Vec<S>>, QueryError>
    where
        M: Fn() -> Result<S, QueryError> + Send + Sync + 'static,
        S: Sink,
    {
        let (Some(snapshot), None) = (&self.snapshot, &self.failed) else {
            return Ok(None);
        };
        let make = make.clone();
        let slot = self.ticker.slot();
        let (root, examined, workers) = (&mut self.root, &mut self.examined, &mut self.workers);
        let make = move || (*make)();
        let sinks = parallel::gather(root, snapshot, slot, examined, workers, make)?;
        self.ended |= sinks.is_some();
        self.stats.set(&self.examined);
        Ok(sinks)
    }

    /// Whether the documents are found by a scan of the whole collection.
    pub fn scans_collection(&self) -> bool {
        matches!(self.stats.summary, Summary::Scan)
    }

    /// Whether the documents are a sample of the collection.
    pub fn is_sample(&self) -> bool {
        matches!(self.stats.summary, Summary::Sample)
    }

    /// Whether everything has to be read and sorted before anything is found.
    pub fn has_blocking_sort(&self) -> bool {
        self.is_sorted
    }

    /// The next record that was asked for, with its document.
    pub fn next_record(&mut self) -> Result<Option<(RecordId, Row)>, QueryError> {
        loop {
            while let Some(Member { record, row, .. }) = self.ahead.pop_front() {
                if let Some(row) = row {
                    return Ok(Some((record, row)));
                }
            }
            if self.ended {
                return Ok(None);
            }
            self.read(usize::MAX, Reading::Plainly)?;
        }
    }

    /// How many there are, up to `most`.
    pub fn count_up_to(&mut self, most: u64) -> Result<u64, QueryError> {
        let (make, mut count) = (Arc::new(|| Ok(Counter::default())), 0);
        let in_all = |parts: Vec<Counter>| parts.iter().map(|part| part.0).sum::<u64>();
        if most == u64::MAX
            && !self.has_begun()
            && let Some(parts) = self.gather(&make)?
        {
            return Ok(in_all(parts));
        }
        let mut asks_at = LOOK_AGAIN;
        loop {
            count += self.ahead.drain(..).len() as u64;
            if self.ended || count >= most {
                return Ok(count.min(most));
            }
            let Examined {
                keys, documents, ..
            } = self.examined;
            let read = match documents {
                0 => keys / KEYS_FOR_A_DOCUMENT,
                _ => keys,
            };
            if most == u64::MAX && read >= asks_at {
                asks_at = read + LOOK_AGAIN;
                if let Some(parts) = self.gather(&make)? {
                    return Ok(count + in_all(parts));
                }
            }
            count += self.pass((most - count).min(COUNTED_AT_ONCE))?;
        }
    }

    /// Reads on by up to so many members, of which only the number is wanted.
    fn pass(&mut self, most: u64) -> Result<u64, QueryError> {
        self.tell_failure()?;
        self.wake()?;
        if self.windows.is_some() {
            self.go_on_in_windows()?;
            return Ok(0);
        }
        let Some(snapshot) = &self.snapshot else {
            return Err(plan_killed("the state that it reads was let go"));
        };
        let mut run = Run::new(snapshot, &mut self.ticker, &mut self.examined, u64::MAX);
        let outcome = self.root.pass(&mut run, most);
        self.stats.set(&self.examined);
        let (passed, progress) = outcome?;
        self.ended |= progress == Progress::End;
        Ok(passed)
    }

    /// Reads ahead, by a batch that grows while the documents are small.
    fn read(&mut self, most: usize, reading: Reading) -> Result<(), QueryError> {
        while self.ahead.is_empty() && !self.ended {
            self.advance_by(self.batch.min(most), u64::MAX, reading)?;
        }
        if self.windows.is_some() {
            return Ok(());
        }
        let bytes: usize = self.ahead.iter().map(Member::bytes).sum();
        match bytes < self.batch_max * MEMBER_BYTES {
            true => self.batch = (self.batch * 2).min(self.batch_max),
            false => self.batch = (self.batch / 2).max(1),
        }
        Ok(())
    }

    /// Does up to so many units of work, for up to so many members.
    pub(crate) fn advance(&mut self, most: usize, works: u64) -> Result<(), QueryError> {
        self.advance_by(most, works, Reading::Plainly)
    }

    fn advance_by(&mut self, most: usize, works: u64, reading: Reading) -> Result<(), QueryError> {
        self.tell_failure()?;
        self.wake()?;
        if reading == Reading::Ahead && self.windows.is_none() {
            self.windows = self.begin_windows()?;
        }
        if self.windows.is_some() {
            return self.go_on_in_windows();
        }
        let Some(snapshot) = &self.snapshot else {
            return Err(plan_killed("the state that it reads was let go"));
        };
        let run = Run::new(snapshot, &mut self.ticker, &mut self.examined, works);
        let mut run = match reading {
            Reading::Plainly => run,
            Reading::Ahead => run.reading_ahead(),
        };
        let outcome = self.root.next(&mut run, most, &mut self.out);
        self.stats.set(&self.examined);
        self.ahead.extend(self.out.drain(..));
        match outcome {
            Ok(progress) => self.ended |= progress == Progress::End,
            Err(error) if self.ahead.is_empty() => return Err(error),
            Err(error) => self.failed = Some(error),
        }
        Ok(())
    }

    /// What is left of the plan as windows, if it has turned out to be much and several may read it.
    /// Nothing else is to be asked of it from then on.
    fn begin_windows<T>(&mut self) -> Result<Option<Windows<T>>, QueryError> {
        let looked_at = self.examined.documents;
        // A position in a capped collection may be lost, which a reader of shares does not notice.
        let collection = self.collection.as_ref();
        let collection = collection.filter(|collection| !collection.is_capped);
        let (Some(snapshot), Some(collection)) = (&self.snapshot, collection) else {
            return Ok(None);
        };
        // An index would be searched for its last key, and is not read in windows.
        let may_begin = self.scans_collection() && !self.ended && self.failed.is_none();
        if looked_at < self.asks_at || !may_begin {
            return Ok(None);
        }
        self.asks_at = 2 * looked_at;
        let each = collection.bytes() / collection.documents().max(1);
        let each = usize::try_from(each).unwrap_or(usize::MAX);
        let seen = (looked_at, self.handed_on_bytes);
        Windows::over(&mut self.root, snapshot, seen, each)
    }

    /// The same for sinks of one's own. What was read before and not handed on comes first.
    pub fn begin_windows_of<S: Sink, T>(
        &mut self,
        make: impl Fn(Room) -> Result<S, QueryError>,
        found: impl Fn(S) -> Option<T>,
    ) -> Result<Option<Windows<T>>, QueryError> {
        if self.windows.is_some() {
            return Ok(None);
        }
        let Some(mut windows) = self.begin_windows()? else {
            return Ok(None);
        };
        let mut sink = make(windows.room())?;
        let mut ahead = self.ahead.drain(..);
        ahead.try_for_each(|member| sink.keep(member))?;
        drop(ahead);
        sink.seal()?;
        if let Some(found) = found(sink) {
            windows.put_first(found);
        }
        Ok(Some(windows))
    }

    /// Reads the next window.
    pub fn read_window<S: Sink, T>(
        &mut self,
        windows: &mut Windows<T>,
        make: impl Fn(Room) -> Result<S, QueryError> + Send + Sync + 'static,
        found: impl Fn(S) -> Option<T>,
    ) -> Result<(), QueryError> {
        self.wake()?;
        let Some(snapshot) = &self.snapshot else {
            return Err(plan_killed("the state that it reads was let go"));
        };
        let reader = Reader {
            plan: &mut self.root,
            snapshot,
            slot: self.ticker.slot(),
            examined: &mut self.examined,
            workers: &mut self.workers,
        };
        if let Some(bytes) = self.asked {
            windows.ask_for(bytes);
        }
        let outcome = windows.read(reader, make, found);
        self.stats.set(&self.examined);
        outcome?;
        self.ended |= windows.has_read_all();
        Ok(())
    }

    /// Hands on what was found in the next window.
    fn go_on_in_windows(&mut self) -> Result<(), QueryError> {
        let Some(mut windows) = self.windows.take() else {
            return Ok(());
        };
        if windows.found().is_none() {
            let make = |room| {
                Ok(Found {
                    packer: Packer::default(),
                    room,
                })
            };
            let outcome = self.read_window(&mut windows, make, Found::finish);
            if outcome.is_err() {
                self.windows = Some(windows);
                return outcome;
            }
        }
        if let Some(found) = windows.found() {
            let some = found.by_ref().take(HANDED_ON_AT_ONCE);
            let members = some.map(|(record, row)| Member::new(record, Some(row)));
            self.ahead.extend(members);
            if found.is_empty() {
                windows.pass_found();
            }
        }
        self.ended = windows.has_ended();
        self.windows = Some(windows);
        Ok(())
    }

    /// Fails with what has ended the last batch.
    fn tell_failure(&mut self) -> Result<(), QueryError> {
        self.failed.take().map_or(Ok(()), Err)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// How many were found and wait.
    pub(crate) fn found(&self) -> usize {
        self.ahead.len()
    }

    pub(crate) fn produced(&self) -> u64 {
        self.root.produced()
    }

    pub(crate) fn works(&self) -> u64 {
        self.examined.works
    }

    /// Opens a snapshot again after a rest.
    fn wake(&mut self) -> Result<(), QueryError> {
        if self.snapshot.is_some() {
            return Ok(());
        }
        let Some(later) = &self.later else {
            return Err(plan_killed("the state that it reads was let go"));
        };
        // Before the snapshot: every index that is still there is complete in it.
        let newest = later.newest_catalog();
        let (_, snapshot) = later.open()?;
        if let Some(collection) = &self.collection {
            let Some(current) = newest.by_id(collection.id) else {
                return Err(dropped());
            };
            self.root.restore(current)?;
        }
        self.snapshot = Some(snapshot);
        Ok(())
    }

    /// Fails where the collection was dropped, whatever state is read.
    pub fn check_collection(&self) -> Result<(), QueryError> {
        match (&self.later, &self.collection) {
            (Some(later), Some(collection))
                if later.newest_catalog().by_id(collection.id).is_none() =>
            {
                Err(dropped())
            }
            _ => Ok(()),
        }
    }

    /// Keeps its position and lets its snapshot go, if it may go on in a later state or needs none.
    pub fn save(&mut self) {
        if self.ended {
            self.later = None;
        } else if self.later.is_none() {
            return;
        }
        if self.snapshot.take().is_some() {
            self.root.save();
        }
        self.ahead.iter_mut().for_each(Member::detach);
    }

    /// Whether it holds a snapshot, or one is kept for it.
    pub fn holds_snapshot(&self) -> bool {
        let later = self.later.as_ref();
        self.snapshot.is_some() || later.is_some_and(LaterStates::keeps_snapshot)
    }

    /// The state that it reads. Records that it hands on as they are stored are of that.
    pub fn view(&self) -> Option<&Snapshot> {
        self.snapshot.as_ref()
    }

    /// What it looks for.
    pub fn looks_for(&self) -> &Filter {
        &self.query.filter
    }

    /// Whether the collection is there: a query on one that is not has no plan.
    pub fn has_collection(&self) -> bool {
        self.collection.is_some()
    }

    /// Whether an index filter is set for queries of this shape.
    pub fn has_index_filter(&self) -> bool {
        self.has_index_filter
    }

    /// `planCacheKey`, of the plan that runs and of those that were not chosen.
    pub fn plan_cache_key(&self) -> u32 {
        self.stats.plan_cache_key().unwrap_or_default()
    }

    /// `winningPlan`.
    pub fn explain_plan(&self) -> RawDocumentBuf {
        self.root.explain(Explainer::default())
    }

    /// `rejectedPlans`.
    pub fn explain_rejected(&self) -> impl Iterator<Item = RawDocumentBuf> {
        let rejected = self.rejected.iter();
        rejected.map(|root| root.explain(Explainer::default()))
    }

    /// `executionStages`.
    pub fn explain_run(&self) -> RawDocumentBuf {
        let mut stage = self.root.explain(Explainer {
            milliseconds: Some(self.milliseconds()),
        });
        self.workers.describe(&mut stage);
        stage
    }

    /// `allPlansExecution`: what the plans had done when one of them was chosen.
    pub fn explain_candidates(&self) -> impl Iterator<Item = &RawDocumentBuf> {
        self.candidates.iter().map(|candidate| &candidate.stats)
    }

    /// What it has done in a trial.
    pub(crate) fn explain_trial(&self, score: Option<f64>) -> RawDocumentBuf {
        let mut stats = rawdoc! {
            "nReturned": clamp(self.found() as u64),
            "executionTimeMillisEstimate": clamp(self.milliseconds()),
            "totalKeysExamined": clamp(self.stats.keys()),
            "totalDocsExamined": clamp(self.stats.documents()),
        };
        if let Some(score) = score {
            stats.append(cstr!("score"), score);
        }
        stats.append(cstr!("executionStages"), self.explain_run());
        stats
    }

    pub fn milliseconds(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

impl RowStream for Executor {
    fn next_batch(&mut self, most: usize, out: &mut VecDeque<Row>) -> Result<(), QueryError> {
        let wanted = out.len().saturating_add(most);
        let mut bytes = 0;
        loop {
            let bytes_before = bytes;
            while out.len() < wanted
                && bytes < HANDED_ON_BYTES
                && let Some(member) = self.ahead.pop_front()
            {
                bytes += member.bytes();
                out.extend(member.row);
            }
            if self.windows.is_none() {
                self.handed_on_bytes += (bytes - bytes_before) as u64;
            }
            if out.len() >= wanted || bytes >= HANDED_ON_BYTES || self.ended {
                return Ok(());
            }
            if !out.is_empty() && self.batch >= self.batch_max {
                return Ok(());
            }
            self.read(wanted - out.len(), Reading::Ahead)?;
        }
    }

    fn ask_for(&mut self, bytes: usize) {
        self.asked = Some(bytes);
    }

    /// What was found in windows lies in slabs.
    fn hand_on(&mut self, take: &mut dyn FnMut(&RawDocument) -> bool) {
        let Some(windows) = &mut self.windows else {
            return;
        };
        if !self.ahead.is_empty() || self.failed.is_some() {
            return;
        }
        while let Some(found) = windows.found() {
            found.hand_on(take);
            if !found.is_empty() {
                return;
            }
            windows.pass_found();
        }
        self.ended = windows.has_ended();
    }

    fn check_collection(&self) -> Result<(), QueryError> {
        Executor::check_collection(self)
    }

    fn save(&mut self) {
        Executor::save(self);
    }

    fn explain_run(&self) -> Option<RawDocumentBuf> {
        Some(Executor::explain_run(self))
    }

    fn holds_snapshot(&self) -> bool {
        Executor::holds_snapshot(self)
    }
}

fn dropped() -> QueryError {
    plan_killed("collection dropped between getMore calls")
}

/// The documents one by one, for a pipeline.
impl Iterator for Executor {
    type Item = Result<Row, QueryError>;

    fn next(&mut self) -> Option<Self::Item> {
        let found = self.next_record();
        found.map(|found| found.map(|(_, row)| row)).transpose()
    }
}
