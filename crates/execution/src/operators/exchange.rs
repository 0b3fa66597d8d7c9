//! An exchange: hands on what the scan below it finds, in its order. Where that looks at much and
//! finds little, the rest is read on all cores, window after window, each somewhat ahead of what is
//! asked for. Nothing runs between two calls.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use banyan_query::{ErrorKind, QueryError};
use bson::RawDocumentBuf;

use super::{Member, Operator, Progress, Run, Stage, pass_on};
use crate::parallel::{self, Sink, Workers};
use crate::shares::{MORSEL, Share, Shares};

/// One thread looks at so many documents before others join.
const LOOKED_AT_MIN: u64 = 4096;
/// Of so many documents that are looked at, no more than one is found.
const LOOKED_AT_PER_FOUND: u64 = 16;
/// So many records are in a window at least and at most: as many as were looked at before.
const WINDOW_MIN: u64 = 8 * MORSEL;
const WINDOW_MAX: u64 = 256 * MORSEL;
/// What is found ahead takes up no more than about so many bytes.
const AHEAD_BYTES: usize = 4 * 1024 * 1024;

#[derive(Default)]
pub struct Exchange {
    /// What was found and what is still to be read, in order, once it is read on all cores.
    segments: Option<VecDeque<Segment>>,
    /// Documents that were looked at, and those of them that were found.
    looked_at: u64,
    found: u64,
    window: u64,
    workers: Workers,
}

enum Segment {
    Found(VecDeque<Member>),
    /// From one record up to another.
    Unread(u64, u64),
}

/// What is found in one share of a window.
struct Ahead {
    members: VecDeque<Member>,
    /// Of all shares of the window.
    bytes: Arc<AtomicUsize>,
}

impl Sink for Ahead {
    fn take(&mut self, member: Member) -> Result<(), QueryError> {
        let bytes = size_of::<Member>() + member.bytes();
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.members.push_back(member);
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) >= AHEAD_BYTES
    }
}

impl Exchange {
    /// Whether what is left is to be read on all cores; decided once so many documents were looked
    /// at.
    fn divides(&mut self, inputs: &mut [Stage], run: &Run<'_>) -> Result<bool, QueryError> {
        if self.segments.is_some() {
            return Ok(true);
        }
        let finds_little = self.found.saturating_mul(LOOKED_AT_PER_FOUND) <= self.looked_at;
        if !run.is_unbounded || self.looked_at < LOOKED_AT_MIN || !finds_little {
            return Ok(false);
        }
        let shares = match inputs.first_mut().filter(|_| parallel::workers() > 1) {
            Some(input) => input.shares(run.snapshot)?,
            None => None,
        };
        let rest = shares.map(|shares| shares.unread());
        let Some(&[(start, end)]) = rest.as_deref() else {
            // It is asked again when twice as much was looked at.
            self.found = 0;
            self.looked_at = 0;
            return Ok(false);
        };
        self.segments = Some(VecDeque::from([Segment::Unread(start, end)]));
        self.window = self.looked_at;
        Ok(true)
    }

    /// Reads the next window of what is unread, from one record up to another.
    fn read(
        &mut self,
        input: &mut Stage,
        run: &mut Run<'_>,
        (start, end): (u64, u64),
    ) -> Result<(), QueryError> {
        let window = self.window.clamp(WINDOW_MIN, WINDOW_MAX);
        let middle = end.min(start.saturating_add(window));
        let shares = Shares::new(start, middle);
        let bytes = Arc::<AtomicUsize>::default();
        let make = move || {
            Ok(Ahead {
                members: VecDeque::new(),
                bytes: bytes.clone(),
            })
        };
        let (slot, workers) = (run.slot(), &mut self.workers);
        let examined = &mut *run.examined;
        let before = examined.documents;
        let parts = parallel::read(input, &shares, run.snapshot, &slot, examined, workers, make)?;
        let looked_at = examined.documents - before;
        let mut read: Vec<(u64, Segment)> = Vec::new();
        for (start, part) in parts.ok_or_else(undivided)? {
            if !part.members.is_empty() {
                read.push((start, Segment::Found(part.members)));
            }
        }
        let unread = shares.unread();
        let was_full = !unread.is_empty();
        let rest = unread.into_iter().chain([(middle, end)]);
        let rest = rest.filter(|(start, end)| start < end);
        read.extend(rest.map(|(start, end)| (start, Segment::Unread(start, end))));
        read.sort_by_key(|(start, _)| *start);
        let segments = self.segments.get_or_insert_default();
        for (_, segment) in read.into_iter().rev() {
            segments.push_front(segment);
        }
        self.window = match was_full {
            true => WINDOW_MIN,
            false => self.window.saturating_add(looked_at),
        };
        Ok(())
    }
}

impl Operator for Exchange {
    fn name(&self) -> &'static str {
        "EXCHANGE"
    }

    fn next(
        &mut self,
        inputs: &mut [Stage],
        run: &mut Run<'_>,
        most: usize,
        out: &mut Vec<Member>,
    ) -> Result<(u64, Progress), QueryError> {
        if !self.divides(inputs, run)? {
            let looked_at = run.examined.documents;
            let (found, progress) = pass_on(inputs, run, most, out)?;
            self.looked_at += run.examined.documents - looked_at;
            self.found += found;
            return Ok((found, progress));
        }
        let Some(input) = inputs.first_mut() else {
            return Ok((0, Progress::End));
        };
        let before = out.len();
        let mut progress = Progress::More;
        while out.len() < most {
            let Some(segments) = &mut self.segments else {
                break;
            };
            match segments.front_mut() {
                None => {
                    progress = Progress::End;
                    break;
                }
                Some(Segment::Found(members)) => {
                    let count = members.len().min(most - out.len());
                    out.extend(members.drain(..count));
                    if members.is_empty() {
                        segments.pop_front();
                    }
                }
                // What was found is handed on first.
                Some(Segment::Unread(..)) if out.len() > before => break,
                Some(&mut Segment::Unread(start, end)) => {
                    segments.pop_front();
                    self.read(input, run, (start, end))?;
                }
            }
        }
        Ok(((out.len() - before) as u64, progress))
    }

    /// What was found is kept for long from now on.
    fn save(&mut self) {
        for segment in self.segments.iter_mut().flatten() {
            if let Segment::Found(members) = segment {
                let rows = members.iter_mut().filter_map(|member| member.row.as_mut());
                rows.for_each(crate::row::Row::detach);
            }
        }
    }

    /// Of a share it only hands on.
    fn part(&self, _: &Share) -> Option<Box<dyn Operator>> {
        match self.segments {
            None => Some(Box::new(Exchange::default())),
            Some(_) => None,
        }
    }

    fn passes_on(&self) -> bool {
        true
    }

    fn is_shown(&self) -> bool {
        false
    }

    fn annotate(&self, stage: &mut RawDocumentBuf) {
        self.workers.describe(stage);
    }
}

fn undivided() -> QueryError {
    QueryError::new(ErrorKind::InternalError, "a scan is not divided that was")
}
