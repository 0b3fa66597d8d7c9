//! One map-reduce job in one host.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::thread::{self, JoinHandle};

use banyan_document::{Collator, field};
use bson::raw::RawBsonRef;
use bson::{RawDocument, RawDocumentBuf};

use super::channel::{Channel, Interrupted};
use super::error::{FirstError, JobError};
use super::feeder::Feeder;
use super::merge::{Merge, SortedDocuments};
use super::pool::Pool;
use super::prints::Prints;
use super::process::Host;
use super::runs::{Run, RunWriter, SpillBudget};
use crate::frame::Kind;
use crate::host::{JobSpec, fields_read};

/// Groups are sent to be reduced in frames of about this size; what needs no reducing counts as well.
const GROUPS_FRAME_BYTES: usize = 128 << 10;

/// What to compute. Sources are function expressions, arrow functions or function bodies.
#[derive(Debug, Clone, Default)]
pub struct MapReduceSpec {
    /// None: only partial results of others are reduced.
    pub map: Option<String>,
    pub reduce: String,
    pub finalize: Option<String>,
    /// Variables of all three functions.
    pub scope: Option<RawDocumentBuf>,
    /// Which keys are one; without one, strings are compared by their bytes.
    pub collator: Option<Collator>,
}

/// What the functions did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    pub input: i64,
    pub emit: i64,
    pub reduce: i64,
    pub output: i64,
}

pub struct MapReduceJob {
    pool: Arc<Pool>,
    /// Taken when the job is over.
    host: Option<Host>,
    interrupted: Interrupted,
    prints: Arc<Prints>,
    first_error: Arc<FirstError>,
    readers: Vec<JoinHandle<Result<LaneResult, JobError>>>,
    channels: Vec<Channel>,
    has_finalize: bool,
    has_map: bool,
    /// What the map function reads, if that is known.
    fields: Option<Arc<[String]>>,
    reduces: i64,
    /// Which keys are one.
    collator: Option<Collator>,
}

/// The result of mapping: sorted runs, not yet merged.
pub struct Mapped {
    pub runs: Vec<Run>,
    pub counters: Counters,
}

struct LaneResult {
    runs: Vec<Run>,
    counters: Counters,
}

impl MapReduceJob {
    pub(super) fn start(
        pool: &Arc<Pool>,
        spec: &MapReduceSpec,
        interrupted: Interrupted,
        prints: Arc<Prints>,
    ) -> Result<MapReduceJob, JobError> {
        let mut job = MapReduceJob {
            host: Some(pool.acquire(&interrupted)?),
            pool: pool.clone(),
            interrupted,
            prints,
            first_error: Arc::default(),
            readers: Vec::new(),
            channels: Vec::new(),
            has_finalize: spec.finalize.is_some(),
            has_map: spec.map.is_some(),
            fields: spec.map.as_deref().and_then(fields_read).map(Arc::from),
            reduces: 0,
            collator: spec.collator.clone(),
        };
        let spec = JobSpec {
            map: spec.map.clone(),
            reduce: spec.reduce.clone(),
            finalize: spec.finalize.clone(),
            scope: spec.scope.clone(),
            collator: spec.collator.clone(),
        };
        let spec = spec.to_bytes();
        for lane in 0..job.lanes() {
            let mut channel = job.channel(lane)?;
            channel.send(Kind::Job, &spec)?;
            job.channels.push(channel);
        }
        Ok(job)
    }

    pub fn lanes(&self) -> usize {
        self.host.as_ref().map_or(0, |host| host.lanes.len())
    }

    pub fn process_id(&self) -> Option<u32> {
        self.host.as_ref().map(Host::process_id)
    }

    fn channel(&self, lane: usize) -> Result<Channel, JobError> {
        let host = self.host.as_ref().ok_or(JobError::Protocol)?;
        Channel::open(host, lane, self.interrupted.clone(), self.prints.clone())
    }

    /// Begins to map: one feeder per lane. [`MapReduceJob::finish_mapping`] waits for the results
    /// once every feeder has finished.
    pub fn start_mapping(&mut self) -> Result<Vec<Feeder>, JobError> {
        let budget = self.spill_budget();
        let mut feeders = Vec::new();
        for channel in std::mem::take(&mut self.channels) {
            let stream = channel.stream();
            let first_error = self.first_error.clone();
            feeders.push(Feeder::new(stream, first_error, self.fields.clone()));
            let reader = LaneReader {
                channel,
                writer: RunWriter::new(budget.clone()),
                first_error: self.first_error.clone(),
            };
            let thread = thread::Builder::new().name("script-lane".into());
            let thread = thread.spawn(move || reader.run());
            let thread = thread.map_err(|error| JobError::Start {
                reason: error.to_string(),
            })?;
            self.readers.push(thread);
        }
        Ok(feeders)
    }

    /// Waits until every lane has mapped what it was fed.
    pub fn finish_mapping(&mut self) -> Result<Mapped, JobError> {
        let mut mapped = Mapped {
            runs: Vec::new(),
            counters: Counters::default(),
        };
        for reader in std::mem::take(&mut self.readers) {
            // A reader that panicked has left no error of its own.
            match reader.join().unwrap_or(Err(JobError::Protocol)) {
                Ok(lane) => {
                    mapped.runs.extend(lane.runs);
                    mapped.counters.input += lane.counters.input;
                    mapped.counters.emit += lane.counters.emit;
                    mapped.counters.reduce += lane.counters.reduce;
                }
                Err(error) => self.first_error.set(error),
            }
        }
        if let Some(error) = self.first_error.get() {
            return Err(error);
        }
        for lane in 0..self.lanes() {
            let channel = self.channel(lane)?;
            self.channels.push(channel);
        }
        Ok(mapped)
    }

    /// Merges sorted streams of `{_id, value}` and reduces what shares a key. With `last`, every
    /// value is finalized too.
    pub fn reduce<E: From<JobError>>(
        &mut self,
        inputs: Vec<Box<dyn SortedDocuments<E>>>,
        last: bool,
    ) -> Reduced<'_, E> {
        let finalize = last && self.has_finalize;
        let collator = self.collator.clone();
        Reduced {
            job: self,
            merge: Merge::new(inputs, collator),
            finalize,
            existing: None,
            begun: VecDeque::new(),
            done: Done::default(),
            ended: false,
            is_over: false,
        }
    }

    /// Brings the runs of the lanes together into one, reduced but not finalized; gives back how
    /// many keys it has.
    pub fn merge_runs(&mut self, runs: Vec<Run>) -> Result<(Run, i64), JobError> {
        let mut writer = RunWriter::new(self.spill_budget());
        let mut keys = 0;
        let inputs = runs
            .into_iter()
            .map(|run| Box::new(run.documents()) as _)
            .collect();
        let mut reduced = self.reduce::<JobError>(inputs, false);
        while let Some(document) = reduced.next_document()? {
            writer.append(document.as_bytes())?;
            keys += 1;
        }
        Ok((writer.finish()?, keys))
    }

    fn spill_budget(&self) -> Arc<SpillBudget> {
        let options = self.pool.options();
        Arc::new(SpillBudget {
            directory: options.spill_directory.clone(),
            memory_bytes_max: options.spill_memory_bytes_max,
            memory_bytes: AtomicUsize::new(0),
        })
    }

    /// The calls of reduce that [`MapReduceJob::reduce`] has made so far.
    pub fn reduces(&self) -> i64 {
        self.reduces
    }

    /// Gives the host back to the pool. A job that is dropped instead has failed, and its host
    /// ends with it.
    pub fn done(mut self) {
        let all_sent = self
            .channels
            .iter_mut()
            .all(|channel| channel.send(Kind::Done, &[]).is_ok());
        let idle = !self.has_map || self.channels.len() == self.lanes();
        if all_sent
            && idle
            && let Some(host) = self.host.take()
        {
            self.pool.release(host);
        }
    }
}

impl Drop for MapReduceJob {
    fn drop(&mut self) {
        if let Some(host) = self.host.take() {
            drop(host);
            self.pool.forget();
        }
        for reader in std::mem::take(&mut self.readers) {
            let _ = reader.join();
        }
    }
}

struct LaneReader {
    channel: Channel,
    writer: RunWriter,
    first_error: Arc<FirstError>,
}

impl LaneReader {
    /// Takes in what the lane sends until it has mapped everything. An error ends the host: its
    /// other lanes work for nothing, and feeders may be waiting on it.
    fn run(mut self) -> Result<LaneResult, JobError> {
        let result = self.receive_all();
        if let Err(error) = &result {
            self.first_error.set(error.clone());
            self.channel.kill();
        }
        result
    }

    fn receive_all(&mut self) -> Result<LaneResult, JobError> {
        let mut payload = Vec::new();
        let mut runs = Vec::new();
        loop {
            match self.channel.receive(&mut payload)? {
                Kind::Partials => self.writer.append(&payload)?,
                Kind::RunEnd => runs.push(self.writer.finish()?),
                Kind::Mapped => {
                    let counters = counters(&payload).ok_or(JobError::Protocol)?;
                    return Ok(LaneResult { runs, counters });
                }
                _ => return Err(JobError::Protocol),
            }
        }
    }
}

fn counters(payload: &[u8]) -> Option<Counters> {
    let document = RawDocument::from_bytes(payload).ok()?;
    Some(Counters {
        input: document.get_i64("input").ok()?,
        emit: document.get_i64("emit").ok()?,
        reduce: document.get_i64("reduce").ok()?,
        output: 0,
    })
}

/// What is there already for a key, to be reduced with the new value.
pub type Existing<E> = Box<dyn FnMut(RawBsonRef<'_>) -> Result<Option<RawDocumentBuf>, E> + Send>;

/// The reduced documents `{_id, value}`, in key order.
pub struct Reduced<'j, E> {
    job: &'j mut MapReduceJob,
    merge: Merge<E>,
    finalize: bool,
    existing: Option<Existing<E>>,
    /// What lanes work on, in key order; a lane has one of them at most.
    begun: VecDeque<Begun>,
    done: Done,
    /// The merge has no more.
    ended: bool,
    is_over: bool,
}

/// Groups that a lane was sent, and what lies between them.
struct Begun {
    lane: usize,
    groups: Groups,
}

/// Groups in the order of their keys.
#[derive(Default)]
struct Groups {
    places: VecDeque<Place>,
    /// The documents of which there is nothing to reduce, end to end.
    ready: Vec<u8>,
}

/// Where the result of a group is.
enum Place {
    /// A document among those that were ready from the beginning.
    Ready(Range<usize>),
    /// The next one that comes back from the lane.
    Pending,
}

/// Results that wait to be handed out.
#[derive(Default)]
struct Done {
    groups: Groups,
    /// What the lane has sent back.
    reduced: Vec<u8>,
    /// How far that is handed out.
    at: usize,
}

impl Done {
    /// The next result; `None`: there is none here.
    fn next(&mut self) -> Result<Option<&[u8]>, JobError> {
        Ok(match self.groups.places.pop_front() {
            None => None,
            Some(Place::Ready(range)) => Some(&self.groups.ready[range]),
            Some(Place::Pending) => {
                let mut rest = self.reduced.get(self.at..).ok_or(JobError::Protocol)?;
                let document = crate::host::next_document(&mut rest);
                let document = document.map_err(|_| JobError::Protocol)?;
                self.at += document.len();
                Some(document)
            }
        })
    }
}

impl<E: From<JobError>> Reduced<'_, E> {
    /// Values that `existing` finds by key take part in the reduction, before the new ones.
    pub fn with_existing(mut self, existing: Existing<E>) -> Self {
        self.existing = Some(existing);
        self
    }

    /// The next result. After an error there is none.
    pub fn next_document(&mut self) -> Result<Option<&RawDocument>, E> {
        // Unless there turns out to be one.
        if std::mem::replace(&mut self.is_over, true) || !self.advance()? {
            return Ok(None);
        }
        let document = self.done.next()?.ok_or(JobError::Protocol)?;
        let document = RawDocument::from_bytes(document).map_err(|_| JobError::Protocol)?;
        self.is_over = false;
        Ok(Some(document))
    }

    /// Has a result at hand. False: there are no more.
    fn advance(&mut self) -> Result<bool, E> {
        while self.done.groups.places.is_empty() {
            if self.ended && self.begun.is_empty() {
                return Ok(false);
            }
            self.take_in()?;
        }
        Ok(true)
    }

    /// Takes in what was begun first, and has its lane go on before anybody looks at the result.
    fn take_in(&mut self) -> Result<(), E> {
        if self.begun.is_empty() {
            for lane in 0..self.job.channels.len() {
                self.begin(lane)?;
            }
        }
        let Some(Begun { lane, groups }) = self.begun.pop_front() else {
            return Ok(());
        };
        let is_pending = |place: &Place| matches!(place, Place::Pending);
        self.done.at = 0;
        self.done.reduced.clear();
        if groups.places.iter().any(is_pending) {
            self.receive(lane)?;
        }
        self.done.groups = groups;
        self.begin(lane)?;
        Ok(())
    }

    /// Gives an idle lane the next groups, if there are any.
    fn begin(&mut self, lane: usize) -> Result<(), E> {
        let (groups, payload) = self.plan()?;
        if !payload.is_empty() {
            let kind = match self.finalize {
                true => Kind::LastGroups,
                false => Kind::Groups,
            };
            self.job.channels[lane].send(kind, &payload)?;
        }
        if !groups.places.is_empty() {
            self.begun.push_back(Begun { lane, groups });
        }
        Ok(())
    }

    /// The next groups, as many as make a frame: the number of documents of each, which share their
    /// `_id`, and these.
    fn plan(&mut self) -> Result<(Groups, Vec<u8>), E> {
        let mut groups = Groups::default();
        let mut payload = Vec::new();
        while !self.ended && payload.len() + groups.ready.len() < GROUPS_FRAME_BYTES {
            let start = payload.len();
            payload.extend_from_slice(&[0; 4]);
            let documents = start + 4;
            let mut count = self.merge.next_group(&mut payload)?;
            if count == 0 {
                payload.truncate(start);
                self.ended = true;
                break;
            }
            if let Some(existing) = self.existing_of(&payload[documents..])? {
                payload.splice(documents..documents, existing.into_bytes());
                count += 1;
            }
            if count == 1 && !self.finalize {
                let at = groups.ready.len();
                groups.ready.extend_from_slice(&payload[documents..]);
                payload.truncate(start);
                let range = at..groups.ready.len();
                groups.places.push_back(Place::Ready(range));
                continue;
            }
            payload[start..documents].copy_from_slice(&count.to_le_bytes());
            groups.places.push_back(Place::Pending);
        }
        Ok((groups, payload))
    }

    /// What is there already for the key of a group.
    fn existing_of(&mut self, mut group: &[u8]) -> Result<Option<RawDocumentBuf>, E> {
        let Some(existing) = &mut self.existing else {
            return Ok(None);
        };
        let first = crate::host::next_document(&mut group).ok();
        let first = first.and_then(|first| RawDocument::from_bytes(first).ok());
        let key = first.and_then(|first| field(first, "_id"));
        existing(key.ok_or(JobError::Protocol)?)
    }

    fn receive(&mut self, lane: usize) -> Result<(), JobError> {
        let reduced = &mut self.done.reduced;
        match self.job.channels[lane].receive(reduced)? {
            Kind::Reduced => {}
            _ => return Err(JobError::Protocol),
        }
        let reduces = reduced.first_chunk::<8>().ok_or(JobError::Protocol)?;
        self.job.reduces += i64::from_le_bytes(*reduces);
        self.done.at = 8;
        Ok(())
    }
}

/// The results, each by itself.
impl<E: From<JobError>> Iterator for Reduced<'_, E> {
    type Item = Result<RawDocumentBuf, E>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.next_document().transpose()?;
        Some(next.map(ToOwned::to_owned))
    }
}
