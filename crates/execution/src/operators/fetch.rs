//! FETCH: the documents of the records that its input names. Where many are read to be handed out, they
//! are read ahead, a window at a time.

use std::any::Any;
use std::sync::Arc;

use banyan_query::QueryError;
use banyan_query::filter::Filter;
use banyan_storage::{Collection, Snapshot};
use bson::{RawDocument, RawDocumentBuf, cstr};

use super::document_filters::DocumentFilters;
use super::nearby::{Nearby, missing};
use super::window::{self, Slot, Window};
use super::{Counts, Explainer, Member, Operator, Progress, Run, Stage, batch_members, pull};
use crate::error;
use crate::parallel::Workers;
use crate::plan::explain::clamp;
use crate::row::Row;
use crate::shares::{Share, Shares};

pub struct Fetch {
    collection: Arc<Collection>,
    filters: DocumentFilters,
    nearby: Nearby,
    pulled: Vec<Member>,
    examined: u64,
    ahead: Option<Ahead>,
    /// Whether records may have been removed since the input has named them.
    may_be_gone: bool,
    is_shown: bool,
}

/// What is read before it is asked for, where all is wanted that there is.
struct Ahead {
    /// All that the query asks for. A record that is reached in a later state than its key has to match
    /// it: nothing tells whether it still has the key.
    whole: Arc<Filter>,
    window: Window,
    /// The input has come to its end.
    ended: bool,
    /// The bytes of what was examined, by which windows are as large as memory allows.
    bytes: u64,
    workers: Workers,
}

impl Fetch {
    pub fn new(collection: Arc<Collection>, filter: Option<Arc<Filter>>) -> Fetch {
        Fetch::with(collection, DocumentFilters::of(filter))
    }

    pub fn with(collection: Arc<Collection>, filters: DocumentFilters) -> Fetch {
        Fetch {
            collection,
            filters,
            nearby: Nearby::default(),
            pulled: Vec::new(),
            examined: 0,
            ahead: None,
            may_be_gone: false,
            is_shown: true,
        }
    }

    /// Whether it is a stage of its own to whoever asks for an explanation.
    pub fn shown(self, is_shown: bool) -> Fetch {
        Fetch { is_shown, ..self }
    }

    /// Of an input that holds records back while its snapshot changes.
    pub fn of_what_may_be_gone(self) -> Fetch {
        Fetch {
            may_be_gone: true,
            ..self
        }
    }

    /// Reads ahead where that is allowed ([`Run::reading_ahead`]). `whole` is all that the query asks
    /// for: nothing else decides what its input names.
    pub fn reading_ahead(mut self, whole: Arc<Filter>) -> Fetch {
        self.ahead = Some(Ahead {
            whole,
            window: Window::default(),
            ended: false,
            bytes: 0,
            workers: Workers::default(),
        });
        self
    }

    /// Whether the document of a member matches.
    fn matches(&mut self, run: &mut Run<'_>, member: &Member) -> Result<bool, QueryError> {
        let found;
        let document: &RawDocument = match &member.row {
            Some(row) => row,
            None => {
                found = self.nearby.read(run, &self.collection, &member.record)?;
                self.examined += 1;
                run.examine_document(found.as_bytes().len())?;
                &found
            }
        };
        match self.filters.for_one(member.is_settled) {
            Some(filter) => filter.try_matches(document),
            None => Ok(true),
        }
    }

    /// How many records the next window has. `None`: it is not worth one.
    fn window(&self, run: &Run<'_>) -> Option<usize> {
        let ahead = self.ahead.as_ref()?;
        // What lies together is read by one scan.
        if !run.reads_ahead || !run.is_unbounded || self.nearby.is_scanning() {
            return None;
        }
        window::size(self.examined, ahead.bytes)
    }

    /// Hands on what was read ahead; reads the next window first, if there is nothing. `None`: there is
    /// none.
    fn next_ahead(
        &mut self,
        inputs: &mut [Stage],
        run: &mut Run<'_>,
        most: usize,
        out: &mut Vec<Member>,
    ) -> Result<Option<(u64, Progress)>, QueryError> {
        let size = self.window(run);
        let Some(ahead) = &mut self.ahead else {
            return Ok(None);
        };
        let mut works = 0;
        while ahead.window.is_empty() {
            let (Some(size), Some(input)) = (size, inputs.first_mut()) else {
                return Ok(None);
            };
            if ahead.ended {
                return Ok(Some((works, Progress::End)));
            }
            self.pulled.clear();
            let progress = input.next(run, size, &mut self.pulled)?;
            ahead.ended = progress == Progress::End;
            works += self.pulled.len() as u64;
            let found = Window::read(
                &mut self.pulled,
                &self.collection,
                &self.filters,
                run,
                &mut ahead.workers,
            )?;
            self.examined += found.examined;
            ahead.bytes += found.bytes;
            ahead.window = found.window;
        }
        let left = most.saturating_sub(out.len());
        for _ in 0..left {
            let Some(slot) = ahead.window.pop() else {
                break;
            };
            let read = match slot {
                Slot::Read(member) => Some(member),
                Slot::Unread { member, is_later } => {
                    let filter = match is_later {
                        true => Some(&ahead.whole),
                        false => self.filters.for_one(member.is_settled),
                    };
                    let found = run.snapshot.record(self.collection.id, &member.record);
                    match found.map_err(error::storage)? {
                        None if is_later => None,
                        None => return Err(missing(&self.collection, &member.record)),
                        Some(found) => {
                            self.examined += 1;
                            run.examine_document(found.as_bytes().len())?;
                            window::matching(member, found, filter)?
                        }
                    }
                }
            };
            out.extend(read);
        }
        let progress = match ahead.ended && ahead.window.is_empty() {
            true => Progress::End,
            false => Progress::More,
        };
        Ok(Some((works, progress)))
    }
}

impl Operator for Fetch {
    fn name(&self) -> &'static str {
        "FETCH"
    }

    fn next(
        &mut self,
        inputs: &mut [Stage],
        run: &mut Run<'_>,
        most: usize,
        out: &mut Vec<Member>,
    ) -> Result<(u64, Progress), QueryError> {
        if let Some(done) = self.next_ahead(inputs, run, most, out)? {
            return Ok(done);
        }
        let (collection, filters) = (&self.collection, &self.filters);
        let may_be_gone = self.may_be_gone;
        let (nearby, examined) = (&mut self.nearby, &mut self.examined);
        let mut bytes = 0;
        let calls_script = filters.call_script();
        let fetch = |run: &mut Run<'_>, from: &mut Vec<Member>, out: &mut Vec<Member>| {
            let before = out.len();
            for mut member in from.drain(..) {
                let record = &member.record;
                let row = match member.row.take() {
                    // A clustered scan has read it.
                    Some(row) => row,
                    None => {
                        let found = match may_be_gone {
                            false => nearby.read(run, collection, record)?,
                            true => {
                                let found = run.snapshot.record(collection.id, record);
                                match found.map_err(error::storage)? {
                                    Some(found) => found,
                                    None => continue,
                                }
                            }
                        };
                        *examined += 1;
                        bytes += found.as_bytes().len() as u64;
                        run.examine_document(found.as_bytes().len())?;
                        Row::Record(found)
                    }
                };
                let matches = match filters.for_one(member.is_settled) {
                    Some(filter) if !calls_script => filter.try_matches(&row)?,
                    Some(_) | None => true,
                };
                if matches {
                    member.row = Some(row);
                    out.push(member);
                }
            }
            match calls_script {
                true => filters.keep_matching(out, before),
                false => Ok(()),
            }
        };
        let done = pull(inputs, run, most, out, &mut self.pulled, fetch)?;
        if let Some(ahead) = &mut self.ahead {
            ahead.bytes += bytes;
        }
        Ok(done)
    }

    fn calls_script(&self) -> bool {
        self.filters.call_script()
    }

    /// Where the key has settled all that there is to match, the document is not read.
    fn pass(
        &mut self,
        inputs: &mut [Stage],
        run: &mut Run<'_>,
        most: u64,
    ) -> Result<(u64, u64, Progress), QueryError> {
        let most = batch_members(self.calls_script(), most);
        let mut members = Vec::with_capacity(most);
        if self.filters.settled.is_some() || self.filters.all.is_none() || self.may_be_gone {
            let (works, progress) = self.next(inputs, run, most, &mut members)?;
            return Ok((works, members.len() as u64, progress));
        }
        let Some(input) = inputs.first_mut() else {
            return Ok((0, 0, Progress::End));
        };
        let progress = input.next(run, most, &mut members)?;
        let works = members.len() as u64;
        let mut passed = 0;
        for member in members {
            passed += u64::from(member.is_settled || self.matches(run, &member)?);
        }
        Ok((works, passed, progress))
    }

    fn part(&self, _: &Share) -> Option<Box<dyn Operator>> {
        let fetch = Fetch::with(self.collection.clone(), self.filters.clone());
        Some(Box::new(Fetch {
            may_be_gone: self.may_be_gone,
            is_shown: self.is_shown,
            ..fetch
        }))
    }

    fn absorb(&mut self, part: &dyn Operator) {
        let part: &dyn Any = part;
        if let Some(part) = part.downcast_ref::<Fetch>() {
            self.examined += part.examined;
        }
    }

    fn save(&mut self) {
        self.nearby = Nearby::default();
        if let Some(ahead) = &mut self.ahead {
            ahead.window.outlive_state();
        }
    }

    /// What is read ahead would be lost.
    fn shares(
        &mut self,
        inputs: &mut [Stage],
        snapshot: &Snapshot,
    ) -> Result<Option<Arc<Shares>>, QueryError> {
        let has_window = |ahead: &Ahead| !ahead.window.is_empty();
        match inputs {
            [only] if !self.ahead.as_ref().is_some_and(has_window) => only.shares(snapshot),
            _ => Ok(None),
        }
    }

    fn is_shown(&self) -> bool {
        self.is_shown
    }

    fn passes_on(&self) -> bool {
        self.filters.all.is_none()
    }

    fn filter(&self) -> Option<&Filter> {
        self.filters.all.as_deref()
    }

    fn describe(&self, stage: &mut RawDocumentBuf, _: &Counts, explainer: Explainer) {
        if explainer.ran() {
            stage.append(cstr!("docsExamined"), clamp(self.examined));
        }
        if let Some(ahead) = &self.ahead {
            ahead.workers.describe(stage);
        }
    }
}
