//! The results of a pipeline over what a plan finds, for a cursor.
//!
//! Where the input is large, the first stages see it on all cores: as a whole if they end in one that
//! gathers its input, and otherwise window by window, somewhat ahead of what is asked for.

use std::collections::VecDeque;
use std::sync::Arc;

use banyan_execution::operators::MemberRef;
use banyan_execution::packed::{Packed, Packer};
use banyan_execution::parallel::Sink;
use banyan_execution::windows::{Room, Windows};
use banyan_execution::{Executor, HANDED_ON_BYTES, Row, RowStream};
use banyan_query::QueryError;
use banyan_query::memory::Together;
use banyan_query::pipeline::{Execution, Flow, Pipeline, Run, Sources};
use bson::RawDocument;
use parking_lot::Mutex;

/// Where a pipeline's documents come from.
pub enum Input {
    Plan(Box<Executor>),
    /// What it finds passes the first stages elsewhere.
    Streamed(Box<Executor>, Streamed),
    Listed(Box<dyn Iterator<Item = Result<Row, QueryError>> + Send>),
}

impl Input {
    fn executor(&self) -> Option<&Executor> {
        match self {
            Input::Plan(executor) | Input::Streamed(executor, _) => Some(executor),
            Input::Listed(_) => None,
        }
    }
}

impl Iterator for Input {
    type Item = Result<Row, QueryError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Input::Plan(executor) => executor.next(),
            Input::Streamed(executor, streamed) => streamed.next(executor),
            Input::Listed(rows) => rows.next(),
        }
    }
}

/// Stages that may run over parts of the input at once, and what they read.
struct Stages {
    pipeline: Pipeline,
    sources: Option<Arc<dyn Sources>>,
    together: Arc<Together>,
}

impl Stages {
    fn new(pipeline: Pipeline, sources: Option<&Arc<dyn Sources>>) -> Stages {
        Stages {
            pipeline,
            sources: sources.cloned(),
            together: Arc::default(),
        }
    }

    fn start(&self) -> Result<Execution, QueryError> {
        self.pipeline
            .start_part(self.sources.clone(), &self.together)
    }
}

/// The first stages, up to one that gathers its input.
pub struct Gathering(Stages);

impl Gathering {
    pub fn of(pipeline: &Pipeline, sources: Option<&Arc<dyn Sources>>) -> Option<Gathering> {
        Some(Gathering(Stages::new(pipeline.gathering()?, sources)))
    }

    /// Runs the stages over all that a plan finds, on all cores. `None`: it is not much.
    pub fn run(self, executor: &mut Executor) -> Result<Option<Vec<Execution>>, QueryError> {
        let parts = executor.divide(move || self.0.start().map(Gatherer))?;
        Ok(parts.map(|parts| parts.into_iter().map(|part| part.0).collect()))
    }
}

struct Gatherer(Execution);

impl Sink for Gatherer {
    fn take(&mut self, member: MemberRef<'_>) -> Result<(), QueryError> {
        self.0.push(member.document).map(|_| ())
    }

    fn begin(&mut self, start: u64) -> bool {
        self.0.begin(start)
    }

    fn seal(&mut self) -> Result<(), QueryError> {
        self.0.seal()
    }
}

/// What has come out of the first stages. What they fail with is told when its turn has come.
struct Found {
    documents: Packed<()>,
    failure: Option<QueryError>,
}

impl Found {
    fn next(&mut self) -> Option<Result<Row, QueryError>> {
        match self.documents.next() {
            Some(((), row)) => Some(Ok(row)),
            None => self.failure.take().map(Err),
        }
    }
}

/// The first stages over what a plan finds, window by window.
pub struct Streamed {
    stages: Arc<Streaming>,
    windows: Windows<Found>,
}

/// The first stages, as far as they may run over parts of the input and hand on no more than they take.
pub struct Streaming {
    stages: Stages,
    /// How many documents each of them was given.
    received: Mutex<Vec<u64>>,
}

impl Streaming {
    pub fn of(pipeline: &Pipeline, sources: Option<&Arc<dyn Sources>>) -> Arc<Streaming> {
        Arc::new(Streaming {
            stages: Stages::new(pipeline.streaming(), sources),
            received: Mutex::default(),
        })
    }

    /// Has what a plan finds pass the stages on all cores from now on, if that has turned out to be much.
    pub fn begin(
        self: &Arc<Self>,
        executor: &mut Executor,
    ) -> Result<Option<Streamed>, QueryError> {
        let make = |room| Streamer::new(self, room);
        let windows = executor.begin_windows_of(make, |sink| self.found(sink))?;
        Ok(windows.map(|windows| Streamed {
            stages: self.clone(),
            windows,
        }))
    }

    pub fn stages(&self) -> usize {
        self.stages.pipeline.len()
    }

    pub fn received(&self) -> Vec<u64> {
        self.received.lock().clone()
    }

    fn found(&self, sink: Streamer) -> Option<Found> {
        let mut received = self.received.lock();
        received.resize(self.stages(), 0);
        let counts = sink.execution.received_by_each();
        received
            .iter_mut()
            .zip(counts)
            .for_each(|(all, count)| *all += count);
        let found = Found {
            documents: sink.packer.finish(),
            failure: sink.failure,
        };
        (!found.documents.is_empty() || found.failure.is_some()).then_some(found)
    }
}

impl Streamed {
    /// What comes out of the stages next.
    pub fn next(&mut self, executor: &mut Executor) -> Option<Result<Row, QueryError>> {
        loop {
            if let Some(found) = self.windows.found() {
                match found.next() {
                    Some(found) => return Some(found),
                    None => self.windows.pass_found(),
                }
            } else if self.windows.has_ended() {
                return None;
            } else if let Err(error) = self.read(executor) {
                return Some(Err(error));
            }
        }
    }

    fn read(&mut self, executor: &mut Executor) -> Result<(), QueryError> {
        let stages = self.stages.clone();
        let make = move |room| Streamer::new(&stages, room);
        executor.read_window(&mut self.windows, make, |sink| self.stages.found(sink))
    }
}

/// Has the first stages run over a share.
struct Streamer {
    execution: Execution,
    packer: Packer<()>,
    room: Room,
    /// It comes behind what was found before.
    failure: Option<QueryError>,
}

impl Streamer {
    fn new(streaming: &Streaming, room: Room) -> Result<Streamer, QueryError> {
        Ok(Streamer {
            execution: streaming.stages.start()?,
            packer: Packer::default(),
            room,
            failure: None,
        })
    }

    fn push(&mut self, document: &RawDocument) -> Result<(), QueryError> {
        self.execution.push(document)?;
        self.take_results()
    }

    fn take_results(&mut self) -> Result<(), QueryError> {
        while let Some(document) = self.execution.pop()? {
            self.room.take(document.as_bytes().len());
            self.packer.push((), &document);
        }
        Ok(())
    }

    fn release(&mut self) -> Result<(), QueryError> {
        while self.execution.release()? == Flow::Full {
            self.take_results()?;
        }
        Ok(())
    }
}

impl Sink for Streamer {
    fn take(&mut self, member: MemberRef<'_>) -> Result<(), QueryError> {
        if self.failure.is_none() {
            self.failure = self.push(member.document).err();
        }
        Ok(())
    }

    fn is_full(&mut self) -> bool {
        self.failure.is_some() || self.room.is_used_up()
    }

    fn wanted(&self, most: usize) -> usize {
        self.room.wanted(most)
    }

    fn seal(&mut self) -> Result<(), QueryError> {
        if self.failure.is_none() {
            self.failure = self.release().err();
        }
        Ok(())
    }
}

pub struct PipelineRows {
    run: Run<Input>,
    /// Until it has been tried.
    gathering: Option<Gathering>,
    /// The stages that the input may pass on all cores; none once it does.
    streaming: Option<Arc<Streaming>>,
    /// Results that have come before they were asked for.
    waiting: VecDeque<Result<Row, QueryError>>,
}

impl PipelineRows {
    pub fn new(
        pipeline: &Pipeline,
        input: Input,
        sources: Option<Arc<dyn Sources>>,
    ) -> Result<PipelineRows, QueryError> {
        let plan = matches!(input, Input::Plan(_)).then_some(sources.as_ref());
        Ok(PipelineRows {
            gathering: plan.and_then(|sources| Gathering::of(pipeline, sources)),
            streaming: plan.map(|sources| Streaming::of(pipeline, sources)),
            run: pipeline.run(input, sources)?,
            waiting: VecDeque::new(),
        })
    }

    /// Has the first stages see all of the input on all cores, if it is large.
    fn gather(&mut self) -> Result<(), QueryError> {
        let (Some(gathering), Some(Input::Plan(executor))) =
            (self.gathering.take(), self.run.input_mut())
        else {
            return Ok(());
        };
        match gathering.run(executor)? {
            Some(parts) => self.run.gather(parts),
            None => Ok(()),
        }
    }

    /// Has the input pass the first stages on all cores from now on, if it has turned out to be large.
    fn stream(&mut self) -> Result<(), QueryError> {
        let (Some(streaming), Some(Input::Plan(executor))) =
            (&self.streaming, self.run.input_mut())
        else {
            return Ok(());
        };
        let Some(streamed) = streaming.begin(executor)? else {
            return Ok(());
        };
        let waiting = &mut self.waiting;
        let take = |document| waiting.push_back(Ok(Row::Owned(document)));
        if let Err(error) = self.run.skip_stages(streaming.stages(), take) {
            waiting.push_back(Err(error));
        }
        self.streaming = None;
        self.run.replace_input(|input| match input {
            Input::Plan(executor) => Input::Streamed(executor, streamed),
            other => other,
        });
        Ok(())
    }
}

impl RowStream for PipelineRows {
    fn next_batch(&mut self, most: usize, out: &mut VecDeque<Row>) -> Result<(), QueryError> {
        self.gather()?;
        self.stream()?;
        let waiting = std::iter::from_fn(|| self.waiting.pop_front());
        let results = self.run.by_ref();
        let results = results.map(|document| document.map(Row::Owned));
        let mut bytes = 0;
        for row in waiting.chain(results).take(most) {
            let row = row?;
            bytes += row.as_bytes().len();
            out.push_back(row);
            if bytes >= HANDED_ON_BYTES {
                break;
            }
        }
        Ok(())
    }

    fn ask_for(&mut self, bytes: usize) {
        match self.run.input_mut() {
            Some(Input::Plan(executor) | Input::Streamed(executor, _)) => executor.ask_for(bytes),
            Some(Input::Listed(_)) | None => {}
        }
    }

    fn save(&mut self) {
        match self.run.input_mut() {
            Some(Input::Plan(executor) | Input::Streamed(executor, _)) => executor.save(),
            Some(Input::Listed(_)) | None => {}
        }
    }

    fn holds_snapshot(&self) -> bool {
        let executor = self.run.input().and_then(Input::executor);
        executor.is_some_and(Executor::holds_snapshot)
    }
}
