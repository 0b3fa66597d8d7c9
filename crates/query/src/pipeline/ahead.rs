//! Runs that call scripts: they keep documents until there are several, whose scripts go to the engine
//! together ([`ahead`]).
//!
//! The first documents are not kept waiting, and the more have come, the more wait for each other: who
//! wants a few results causes little work beyond them. What fails is told when its turn has come, and
//! not if nobody goes on to it.

use std::any::Any;
use std::collections::VecDeque;

use bson::{RawDocument, RawDocumentBuf};

use banyan_document::DocumentWriter;

use super::stage_run::{Drained, Flow, Next, StageRun, Start, not_alike};
use crate::budget::Budget;
use crate::error::QueryError;
use crate::javascript::ahead::{self, Attempt, Round, Work};

/// So many documents wait for each other at most, and so many bytes of them, except for one that is
/// larger alone.
const DOCUMENTS_MAX: usize = 1024;
const BYTES_MAX: usize = 1 << 20;

/// A run that works something out for each document before it does anything with it, of which it keeps
/// nothing back.
pub(super) trait Scripted: StageRun {
    type Found: Send;

    /// Comes to the first script whose answer is not known, if it is cheaper to come there so.
    fn ask(&mut self, _document: &RawDocument) -> Result<(), QueryError> {
        Ok(())
    }

    fn work_out(&mut self, document: &RawDocument) -> Result<Self::Found, QueryError>;

    /// What is done with a document once that is known.
    fn hand_on(
        &mut self,
        document: &RawDocument,
        found: Self::Found,
        next: &mut Next<'_>,
    ) -> Result<Flow, QueryError>;
}

/// What is worked out for a run.
struct ForRun<'r, R>(&'r mut R);

impl<R: Scripted> Work<&RawDocumentBuf, R::Found> for ForRun<'_, R> {
    fn ask(&mut self, document: &RawDocumentBuf) -> Result<(), QueryError> {
        self.0.ask(document)
    }

    fn work_out(&mut self, document: &RawDocumentBuf) -> Result<R::Found, QueryError> {
        self.0.work_out(document)
    }
}

struct Waiting<F> {
    document: RawDocumentBuf,
    attempt: Attempt<F>,
}

pub(super) struct Ahead<R: Scripted> {
    run: R,
    waiting: VecDeque<Waiting<R::Found>>,
    bytes: usize,
    /// How many wait for each other now.
    most: usize,
    /// All that wait are being handed on, and the results were full.
    is_handing_on: bool,
}

impl<R: Scripted> Ahead<R> {
    /// The run; `calls_script`: one that keeps documents, which the start allows.
    pub fn of(run: R, calls_script: bool, start: &Start<'_>) -> Box<dyn StageRun> {
        if !calls_script {
            return Box::new(run);
        }
        Box::new(Ahead {
            run,
            waiting: VecDeque::new(),
            bytes: 0,
            // All of a part is wanted.
            most: start.together().map_or(1, |_| DOCUMENTS_MAX),
            is_handing_on: false,
        })
    }

    /// Hands on all that wait.
    fn hand_on(&mut self, next: &mut Next<'_>) -> Result<Flow, QueryError> {
        let flow = self.hand_on_waiting(next)?;
        self.is_handing_on = flow == Flow::Full;
        Ok(flow)
    }

    fn hand_on_waiting(&mut self, next: &mut Next<'_>) -> Result<Flow, QueryError> {
        let mut round = Round::Whole;
        loop {
            let mut is_known = false;
            while let Some(first) = self.waiting.front_mut()
                && let Some(found) = first.attempt.take()
            {
                let Some(first) = self.waiting.pop_front() else {
                    break;
                };
                is_known = true;
                self.bytes -= first.document.as_bytes().len();
                match self.run.hand_on(&first.document, found?, next)? {
                    Flow::Continue => {}
                    Flow::Full => return Ok(Flow::Full),
                    Flow::Stop => {
                        self.waiting.clear();
                        self.bytes = 0;
                        return Ok(Flow::Stop);
                    }
                }
            }
            if self.waiting.is_empty() {
                return Ok(Flow::Continue);
            }
            if is_known && round == Round::CutShort {
                return Ok(next.pause());
            }
            let waiting = self.waiting.iter_mut();
            let attempts = waiting.map(|one| (&one.document, &mut one.attempt));
            round = ahead::go_on(attempts, &mut ForRun(&mut self.run));
        }
    }
}

impl<R: Scripted> StageRun for Ahead<R> {
    fn push(&mut self, document: &RawDocument, next: &mut Next<'_>) -> Result<Flow, QueryError> {
        self.bytes += document.as_bytes().len();
        self.waiting.push_back(Waiting {
            document: document.to_owned(),
            attempt: Attempt::default(),
        });
        if self.waiting.len() < self.most && self.bytes < BYTES_MAX {
            return Ok(Flow::Continue);
        }
        self.most = (2 * self.most).min(DOCUMENTS_MAX);
        self.hand_on(next)
    }

    fn resume(&mut self, next: &mut Next<'_>) -> Result<Flow, QueryError> {
        match self.is_handing_on {
            true => self.hand_on(next),
            false => Ok(Flow::Continue),
        }
    }

    fn release(&mut self, next: &mut Next<'_>) -> Result<Flow, QueryError> {
        self.hand_on(next)
    }

    fn looks_ahead(&self) -> bool {
        !self.waiting.is_empty()
    }

    fn drain(&mut self, next: &mut Next<'_>) -> Result<Drained, QueryError> {
        match self.hand_on(next)? {
            Flow::Continue => self.run.drain(next),
            Flow::Full => Ok(Drained::More),
            Flow::Stop => Ok(Drained::Done),
        }
    }

    fn absorb(&mut self, later: Box<dyn StageRun>, budget: &Budget) -> Result<(), QueryError> {
        let later: Box<dyn Any> = later;
        match later.downcast::<Ahead<R>>() {
            Ok(later) => self.run.absorb(Box::new(later.run), budget),
            Err(_) => Err(not_alike()),
        }
    }

    fn begin(&mut self, part: u64) -> bool {
        self.waiting.is_empty() && self.run.begin(part)
    }

    fn seal(&mut self) -> Result<(), QueryError> {
        self.run.seal()
    }

    fn explain(&self, out: &mut DocumentWriter) {
        self.run.explain(out);
    }
}
