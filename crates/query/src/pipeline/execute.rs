//! Running a pipeline: documents are pushed in, results are popped out.

use std::sync::Arc;

use banyan_document::DocumentWriter;
use bson::{RawDocument, RawDocumentBuf};

use super::foreign::Sources;
use super::member::{self, Member};
use super::stage::Stage;
use super::stage_run::{
    Drained, Feeding, Flow, Next, Pass, Placed, Results, StageRun, Start, append_count,
};
use crate::budget::Budget;
use crate::error::QueryError;
use crate::variables::Variables;

pub struct Execution {
    runs: Vec<Placed>,
    output: Results,
    budget: Budget,
    /// What is pushed comes behind so many runs.
    skipped: usize,
    /// The run being drained; those before it have nothing left.
    draining: usize,
    /// The results were full: some run may have kept something.
    paused: bool,
    /// A run has said that it needs nothing more.
    stopped: bool,
    /// A run has failed, and others have yet to hand on what came before that.
    failure: Option<Failure>,
}

struct Failure {
    error: QueryError,
    /// The first run behind the one that has failed.
    behind: usize,
    /// There is nothing before it but results that can be taken.
    is_next: bool,
}

impl Execution {
    pub(super) fn new(
        members: &[Member],
        sources: Option<Arc<dyn Sources>>,
        budget: &Budget,
        variables: &Variables,
        feeding: Feeding<'_>,
    ) -> Result<Execution, QueryError> {
        let mut runs = Vec::with_capacity(members.len());
        for (index, member) in members.iter().enumerate() {
            let start = Start {
                needed: member::dependencies(&members[index + 1..]),
                sources: sources.as_ref(),
                budget,
                variables,
                feeding,
            };
            runs.push(Placed {
                run: member.stage.clone().run(&start)?,
                received: 0,
            });
        }
        Ok(Execution {
            runs,
            output: Results::default(),
            budget: budget.clone(),
            skipped: 0,
            draining: 0,
            paused: false,
            stopped: false,
            failure: None,
        })
    }

    /// One input document. After `Flow::Stop` no more need be pushed. Pop the results between
    /// two calls: what was kept for lack of room is worked off first.
    pub fn push(&mut self, document: &RawDocument) -> Result<Flow, QueryError> {
        while self.paused {
            self.resume()?;
        }
        if self.stopped {
            return Ok(Flow::Stop);
        }
        let flow = match self.after(self.skipped).push(document) {
            Ok(flow) => flow,
            Err(error) => {
                self.fail(error, self.skipped)?;
                return Ok(Flow::Full);
            }
        };
        self.paused = self.output.flow() == Flow::Full;
        self.stopped = flow == Flow::Stop;
        Ok(flow)
    }

    /// A run has failed, `at` if it was none behind that. The error comes back if it is the next thing
    /// to be told.
    fn fail(&mut self, error: QueryError, at: usize) -> Result<(), QueryError> {
        let behind = match self.output.behind_failed.take() {
            Some(behind) => self.runs.len().saturating_sub(behind),
            None => at + 1,
        };
        let mut others = self.runs.iter().skip(behind);
        let is_next = !others.any(|placed| placed.run.looks_ahead());
        if is_next && self.output.is_empty() {
            return Err(error);
        }
        self.failure = Some(Failure {
            error,
            behind,
            is_next,
        });
        self.paused = true;
        Ok(())
    }

    /// What is pushed next is another part of the input; see [`StageRun::begin`].
    pub fn begin(&mut self, part: u64) -> bool {
        if self.runs.iter().any(|placed| placed.run.looks_ahead()) {
            return false;
        }
        let last = self.runs.last_mut();
        last.is_some_and(|placed| placed.run.begin(part))
    }

    /// Nothing more will be pushed before it is absorbed.
    pub fn seal(&mut self) -> Result<(), QueryError> {
        // The last run gathers: there are no results that would have to be taken.
        while self.release()? == Flow::Full {}
        let last = self.runs.last_mut();
        last.map_or(Ok(()), |placed| placed.run.seal())
    }

    /// Takes over what another execution of the first stages of the same pipeline, up to one that
    /// gathers, has seen of the documents that come next.
    pub fn absorb(&mut self, mut later: Execution) -> Result<(), QueryError> {
        for (placed, later) in self.runs.iter_mut().zip(&later.runs) {
            placed.received += later.received;
        }
        let Some(gatherer) = later.runs.pop() else {
            return Ok(());
        };
        match self.runs.get_mut(later.runs.len()) {
            Some(placed) => placed.run.absorb(gatherer.run, &self.budget),
            None => Ok(()),
        }
    }

    /// What is pushed from now on has passed the first so many stages elsewhere. They are to have
    /// released what they kept.
    pub fn skip_stages(&mut self, stages: usize) {
        self.skipped = stages;
    }

    /// The first stages let go of what they hold: nothing more comes to them.
    fn forget_skipped(&mut self) {
        for placed in self.runs.iter_mut().take(self.skipped) {
            placed.run = Box::new(Pass);
        }
    }

    /// How many documents each of the stages was given.
    pub fn received_by_each(&self) -> impl Iterator<Item = u64> {
        self.runs.iter().map(|placed| placed.received)
    }

    /// The first stages were given so many documents elsewhere.
    pub fn add_received(&mut self, received: &[u64]) {
        for (placed, received) in self.runs.iter_mut().zip(received) {
            placed.received += received;
        }
    }

    /// How many documents the first run was given.
    pub fn received(&self) -> u64 {
        self.runs.first().map_or(0, |placed| placed.received)
    }

    /// Call it when the input has ended, until it returns false; results are to be popped between
    /// the calls.
    pub fn drain(&mut self) -> Result<bool, QueryError> {
        while self.paused {
            self.resume()?;
        }
        let Some((run, mut next)) = self.at(self.draining) else {
            return Ok(false);
        };
        match run.drain(&mut next) {
            Ok(Drained::Done) => self.draining += 1,
            Ok(Drained::More) => {}
            Err(error) => {
                self.fail(error, self.draining)?;
                return Ok(true);
            }
        }
        self.paused = self.output.flow() == Flow::Full;
        Ok(true)
    }

    /// The next result, as far as what was pushed and drained goes.
    pub fn pop(&mut self) -> Result<Option<RawDocumentBuf>, QueryError> {
        loop {
            if let Some(document) = self.output.pop() {
                return Ok(Some(document));
            }
            if !self.paused {
                return Ok(None);
            }
            self.resume()?;
        }
    }

    /// Has the runs hand on what they kept, the last one first, until the results are full again.
    fn resume(&mut self) -> Result<(), QueryError> {
        self.output.go_on();
        let behind = self.failure.as_ref().map_or(0, |failure| failure.behind);
        for index in (behind..self.runs.len()).rev() {
            let Some((run, mut next)) = self.at(index) else {
                break;
            };
            match run.resume(&mut next) {
                Ok(Flow::Continue) => {}
                Ok(Flow::Full) => return Ok(()),
                Ok(Flow::Stop) => {
                    // What the runs before it hold is not needed.
                    self.stop(index);
                    return Ok(());
                }
                Err(error) => return self.fail(error, index),
            }
        }
        let Some(failure) = self.failure.take() else {
            self.paused = false;
            return Ok(());
        };
        if failure.is_next {
            self.paused = false;
            return Err(failure.error);
        }
        self.release_before(failure)
    }

    /// Has the runs behind one that has failed hand on what came before that; the failure is what comes
    /// next, unless they stop at something, or have had enough.
    fn release_before(&mut self, failure: Failure) -> Result<(), QueryError> {
        let behind = failure.behind;
        self.failure = Some(failure);
        self.paused = true;
        let flow = self.release_from(behind)?;
        if let Some(failure) = &mut self.failure {
            failure.is_next = flow == Flow::Continue;
        }
        Ok(())
    }

    /// A run needs nothing more: neither what those before it hold nor what they have failed with.
    fn stop(&mut self, run: usize) {
        self.draining = self.draining.max(run);
        self.stopped = true;
        self.paused = false;
        self.failure = None;
    }

    /// Has the runs hand on what they keep until more comes. Call it where nothing comes for now, until
    /// it does not return [`Flow::Full`]; results are to be popped between the calls.
    pub fn release(&mut self) -> Result<Flow, QueryError> {
        while self.paused {
            self.resume()?;
        }
        match self.stopped {
            true => Ok(Flow::Stop),
            false => self.release_from(0),
        }
    }

    /// The same for the runs from one on.
    fn release_from(&mut self, first: usize) -> Result<Flow, QueryError> {
        for index in first..self.runs.len() {
            let Some((run, mut next)) = self.at(index) else {
                break;
            };
            match run.release(&mut next) {
                Ok(Flow::Continue) => {}
                Ok(Flow::Full) => {
                    self.paused = true;
                    return Ok(Flow::Full);
                }
                Ok(Flow::Stop) => {
                    self.stop(index);
                    return Ok(Flow::Stop);
                }
                Err(error) => {
                    self.fail(error, index)?;
                    return Ok(Flow::Full);
                }
            }
        }
        match self.output.is_empty() {
            true => Ok(Flow::Continue),
            false => Ok(Flow::Full),
        }
    }

    /// The stages of its pipeline with the counters of each, as `explain` shows them.
    pub fn explain<'s>(
        &self,
        stages: impl Iterator<Item = &'s Arc<dyn Stage>>,
        milliseconds: u64,
    ) -> Vec<RawDocumentBuf> {
        let stages = stages.zip(&self.runs).enumerate();
        let explained = stages.map(|(index, (stage, placed))| {
            let mut writer = DocumentWriter::new();
            stage.serialize(&mut writer);
            placed.run.explain(&mut writer);
            let following = self.runs.get(index + 1);
            let returned = following.map_or(self.output.received, |following| following.received);
            append_count(&mut writer, "nReturned", returned);
            append_count(&mut writer, "executionTimeMillisEstimate", milliseconds);
            writer.finish()
        });
        explained.collect()
    }

    /// Takes everything that is there to be taken; how many results that were.
    pub fn discard(&mut self) -> Result<u64, QueryError> {
        let mut count = 0;
        while self.pop()?.is_some() {
            count += 1;
        }
        Ok(count)
    }

    /// A run, and those after it.
    fn at(&mut self, index: usize) -> Option<(&mut Box<dyn StageRun>, Next<'_>)> {
        let (placed, rest) = self.runs.get_mut(index..)?.split_first_mut()?;
        let next = Next {
            runs: rest,
            output: &mut self.output,
            budget: &self.budget,
        };
        Some((&mut placed.run, next))
    }

    /// The runs from one on.
    fn after(&mut self, index: usize) -> Next<'_> {
        Next {
            runs: self.runs.get_mut(index..).unwrap_or_default(),
            output: &mut self.output,
            budget: &self.budget,
        }
    }
}

/// An execution over an iterator, itself an iterator of results.
pub struct Run<I, E = QueryError> {
    execution: Execution,
    input: Option<I>,
    /// What the input has failed with, while the execution may have results of what came before.
    failure: Option<E>,
    failed: bool,
}

impl<I, E> Run<I, E> {
    /// What it reads; `None` once that has ended.
    pub fn input_mut(&mut self) -> Option<&mut I> {
        self.input.as_mut()
    }

    /// As [`Run::input_mut`].
    pub fn input(&self) -> Option<&I> {
        self.input.as_ref()
    }

    /// Puts another input in the place of what is left of this one.
    pub fn replace_input(&mut self, other: impl FnOnce(I) -> I) {
        self.input = self.input.take().map(other);
    }

    /// Takes over what executions of the first stages have seen of all of the input, in its order.
    pub fn gather(&mut self, parts: Vec<Execution>) -> Result<(), QueryError> {
        self.input = None;
        parts
            .into_iter()
            .try_for_each(|part| self.execution.absorb(part))
    }

    /// Has the first stages hand on what they keep until more comes, and takes the results of that. The
    /// input is to have passed so many stages elsewhere from now on.
    pub fn skip_stages(
        &mut self,
        stages: usize,
        mut take: impl FnMut(RawDocumentBuf),
    ) -> Result<(), QueryError> {
        loop {
            let flow = self.execution.release()?;
            while let Some(document) = self.execution.pop()? {
                take(document);
            }
            match flow {
                Flow::Full => {}
                Flow::Continue => break,
                Flow::Stop => {
                    self.input = None;
                    break;
                }
            }
        }
        self.execution.skip_stages(stages);
        self.execution.forget_skipped();
        Ok(())
    }

    pub(super) fn new(execution: Execution, input: I) -> Run<I, E> {
        Run {
            execution,
            input: Some(input),
            failure: None,
            failed: false,
        }
    }
}

impl<I, D, E> Run<I, E>
where
    I: Iterator<Item = Result<D, E>>,
    D: AsRef<RawDocument>,
    E: From<QueryError>,
{
    /// Takes one step; false when everything is done.
    fn advance(&mut self) -> Result<bool, E> {
        if self.failure.is_some() {
            return self.fail();
        }
        let Some(input) = &mut self.input else {
            return Ok(self.execution.drain()?);
        };
        let flow = match input.next() {
            Some(Ok(document)) => self.execution.push(document.as_ref())?,
            Some(Err(error)) => {
                self.failure = Some(error);
                return self.fail();
            }
            None => Flow::Stop,
        };
        if flow == Flow::Stop {
            self.input = None;
        }
        Ok(true)
    }

    /// Has the execution come to an end with what it was given before the input failed, and then fails
    /// as that has; true as long as there may be results.
    fn fail(&mut self) -> Result<bool, E> {
        match self.execution.release()? {
            Flow::Full => Ok(true),
            Flow::Stop => {
                self.failure = None;
                self.input = None;
                Ok(true)
            }
            Flow::Continue => self.failure.take().map_or(Ok(true), Err),
        }
    }
}

impl<I, D, E> Iterator for Run<I, E>
where
    I: Iterator<Item = Result<D, E>>,
    D: AsRef<RawDocument>,
    E: From<QueryError>,
{
    type Item = Result<RawDocumentBuf, E>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if self.failed {
                return None;
            }
            let advanced = match self.execution.pop() {
                Ok(Some(document)) => return Some(Ok(document)),
                Ok(None) => self.advance(),
                Err(error) => Err(error.into()),
            };
            match advanced {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => {
                    self.failed = true;
                    return Some(Err(error));
                }
            }
        }
    }
}
