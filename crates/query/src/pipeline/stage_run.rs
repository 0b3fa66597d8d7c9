//! A stage at work: what it is given to work with, what it is pushed, and where its results go.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;

use banyan_document::{COMMAND_SLACK_BYTES, DocumentWriter, MAX_DOCUMENT_BYTES};
use bson::{RawDocument, RawDocumentBuf};

use super::dependencies::Dependencies;
use super::foreign::Sources;
use crate::budget::Budget;
use crate::error::{ErrorKind, QueryError};
use crate::memory::Together;
use crate::variables::Variables;

/// A result is no document that a user stores: something may be told about the largest of those.
const RESULT_BYTES_MAX: usize = MAX_DOCUMENT_BYTES + COMMAND_SLACK_BYTES;

/// Results wait here until they are taken; when there are so many, the runs pause.
const OUTPUT_DOCUMENTS: usize = 256;
const OUTPUT_BYTES: usize = 1024 * 1024;

/// Whether a run wants more documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    Continue,
    /// Take the results away before anything else comes: runs that make many documents of one
    /// keep the rest until then.
    Full,
    /// Nothing that comes after this can change the result: stop reading.
    Stop,
}

/// Whether a run that held documents back has handed them all on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    More,
    Done,
}

/// What a stage is set to work with.
pub struct Start<'s> {
    /// The fields that the stages behind it read.
    pub needed: Dependencies,
    pub sources: Option<&'s Arc<dyn Sources>>,
    pub budget: &'s Budget,
    /// The values of the variables of `$lookup` stages around.
    pub variables: &'s Variables,
    pub feeding: Feeding<'s>,
}

/// How the input reaches an execution.
#[derive(Clone, Copy)]
pub enum Feeding<'s> {
    /// As a whole, and each document is worked off before the next one comes.
    OneByOne,
    /// Other executions see the other parts of it, and what their stages hold, all hold together.
    /// Documents may be kept until the part ends.
    InParts(&'s Arc<Together>),
    /// As a whole, and documents may be kept until there are more: whoever pushes them asks for their
    /// release where no more come for now.
    InBatches,
}

impl Start<'_> {
    /// Whether documents may be kept until there are more.
    pub fn may_keep(&self) -> bool {
        !matches!(self.feeding, Feeding::OneByOne)
    }

    pub fn together(&self) -> Option<&Arc<Together>> {
        match self.feeding {
            Feeding::InParts(together) => Some(together),
            Feeding::OneByOne | Feeding::InBatches => None,
        }
    }
}

/// A stage at work.
pub trait StageRun: Any + Send {
    /// Takes a document. One that hands on several for it stops at [`Flow::Full`], keeps the
    /// rest for `resume`, and returns what it was told.
    fn push(&mut self, document: &RawDocument, next: &mut Next<'_>) -> Result<Flow, QueryError>;

    /// Hands on what was kept when the results were full.
    fn resume(&mut self, _: &mut Next<'_>) -> Result<Flow, QueryError> {
        Ok(Flow::Continue)
    }

    /// Takes over what another run of the same stage has gathered of the documents that come after
    /// those that it has seen itself. Asked of stages that gather ([`Stage::gathers`]).
    ///
    /// [`Stage::gathers`]: super::Stage::gathers
    fn absorb(&mut self, _: Box<dyn StageRun>, _: &Budget) -> Result<(), QueryError> {
        Ok(())
    }

    /// What comes next is another part of the input: that which begins at `part`, in the order of
    /// the parts. False if it cannot tell them apart, and a run of its own has to see each.
    fn begin(&mut self, _part: u64) -> bool {
        false
    }

    /// No more will come: does what is left to do before it is absorbed.
    fn seal(&mut self) -> Result<(), QueryError> {
        Ok(())
    }

    /// Whether it may keep documents until there are more of them.
    fn looks_ahead(&self) -> bool {
        false
    }

    /// Hands on what it keeps for that reason only. Stops at [`Flow::Full`] as `push` does.
    fn release(&mut self, _: &mut Next<'_>) -> Result<Flow, QueryError> {
        Ok(Flow::Continue)
    }

    /// Called repeatedly once the input has ended, to hand on some of what was held back.
    /// Stops at [`Flow::Full`] as `push` does.
    fn drain(&mut self, _: &mut Next<'_>) -> Result<Drained, QueryError> {
        Ok(Drained::Done)
    }

    /// Adds what `explain` tells of its run beside what all stages tell.
    fn explain(&self, _: &mut DocumentWriter) {}
}

/// What a run is to absorb was none of its stage.
pub(super) fn not_alike() -> QueryError {
    QueryError::new(
        ErrorKind::InternalError,
        "the parts of a pipeline were run as different stages",
    )
}

/// Appends a count as `explain` shows it.
pub(super) fn append_count(out: &mut DocumentWriter, name: &str, count: u64) {
    out.append_i64(name, i64::try_from(count).unwrap_or(i64::MAX));
}

/// A run in its place.
pub(super) struct Placed {
    pub run: Box<dyn StageRun>,
    /// How many documents it was given.
    pub received: u64,
}

/// Hands on what it is given: the stage is somebody else's.
pub(super) struct Pass;

impl StageRun for Pass {
    fn push(&mut self, document: &RawDocument, next: &mut Next<'_>) -> Result<Flow, QueryError> {
        next.push(document)
    }
}

/// Results that nobody has taken yet.
#[derive(Default)]
pub(super) struct Results {
    documents: VecDeque<RawDocumentBuf>,
    bytes: usize,
    /// How many there were in all.
    pub received: u64,
    /// They are to be taken although there is room for more.
    pause: bool,
    /// How many runs there are behind the one that has failed.
    pub behind_failed: Option<usize>,
}

impl Results {
    fn push(&mut self, document: &RawDocument) {
        self.bytes += document.as_bytes().len();
        self.received += 1;
        self.documents.push_back(document.to_owned());
    }

    pub fn pop(&mut self) -> Option<RawDocumentBuf> {
        let document = self.documents.pop_front()?;
        self.bytes -= document.as_bytes().len();
        Some(document)
    }

    pub fn is_empty(&self) -> bool {
        self.documents.is_empty()
    }

    /// Goes on after a pause.
    pub fn go_on(&mut self) {
        self.pause = false;
    }

    pub fn flow(&self) -> Flow {
        let is_full = self.documents.len() >= OUTPUT_DOCUMENTS || self.bytes >= OUTPUT_BYTES;
        match is_full || self.pause {
            true => Flow::Full,
            false => Flow::Continue,
        }
    }
}

/// The runs after the one that is running.
pub struct Next<'s> {
    pub(super) runs: &'s mut [Placed],
    pub(super) output: &'s mut Results,
    pub budget: &'s Budget,
}

impl Next<'_> {
    /// Has the results taken away before anything else comes: what comes takes long.
    pub(super) fn pause(&mut self) -> Flow {
        self.output.pause = true;
        Flow::Full
    }

    pub fn push(&mut self, document: &RawDocument) -> Result<Flow, QueryError> {
        let bytes = document.as_bytes().len();
        self.budget.spend_bytes(bytes)?;
        match self.runs.split_first_mut() {
            Some((placed, rest)) => {
                placed.received += 1;
                let next = &mut Next {
                    runs: rest,
                    output: self.output,
                    budget: self.budget,
                };
                let pushed = placed.run.push(document, next);
                if pushed.is_err() {
                    let behind = next.runs.len();
                    self.output.behind_failed.get_or_insert(behind);
                }
                pushed
            }
            None => {
                if bytes > RESULT_BYTES_MAX {
                    return Err(QueryError::new(
                        ErrorKind::BsonObjectTooLarge,
                        format!(
                            "BSONObj size: {bytes} ({bytes:#X}) is invalid. Size must be between 0 \
                             and {RESULT_BYTES_MAX}(16MB)"
                        ),
                    ));
                }
                self.output.push(document);
                Ok(self.output.flow())
            }
        }
    }
}
