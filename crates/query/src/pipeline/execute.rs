//! Running a pipeline: documents are pushed in, results are popped out.

use std::collections::VecDeque;
use std::sync::Arc;

use banyan_document::{COMMAND_SLACK_BYTES, MAX_DOCUMENT_BYTES};
use bson::{RawDocument, RawDocumentBuf};

use super::dependencies::Dependencies;
use super::lookup::Sources;
use super::stage::Stage;
use crate::error::{ErrorKind, QueryError};

/// A result is no document that a user stores: something may be told about the largest of those.
const RESULT_BYTES_MAX: usize = MAX_DOCUMENT_BYTES + COMMAND_SLACK_BYTES;

/// Whether a step wants more documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    Continue,
    /// Nothing that comes after this can change the result: stop reading.
    Stop,
}

/// Whether a step that held documents back has handed them all on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drained {
    More,
    Done,
}

/// A stage at work.
pub(super) trait Step: Send {
    fn push(&mut self, document: &RawDocument, next: &mut Next<'_>) -> Result<Flow, QueryError>;

    /// Called repeatedly once the input has ended, to hand on some of what was held back.
    fn drain(&mut self, _: &mut Next<'_>) -> Result<Drained, QueryError> {
        Ok(Drained::Done)
    }
}

/// The steps after the one that is running.
pub(super) struct Next<'s> {
    steps: &'s mut [Box<dyn Step>],
    output: &'s mut VecDeque<RawDocumentBuf>,
}

impl Next<'_> {
    pub(super) fn push(&mut self, document: &RawDocument) -> Result<Flow, QueryError> {
        match self.steps.split_first_mut() {
            Some((step, rest)) => step.push(
                document,
                &mut Next {
                    steps: rest,
                    output: self.output,
                },
            ),
            None => {
                let bytes = document.as_bytes().len();
                if bytes > RESULT_BYTES_MAX {
                    return Err(QueryError::new(
                        ErrorKind::BsonObjectTooLarge,
                        format!(
                            "BSONObj size: {bytes} ({bytes:#X}) is invalid. Size must be between 0 \
                             and {RESULT_BYTES_MAX}(16MB)"
                        ),
                    ));
                }
                self.output.push_back(document.to_owned());
                Ok(Flow::Continue)
            }
        }
    }
}

pub struct Execution {
    steps: Vec<Box<dyn Step>>,
    output: VecDeque<RawDocumentBuf>,
    /// The step being drained; those before it have nothing left.
    draining: usize,
}

impl Execution {
    pub(super) fn new(
        stages: &[Stage],
        sources: Option<Arc<dyn Sources>>,
    ) -> Result<Execution, QueryError> {
        let mut steps = Vec::with_capacity(stages.len());
        for (index, stage) in stages.iter().enumerate() {
            let needed = Dependencies::of(&stages[index + 1..]);
            steps.extend(stage.step(needed, sources.as_ref())?);
        }
        Ok(Execution {
            steps,
            output: VecDeque::new(),
            draining: 0,
        })
    }

    /// One input document. After `Flow::Stop` no more need be pushed.
    pub fn push(&mut self, document: &RawDocument) -> Result<Flow, QueryError> {
        Next {
            steps: &mut self.steps,
            output: &mut self.output,
        }
        .push(document)
    }

    /// Call it when the input has ended, until it returns false; results may be popped between
    /// the calls.
    pub fn drain(&mut self) -> Result<bool, QueryError> {
        let Some((step, rest)) = self
            .steps
            .get_mut(self.draining..)
            .and_then(<[_]>::split_first_mut)
        else {
            return Ok(false);
        };
        let drained = step.drain(&mut Next {
            steps: rest,
            output: &mut self.output,
        })?;
        if drained == Drained::Done {
            self.draining += 1;
        }
        Ok(true)
    }

    pub fn pop(&mut self) -> Option<RawDocumentBuf> {
        self.output.pop_front()
    }
}

/// An execution over an iterator, itself an iterator of results.
pub struct Run<I> {
    execution: Execution,
    input: Option<I>,
    failed: bool,
}

impl<I> Run<I> {
    pub(super) fn new(execution: Execution, input: I) -> Run<I> {
        Run {
            execution,
            input: Some(input),
            failed: false,
        }
    }
}

impl<I, D, E> Run<I>
where
    I: Iterator<Item = Result<D, E>>,
    D: AsRef<RawDocument>,
    E: From<QueryError>,
{
    /// Takes one step; false when everything is done.
    fn advance(&mut self) -> Result<bool, E> {
        let Some(input) = &mut self.input else {
            return Ok(self.execution.drain()?);
        };
        let flow = match input.next() {
            Some(document) => self.execution.push(document?.as_ref())?,
            None => Flow::Stop,
        };
        if flow == Flow::Stop {
            self.input = None;
        }
        Ok(true)
    }
}

impl<I, D, E> Iterator for Run<I>
where
    I: Iterator<Item = Result<D, E>>,
    D: AsRef<RawDocument>,
    E: From<QueryError>,
{
    type Item = Result<RawDocumentBuf, E>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(document) = self.execution.pop() {
                return Some(Ok(document));
            }
            if self.failed {
                return None;
            }
            match self.advance() {
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
