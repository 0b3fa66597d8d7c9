//! Scripts of several documents in one request.
//!
//! Something is worked out for each of several documents: an expression, a condition. Where it comes
//! to a script whose answer is not known, it is given up, the request noted, and the next document
//! taken. All that was noted is sent at once, and what was given up begun anew with the answers at hand.
//! So a script is run for no document, and with no arguments, for which it would not be run one by
//! one, wherever in an expression it stands; and the first document that fails is the first that would.

mod rounds;

pub use rounds::{Round, for_all, go_on};

use std::cell::RefCell;
use std::sync::Arc;

use bson::RawBson;
use smallvec::SmallVec;

use super::{Call, Input, Script, defined};
use crate::error::{ErrorKind, QueryError};

/// Of one document so many scripts are run ahead. Each is a round in which everything before it is
/// worked out once more.
const SCRIPTS_MAX: usize = 16;

thread_local! {
    /// Those of the document that something is being worked out for on this thread.
    static NOTES: RefCell<Option<Notes>> = const { RefCell::new(None) };
}

/// What the scripts of one document have been asked, in that order, and what they have come to.
#[derive(Debug, Default)]
struct Notes {
    known: SmallVec<[Known; 1]>,
    /// How many of them have been asked again.
    used: usize,
    /// What has yet to be run.
    asked: Option<Call>,
    /// What is not known is run at once.
    alone: bool,
    /// The engine makes other calls: nothing can be run at once.
    is_engine_busy: bool,
    /// Something would have been.
    is_postponed: bool,
}

#[derive(Debug)]
struct Known {
    call: Call,
    answer: Result<RawBson, QueryError>,
}

/// What a script comes to. In an [`Attempt`] it may fail because that is not known yet.
pub(crate) fn run(script: &Arc<Script>, input: Input<'_>) -> Result<RawBson, QueryError> {
    defined(answer(script, input))
}

/// The same with undefined as it is.
pub(crate) fn answer(script: &Arc<Script>, input: Input<'_>) -> Result<RawBson, QueryError> {
    let engine = script.engine()?;
    let known = NOTES.with_borrow_mut(|notes| notes.as_mut()?.answer(script, input));
    known.unwrap_or_else(|| engine.run(&script.request(input)))
}

impl Notes {
    /// What is known of a call, or that it is not yet. `None`: it is to be made at once.
    fn answer(
        &mut self,
        script: &Arc<Script>,
        input: Input<'_>,
    ) -> Option<Result<RawBson, QueryError>> {
        if let Some(known) = self.known.get(self.used) {
            if known.call.is_of(script, input) {
                self.used += 1;
                return Some(known.answer.clone());
            }
            // Something is worked out another way each time: it is done with this time.
            self.known.truncate(self.used);
            self.alone = true;
        }
        if self.alone || self.used >= SCRIPTS_MAX {
            if !self.is_engine_busy {
                return None;
            }
            self.alone = true;
            self.is_postponed = true;
        } else if self.asked.is_none() {
            self.asked = Some(Call::new(script, input));
        }
        // Nobody is told; a message would only take time.
        Some(Err(QueryError::new(ErrorKind::InternalError, "")))
    }

    fn learn(&mut self, answer: Result<RawBson, QueryError>) {
        if let Some(call) = self.asked.take() {
            self.known.push(Known { call, answer });
        }
    }

    fn is_waiting(&self) -> bool {
        self.asked.is_some() || self.is_postponed
    }
}

/// Whether the attempt that is being made on this thread has come to a script that is yet to be run.
pub(crate) fn is_waiting() -> bool {
    NOTES.with_borrow(|notes| notes.as_ref().is_some_and(Notes::is_waiting))
}

/// What is worked out for each of several documents.
pub trait Work<D, T> {
    /// Comes to the first script, if it is cheaper to come there so.
    fn ask(&mut self, _document: D) -> Result<(), QueryError> {
        Ok(())
    }

    fn work_out(&mut self, document: D) -> Result<T, QueryError>;
}

impl<D, T, F: FnMut(D) -> Result<T, QueryError>> Work<D, T> for F {
    fn work_out(&mut self, document: D) -> Result<T, QueryError> {
        self(document)
    }
}

/// Something that is worked out for one of several documents.
#[derive(Debug)]
pub struct Attempt<T> {
    notes: Notes,
    outcome: Option<Result<T, QueryError>>,
}

impl<T> Default for Attempt<T> {
    fn default() -> Attempt<T> {
        Attempt {
            notes: Notes::default(),
            outcome: None,
        }
    }
}

impl<T> Attempt<T> {
    /// What has come of it, if it is done.
    pub fn take(&mut self) -> Option<Result<T, QueryError>> {
        self.outcome.take()
    }

    /// Makes the attempt, unless it waits for something.
    fn make<D: Copy>(&mut self, document: D, work: &mut impl Work<D, T>, is_engine_busy: bool) {
        let notes = &mut self.notes;
        if notes.asked.is_some() || notes.alone && is_engine_busy {
            return;
        }
        let is_first = notes.known.is_empty() && !notes.alone;
        notes.used = 0;
        notes.is_engine_busy = is_engine_busy;
        notes.is_postponed = false;
        let outcome = {
            let _noting = Noting::new(notes);
            let asked = match is_first {
                true => work.ask(document),
                false => Ok(()),
            };
            asked.and_then(|()| work.work_out(document))
        };
        if !self.notes.is_waiting() {
            self.notes.known.clear();
            self.outcome = Some(outcome);
        }
    }
}

/// Notes in their place, until this ends.
struct Noting<'n> {
    notes: &'n mut Notes,
    before: Option<Notes>,
}

impl<'n> Noting<'n> {
    fn new(notes: &'n mut Notes) -> Noting<'n> {
        let before = NOTES.replace(Some(std::mem::take(notes)));
        Noting { notes, before }
    }
}

impl Drop for Noting<'_> {
    fn drop(&mut self) {
        *self.notes = NOTES.replace(self.before.take()).unwrap_or_default();
    }
}
