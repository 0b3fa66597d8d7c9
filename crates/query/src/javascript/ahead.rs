//! Scripts of several documents in one request.
//!
//! Something is worked out for each of several documents: an expression, a condition. Where it comes
//! to a script whose answer is not known, it is given up, the request noted, and the next document
//! taken. All that was noted is sent at once, and what was given up begun anew with the answers at hand.
//! So a script is run for no document, and with no arguments, for which it would not be run one by
//! one, wherever in an expression it stands; and the first document that fails is the first that would.

use std::cell::RefCell;
use std::sync::Arc;

use bson::RawBson;

use super::{Call, Input, Script, defined};
use crate::error::{ErrorKind, QueryError};

/// So many bytes are sent at once, except for a request that is larger alone.
const REQUEST_BYTES_MAX: usize = 1 << 20;
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
    known: Vec<Known>,
    /// How many of them have been asked again.
    used: usize,
    /// What has yet to be run.
    asked: Option<Call>,
    /// What is not known is run at once.
    alone: bool,
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
            return None;
        }
        if self.asked.is_none() {
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
}

/// Whether the attempt that is being made on this thread has come to a script that is yet to be run.
pub(crate) fn is_waiting() -> bool {
    NOTES.with_borrow(|notes| notes.as_ref().is_some_and(|notes| notes.asked.is_some()))
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

/// Whether all has been done that was to be done at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    Whole,
    /// The scripts took long: not all of them were run.
    CutShort,
}

impl<T> Attempt<T> {
    /// What has come of it, if it is done.
    pub fn take(&mut self) -> Option<Result<T, QueryError>> {
        self.outcome.take()
    }

    fn begin<D: Copy>(&mut self, document: D, work: &mut impl Work<D, T>) {
        if self.notes.asked.is_some() {
            return;
        }
        self.notes.used = 0;
        let is_first = self.notes.known.is_empty() && !self.notes.alone;
        let outcome = {
            let _noting = Noting::new(&mut self.notes);
            let asked = match is_first {
                true => work.ask(document),
                false => Ok(()),
            };
            asked.and_then(|()| work.work_out(document))
        };
        if self.notes.asked.is_none() {
            self.notes.known = Vec::new();
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

/// Goes on with those attempts that are not done, each for its document. What all of them ask scripts
/// is sent in one request. Nothing is begun behind an attempt that has failed.
pub fn go_on<'t, D: Copy, T: 't>(
    attempts: impl IntoIterator<Item = (D, &'t mut Attempt<T>)>,
    work: &mut impl Work<D, T>,
) -> Round {
    let mut asking = Vec::new();
    let mut bytes = 0;
    for (document, attempt) in attempts {
        if attempt.outcome.is_none() {
            attempt.begin(document, work);
        }
        if matches!(attempt.outcome, Some(Err(_))) {
            break;
        }
        if let Some(asked) = &attempt.notes.asked {
            bytes += asked.byte_len();
            asking.push(attempt);
            if bytes > REQUEST_BYTES_MAX {
                break;
            }
        }
    }
    ask(asking)
}

/// Works something out for all of the documents, their scripts together. What the first fails with is
/// the error.
pub fn for_all<D: Copy, T>(
    documents: &[D],
    mut work: impl FnMut(D) -> Result<T, QueryError>,
) -> Result<Vec<T>, QueryError> {
    let mut attempts: Vec<Attempt<T>> = Vec::new();
    attempts.resize_with(documents.len(), Attempt::default);
    let mut found = Vec::with_capacity(documents.len());
    while found.len() < documents.len() {
        let all = documents.iter().copied().zip(&mut attempts);
        go_on(all.skip(found.len()), &mut work);
        while let Some(done) = attempts.get_mut(found.len()).and_then(Attempt::take) {
            found.push(done?);
        }
    }
    Ok(found)
}

fn ask<T>(mut asking: Vec<&mut Attempt<T>>) -> Round {
    let calls = asking.iter().filter_map(|one| one.notes.asked.as_ref());
    let calls: Vec<&Call> = calls.collect();
    let Some(first) = calls.first() else {
        return Round::Whole;
    };
    // All of them are of one query, which has one engine.
    let answers = first
        .script()
        .engine()
        .and_then(|engine| engine.run_each(&calls));
    let sent = calls.len();
    match answers {
        Ok(answers) if !answers.values.is_empty() || answers.failure.is_some() => {
            let values = answers.values.into_iter().map(Ok);
            let known = values.chain(answers.failure.map(Err));
            let mut count = 0;
            for (attempt, answer) in asking.iter_mut().zip(known) {
                attempt.notes.learn(answer);
                count += 1;
            }
            match count < sent {
                true => Round::CutShort,
                false => Round::Whole,
            }
        }
        // One of them may have taken the host with it, before which others have nothing to fear.
        Ok(_) => run_alone(asking),
        Err(error) if sent > 1 && is_of_one(&error) => run_alone(asking),
        Err(error) => {
            if let Some(first) = asking.first_mut() {
                first.notes.asked = None;
                first.outcome = Some(Err(error));
            }
            Round::Whole
        }
    }
}

/// From now on their scripts are run one by one.
fn run_alone<T>(asking: Vec<&mut Attempt<T>>) -> Round {
    for attempt in asking {
        attempt.notes.asked = None;
        attempt.notes.alone = true;
    }
    Round::Whole
}

/// Whether it is one script's failure, and not the end of the whole query.
fn is_of_one(error: &QueryError) -> bool {
    matches!(
        error.kind,
        ErrorKind::JsInterpreterFailure | ErrorKind::ExceededMemoryLimit
    )
}
