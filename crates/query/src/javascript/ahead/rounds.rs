//! Attempts for many documents, whose calls are made together.
//!
//! While the engine makes the calls of some, the next ones are attempted, and the attempts are
//! finished of those before whose answers are there.

use std::cell::OnceCell;
use std::ops::Range;
use std::sync::Arc;

use super::{Attempt, Work};
use crate::error::{ErrorKind, QueryError};
use crate::javascript::{Call, JavaScript, Running};

/// The calls for so many documents are sent at once, and so many bytes, except for a call that is larger
/// alone.
const SENT_DOCUMENTS: usize = 256;
const SENT_BYTES: usize = 1 << 20;

/// Whether all has been done that was to be done at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    Whole,
    /// The scripts took long: not all of them were run.
    CutShort,
}

/// Goes on with those attempts that are not done, each for its document, until each has been told what
/// it has asked. Nothing is begun behind an attempt that has failed.
pub fn go_on<'t, D: Copy, T: 't>(
    attempts: impl IntoIterator<Item = (D, &'t mut Attempt<T>)>,
    work: &mut impl Work<D, T>,
) -> Round {
    let mut attempts = Attempts {
        all: attempts.into_iter().collect(),
        work,
    };
    let engine = OnceCell::new();
    let mut sent: Option<Sent<'_>> = None;
    let (mut at, mut round) = (0, Round::Whole);
    loop {
        let next = attempts.make_next(at, sent.is_some());
        at = next.range.end;
        let before = sent.take();
        let told = before.as_ref().map(|sent| sent.range.clone());
        round = before.map_or(round, |sent| attempts.learn(sent));
        if round == Round::CutShort {
            return round;
        }
        sent = attempts.send(next.range.clone(), &engine);
        let again = told.map(|range| attempts.make(range, usize::MAX, sent.is_some()));
        let has_failed = next.has_failed || again.is_some_and(|again| again.has_failed);
        if has_failed || at == attempts.all.len() {
            return sent.map_or(round, |sent| attempts.learn(sent));
        }
    }
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

struct Attempts<'a, 't, D, T, W> {
    all: Vec<(D, &'t mut Attempt<T>)>,
    work: &'a mut W,
}

/// Attempts that were made.
struct Made {
    range: Range<usize>,
    /// Whether the last of them has failed.
    has_failed: bool,
}

/// Calls that the engine makes for some of the attempts.
struct Sent<'e> {
    range: Range<usize>,
    count: usize,
    running: Result<Box<dyn Running + 'e>, QueryError>,
}

impl<D: Copy, T, W: Work<D, T>> Attempts<'_, '_, D, T, W> {
    /// Makes the attempts from one on whose calls are sent together.
    fn make_next(&mut self, start: usize, is_engine_busy: bool) -> Made {
        let end = self.all.len().min(start + SENT_DOCUMENTS);
        self.make(start..end, SENT_BYTES, is_engine_busy)
    }

    /// Makes attempts up to one that fails, or until they ask for so many bytes.
    fn make(&mut self, range: Range<usize>, bytes_max: usize, is_engine_busy: bool) -> Made {
        let (start, mut bytes) = (range.start, 0);
        for at in range.clone() {
            let Some((document, attempt)) = self.all.get_mut(at) else {
                break;
            };
            if attempt.outcome.is_none() {
                attempt.make(*document, self.work, is_engine_busy);
            }
            let has_failed = matches!(attempt.outcome, Some(Err(_)));
            let asked = attempt.notes.asked.as_ref();
            bytes += asked.map_or(0, Call::byte_len);
            if has_failed || bytes > bytes_max {
                let range = start..at + 1;
                return Made { range, has_failed };
            }
        }
        Made {
            range,
            has_failed: false,
        }
    }

    /// Those of them that ask for something.
    fn asking(&mut self, range: Range<usize>) -> impl Iterator<Item = &mut Attempt<T>> {
        let attempts = self.all.get_mut(range).into_iter().flatten();
        let asking = attempts.filter(|(_, attempt)| attempt.notes.asked.is_some());
        asking.map(|(_, attempt)| &mut **attempt)
    }

    /// Has the engine begin with what they ask for. All of them are of one query, which has one engine.
    fn send<'e>(
        &self,
        range: Range<usize>,
        engine: &'e OnceCell<Arc<dyn JavaScript>>,
    ) -> Option<Sent<'e>> {
        let attempts = self.all.get(range.clone())?.iter();
        let calls = attempts.filter_map(|(_, attempt)| attempt.notes.asked.as_ref());
        let calls: Vec<&Call> = calls.collect();
        let known = match (engine.get(), calls.first()?.script().engine()) {
            (Some(known), _) => Ok(known),
            (None, Ok(first)) => Ok(engine.get_or_init(|| first.clone())),
            (None, Err(error)) => Err(error),
        };
        Some(Sent {
            range,
            count: calls.len(),
            running: known.and_then(|engine| engine.begin_each(&calls)),
        })
    }

    /// Tells them what their calls have come to.
    fn learn(&mut self, sent: Sent<'_>) -> Round {
        let Sent { range, count, .. } = sent;
        match sent.running.and_then(|running| running.finish()) {
            Ok(answers) if !answers.values.is_empty() || answers.failure.is_some() => {
                let values = answers.values.into_iter().map(Ok);
                let known = values.chain(answers.failure.map(Err));
                let mut told = 0;
                for (attempt, answer) in self.asking(range).zip(known) {
                    attempt.notes.learn(answer);
                    told += 1;
                }
                match told < count {
                    true => Round::CutShort,
                    false => Round::Whole,
                }
            }
            // One of them may have taken the host with it, before which others have nothing to fear.
            Ok(_) => self.run_alone(range),
            Err(error) if count > 1 && is_of_one(&error) => self.run_alone(range),
            Err(error) => {
                if let Some(first) = self.asking(range).next() {
                    first.notes.asked = None;
                    first.outcome = Some(Err(error));
                }
                Round::Whole
            }
        }
    }

    /// From now on their scripts are run one by one.
    fn run_alone(&mut self, range: Range<usize>) -> Round {
        for attempt in self.asking(range) {
            attempt.notes.asked = None;
            attempt.notes.alone = true;
        }
        Round::Whole
    }
}

/// Whether it is one script's failure, and not the end of the whole query.
fn is_of_one(error: &QueryError) -> bool {
    matches!(
        error.kind,
        ErrorKind::JsInterpreterFailure | ErrorKind::ExceededMemoryLimit
    )
}
