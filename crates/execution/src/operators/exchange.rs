//! An exchange: hands on what the scan below it finds, in its order. Where that looks at much and
//! finds little, the rest is read on all cores, window after window ([`crate::windows`]).

use std::collections::VecDeque;

use banyan_query::QueryError;
use bson::RawDocumentBuf;

use super::{
    Member, MemberRef, Operator, Progress, Run, Stage, Visitor, pass_on, visit_all, visit_on,
};
use crate::parallel::{Sink, Workers};
use crate::row::Row;
use crate::shares::Share;
use crate::windows::{Reader, Room, Windows};

/// One thread looks at so many documents before others join.
const LOOKED_AT_MIN: u64 = 4096;
/// Of so many documents that are looked at, no more than one is found.
const LOOKED_AT_PER_FOUND: u64 = 16;
#[derive(Default)]
pub struct Exchange {
    /// Once it is read on all cores.
    windows: Option<Windows<VecDeque<Member>>>,
    /// Documents that were looked at, and those of them that were found.
    looked_at: u64,
    found: u64,
    workers: Workers,
}

/// What is found in a share.
struct Found {
    members: VecDeque<Member>,
    room: Room,
}

impl Sink for Found {
    fn take(&mut self, member: MemberRef<'_>) -> Result<(), QueryError> {
        let row = Row::Owned(member.document.to_owned());
        self.keep(Member {
            key: member.key.cloned().map(Box::new),
            ..Member::new(member.record.clone(), Some(row))
        })
    }

    fn keeps_members(&self) -> bool {
        true
    }

    fn keep(&mut self, member: Member) -> Result<(), QueryError> {
        self.room.take(size_of::<Member>() + member.bytes());
        self.members.push_back(member);
        Ok(())
    }

    fn is_full(&mut self) -> bool {
        self.room.is_used_up()
    }
}

impl Exchange {
    /// Whether what is left is to be read on all cores; decided once so many documents were looked
    /// at.
    fn divides(&mut self, inputs: &mut [Stage], run: &Run<'_>) -> Result<bool, QueryError> {
        if self.windows.is_some() {
            return Ok(true);
        }
        let finds_little = self.found.saturating_mul(LOOKED_AT_PER_FOUND) <= self.looked_at;
        if !run.is_unbounded || self.looked_at < LOOKED_AT_MIN || !finds_little {
            return Ok(false);
        }
        if let Some(input) = inputs.first_mut() {
            self.windows = Windows::over(input, run.snapshot, (self.looked_at, 0), 0)?;
        }
        if self.windows.is_none() {
            // It is asked again when twice as much was looked at.
            self.found = 0;
            self.looked_at = 0;
        }
        Ok(self.windows.is_some())
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
        let (Some(input), Some(windows)) = (inputs.first_mut(), &mut self.windows) else {
            return Ok((0, Progress::End));
        };
        let before = out.len();
        while out.len() < most && !windows.has_ended() {
            if let Some(members) = windows.found() {
                let count = members.len().min(most - out.len());
                out.extend(members.drain(..count));
                if members.is_empty() {
                    windows.pass_found();
                }
                continue;
            }
            // What was found is handed on first.
            if out.len() > before {
                break;
            }
            let slot = run.slot();
            let reader = Reader {
                plan: input,
                snapshot: run.snapshot,
                slot: &slot,
                examined: run.examined,
                workers: &mut self.workers,
            };
            let make = |room| {
                Ok(Found {
                    members: VecDeque::new(),
                    room,
                })
            };
            let found = |found: Found| Some(found.members).filter(|members| !members.is_empty());
            windows.read(reader, make, found)?;
        }
        let progress = match windows.has_ended() {
            true => Progress::End,
            false => Progress::More,
        };
        Ok(((out.len() - before) as u64, progress))
    }

    fn visit(
        &mut self,
        inputs: &mut [Stage],
        run: &mut Run<'_>,
        most: usize,
        visitor: Visitor<'_>,
    ) -> Result<(u64, u64, Progress), QueryError> {
        if self.windows.is_none() {
            return visit_on(inputs, run, most, visitor);
        }
        let mut members = Vec::with_capacity(most);
        let (works, progress) = self.next(inputs, run, most, &mut members)?;
        visit_all(&members, visitor)?;
        Ok((works, members.len() as u64, progress))
    }

    /// What was found is kept for long from now on.
    fn save(&mut self) {
        if let Some(windows) = &mut self.windows {
            windows.all_found().flatten().for_each(Member::detach);
        }
    }

    /// Of a share it only hands on.
    fn part(&self, _: &Share) -> Option<Box<dyn Operator>> {
        match self.windows {
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
