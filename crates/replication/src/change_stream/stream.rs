//! The rows of a change stream.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use banyan_execution::{InterruptSlot, Row, Ticker};
use banyan_query::QueryError;
use banyan_query::pipeline::Execution;
use banyan_storage::CollectionId;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf};
use parking_lot::Mutex;

use super::event::{Describer, Event, Events, ImagesKept, Place};
use super::options::{FullDocument, Options, Start};
use super::scope::Scope;
use super::token::{Kind, Token};
use crate::entry::{Entry, Operation};
use crate::errors;
use crate::machine::Machine;
use crate::machine::names::Name;
use crate::oplog::{About, Log, LogReader, ReadError, Seen, reader};
use banyan_execution::RowStream;

/// So many bytes of the log are read in one go if nothing in them is of interest; then the client
/// hears how far the stream has come.
const BYTES_PER_LOOK: usize = 32 << 20;

/// How far a stream has come; the cursor tells its client.
pub struct Progress {
    machine: Arc<Machine>,
    /// The entry that is read next.
    next: AtomicU64,
    /// What is read of a document is looked up where it lies now.
    looks_up: bool,
    state: Mutex<State>,
}

/// So many entries are no work to speak of.
const CLOSE_ENTRIES: u64 = 32;

struct State {
    /// Behind the event that was read last, or everything.
    token: Token,
    /// As it was before that event.
    before: Token,
    behind: bool,
    invalidated: bool,
}

impl Progress {
    /// Where a client can go on after what it was given. `pending`: the last row that was read is
    /// not part of that.
    pub fn resume_token(&self, pending: bool) -> RawDocumentBuf {
        let state = self.state.lock();
        let token = if pending { state.before } else { state.token };
        token.to_document()
    }

    /// There is more to read at once, though it has yielded no row yet.
    pub fn is_behind(&self) -> bool {
        self.state.lock().behind
    }

    /// What is left to read is so little that it may be read in place.
    pub fn is_close(&self) -> bool {
        let applied = self.machine.applied_index();
        !self.looks_up && applied < self.next.load(Ordering::Relaxed) + CLOSE_ENTRIES
    }

    /// No further row will come, and the client is to know.
    pub fn is_invalidated(&self) -> bool {
        self.state.lock().invalidated
    }
}

/// Says `None` when there is nothing now; asked again, it looks again.
pub struct Stream {
    describer: Describer,
    reader: LogReader,
    /// Operations up to this time are passed over.
    after: u64,
    /// Names an event that has yet to be found in the log; nothing is shown before.
    unsettled: Option<Token>,
    /// Of the event that comes first, fragments up to this one have been shown.
    shown_fragments: u32,
    /// Large events come in fragments.
    splits: bool,
    /// Rows of an event of which the first has been shown, each with what names it.
    fragments: VecDeque<(Token, RawDocumentBuf)>,
    /// The last operation that was looked at.
    seen: u64,
    entries: VecDeque<Arc<Seen>>,
    events: VecDeque<Result<Event, CommandError>>,
    execution: Execution,
    progress: Arc<Progress>,
    ticker: Ticker,
}

impl Stream {
    pub fn open(
        log: Arc<Log>,
        scope: Scope,
        options: &Options,
        execution: Execution,
        slot: Arc<InterruptSlot>,
        images: ImagesKept,
    ) -> Result<Stream, CommandError> {
        let (reader, after) = match &options.start {
            Start::Now => {
                // The time first: what comes between the two is read and passed over.
                let reader = LogReader::from_now(log.clone());
                (reader, log.replica.machine.last_applied().time)
            }
            Start::At(time) => {
                let after = time.saturating_sub(1);
                (reader_after(&log, after)?, after)
            }
            Start::Resume(token) | Start::After(token) => {
                (reader_after(&log, token.time)?, token.time)
            }
        };
        let token = match &options.start {
            Start::Resume(token) | Start::After(token) => *token,
            Start::Now | Start::At(_) => Token::high_water(after),
        };
        let progress = Arc::new(Progress {
            machine: log.replica.machine.clone(),
            next: AtomicU64::new(reader.next_index()),
            looks_up: options.full_document == FullDocument::UpdateLookup,
            state: Mutex::new(State {
                token,
                before: token,
                behind: false,
                invalidated: false,
            }),
        });
        let mut stream = Stream {
            describer: Describer::new(log.replica.clone(), scope, options, images),
            reader,
            after,
            unsettled: None,
            shown_fragments: 0,
            splits: options.splits,
            fragments: VecDeque::new(),
            seen: after,
            entries: VecDeque::new(),
            events: VecDeque::new(),
            execution,
            progress,
            ticker: Ticker::new(slot),
        };
        match &options.start {
            Start::Resume(token) if token.kind == Kind::Invalidate => {
                return Err(CommandError::new(
                    ErrorCode::InvalidResumeToken,
                    "Attempting to resume a change stream using 'resumeAfter' is not allowed from \
                     an invalidate notification",
                ));
            }
            Start::Resume(token) | Start::After(token)
                if token.fragment.is_some() && !options.splits =>
            {
                return Err(CommandError::new(
                    ErrorCode::ChangeStreamFatalError,
                    "To resume from a split event, the $changeStream pipeline must include a \
                     $changeStreamSplitLargeEvent stage",
                ));
            }
            Start::Resume(token) | Start::After(token) if token.kind != Kind::HighWater => {
                stream.check_kind(token)?;
                stream.unsettled = Some(*token);
                stream.settle()?;
            }
            _ => {}
        }
        Ok(stream)
    }

    pub fn progress(&self) -> Arc<Progress> {
        self.progress.clone()
    }

    fn check_kind(&self, token: &Token) -> Result<(), CommandError> {
        if self.describer.scope.is_collection() && token.uuid.is_none() {
            return Err(CommandError::new(
                ErrorCode::InvalidResumeToken,
                "Attempted to resume a single-collection stream, but the resume token does not \
                 include a UUID",
            ));
        }
        Ok(())
    }

    /// Looks for the event that the token names. A member that has not applied it yet waits.
    fn settle(&mut self) -> Result<(), CommandError> {
        let applied = self.describer.replica.machine.last_applied().time;
        if let Some(token) = self.unsettled.take_if(|token| token.time <= applied) {
            self.resume(&token)?;
        }
        Ok(())
    }

    /// Makes sure that the token names an event of this stream, and goes on with the end of the
    /// stream if that came of it.
    fn resume(&mut self, token: &Token) -> Result<(), CommandError> {
        let log = self.reader.log();
        let before = log.replica.machine.before_log(reader::first_index(log));
        if let Some(before) = before.filter(|before| before.time == token.time) {
            return match self.goes_on_from(token, before.position.index) {
                // What is left of a split event is not there.
                true if token.fragment.is_some() => Err(history_lost()),
                true => Ok(()),
                false => Err(history_lost()),
            };
        }
        let mut found = match token.fragment {
            // The rest of it is shown.
            Some(_) => self.event_at(token.time, &self.describer)?,
            // Whether images are there matters to events that are yet to be shown.
            None => {
                let describer = Describer {
                    replica: self.describer.replica.clone(),
                    scope: self.describer.scope.clone(),
                    full_document: Default::default(),
                    before_change: Default::default(),
                    expanded: true,
                    images: Arc::new(|| None),
                };
                self.event_at(token.time, &describer)?
            }
        };
        let Some(event) = found
            .event
            .take()
            .filter(|event| event.token.uuid == token.uuid)
        else {
            return Err(CommandError::new(
                ErrorCode::ChangeStreamFatalError,
                format!(
                    "cannot resume stream; the resume token was not found. {}",
                    errors::shown(RawBsonRef::Document(&token.to_document()))
                ),
            ));
        };
        if token.kind == Kind::Event && event.token == token.whole() {
            if let Some(fragment) = token.fragment {
                self.shown_fragments = fragment;
                self.events.push_back(Ok(event));
            }
            self.events.extend(found.invalidate.map(Ok));
        }
        Ok(())
    }

    /// Whether the operation at `index`, of which the log here no longer has more than the time, was
    /// of this stream and certainly not the end of it.
    fn goes_on_from(&self, token: &Token, index: u64) -> bool {
        let describer = &self.describer;
        let settled = |uuid| describer.replica.machine.settled_name(&uuid, index);
        match &describer.scope {
            Scope::Deployment => true,
            // It ends with the database, whose end is about no collection.
            Scope::Database(_) => token.uuid.is_some(),
            scope @ Scope::Collection(_) => {
                let name = token.uuid.and_then(settled);
                name.is_some_and(|name| scope.shows(&name.namespace))
            }
        }
    }

    /// What the stream shows of the operation at this time.
    fn event_at(&self, time: u64, describer: &Describer) -> Result<Events, CommandError> {
        let log = self.reader.log().clone();
        let mut reader = LogReader::from_time(log, time).map_err(lost)?;
        for seen in reader.read().map_err(lost)? {
            let (About::Documents(header, _) | About::Definitions(header)) = &seen.about else {
                continue;
            };
            let index = seen.position.index;
            let offset = time.checked_sub(header.first_time);
            let Some(offset) = offset.filter(|offset| *offset < u64::from(header.operations))
            else {
                break;
            };
            let entry = Entry::decode(&seen.data).map_err(unreadable)?;
            let offset = usize::try_from(offset).unwrap_or(usize::MAX);
            let Some(operation) = entry.operations().nth(offset) else {
                break;
            };
            let operation = operation.map_err(unreadable)?;
            let place = Place {
                time,
                wall_ms: header.wall_ms,
            };
            let name =
                collection_of(&operation).and_then(|collection| describer.shown(collection, index));
            return describer.describe(&operation, place, name.as_deref());
        }
        Ok(Events::default())
    }

    fn step(&mut self) -> Result<Option<Row>, CommandError> {
        let mut looked_bytes = 0;
        self.settle()?;
        if self.unsettled.is_some() {
            self.rest(false);
            return Ok(None);
        }
        loop {
            self.ticker.tick().map_err(errors::query)?;
            if let Some((token, row)) = self.fragments.pop_front() {
                self.come_to(token);
                return Ok(Some(Row::Owned(row)));
            }
            if let Some(event) = self.events.pop_front() {
                if let Some(row) = self.pass(event?)? {
                    return Ok(Some(row));
                }
                continue;
            }
            if let Some(seen) = self.entries.pop_front() {
                looked_bytes += seen.data.len();
                self.look(&seen)?;
                continue;
            }
            if looked_bytes > BYTES_PER_LOOK {
                self.rest(true);
                return Ok(None);
            }
            self.entries = self.reader.read().map_err(lost)?.into();
            let next = self.reader.next_index();
            self.progress.next.store(next, Ordering::Relaxed);
            if self.entries.is_empty() {
                self.rest(false);
                return Ok(None);
            }
        }
    }

    /// Everything that was read has been looked at.
    fn rest(&self, behind: bool) {
        let mut state = self.progress.state.lock();
        state.behind = behind;
        if self.seen > state.token.time {
            state.token = Token::high_water(self.seen);
        }
    }

    /// Sends an event through the rest of the pipeline.
    fn pass(&mut self, event: Event) -> Result<Option<Row>, CommandError> {
        self.execution
            .push(&event.document)
            .map_err(errors::query)?;
        let shown = std::mem::take(&mut self.shown_fragments);
        while let Some(row) = self.execution.pop().map_err(errors::query)? {
            check_id(&event.document, &row)?;
            let Some(fragment) = fragment_of(&row).filter(|_| self.splits) else {
                if shown > 0 {
                    return Err(not_split());
                }
                self.fragments.push_back((event.token, row));
                continue;
            };
            if fragment > shown {
                let token = event.token.fragment(fragment);
                self.fragments.push_back((token, renamed(&row, token)));
            }
        }
        let Some((token, row)) = self.fragments.pop_front() else {
            self.come_to(event.token);
            return Ok(None);
        };
        self.come_to(token);
        Ok(Some(Row::Owned(row)))
    }

    /// What the token names has been read.
    fn come_to(&self, token: Token) {
        let mut state = self.progress.state.lock();
        state.before = state.token;
        state.token = token;
        state.invalidated |= token.kind == Kind::Invalidate;
    }

    /// Makes events of what an entry holds for this stream.
    fn look(&mut self, seen: &Seen) -> Result<(), CommandError> {
        let index = seen.position.index;
        let (header, shown) = match &seen.about {
            About::Nothing => return Ok(()),
            About::Definitions(header) => (header, true),
            About::Documents(header, collections) => {
                let shown = |id: &CollectionId| self.describer.shown(*id, index).is_some();
                (header, collections.iter().any(shown))
            }
        };
        if header.time() <= self.after {
            return Ok(());
        }
        self.seen = header.time();
        if !shown {
            return Ok(());
        }
        let entry = Entry::decode(&seen.data).map_err(unreadable)?;
        // Operations on one collection come in a row.
        let mut known: Option<(CollectionId, Option<Arc<Name>>)> = None;
        for (offset, operation) in entry.operations().enumerate() {
            let operation = operation.map_err(unreadable)?;
            let time = header.first_time + offset as u64;
            if time <= self.after {
                continue;
            }
            let name = match (collection_of(&operation), &known) {
                (None, _) => None,
                (Some(id), Some((last, name))) if *last == id => name.clone(),
                (Some(id), _) => {
                    let name = self.describer.shown(id, index);
                    known = Some((id, name.clone()));
                    name
                }
            };
            let place = Place {
                time,
                wall_ms: header.wall_ms,
            };
            match self.describer.describe(&operation, place, name.as_deref()) {
                Ok(events) => {
                    self.events.extend(events.event.map(Ok));
                    let ends = events.invalidate.is_some();
                    self.events.extend(events.invalidate.map(Ok));
                    if ends {
                        break;
                    }
                }
                Err(error) => {
                    self.events.push_back(Err(error));
                    break;
                }
            }
        }
        Ok(())
    }
}

impl RowStream for Stream {
    /// One at a time: the resume token of a batch is that of the last row in it.
    fn next_batch(&mut self, _: usize, out: &mut VecDeque<Row>) -> Result<(), QueryError> {
        if !self.progress.is_invalidated() {
            out.extend(self.step().map_err(errors::within_query)?);
        }
        Ok(())
    }
}

fn collection_of(operation: &Operation<'_>) -> Option<CollectionId> {
    match operation {
        Operation::Insert { collection, .. }
        | Operation::Update { collection, .. }
        | Operation::Delete { collection, .. } => Some(*collection),
        _ => None,
    }
}

/// Reads from the first entry on that has something behind this time.
fn reader_after(log: &Arc<Log>, time: u64) -> Result<LogReader, CommandError> {
    let reader = LogReader::from_time(log.clone(), time.saturating_add(1)).map_err(lost)?;
    let first_index = reader::first_index(log);
    let before = log.replica.machine.before_log(first_index);
    let begins_there = before.is_some_and(|before| before.time <= time);
    // What was cut may have been behind that time, unless the log still shows something before it.
    if first_index > 1 && !begins_there && time < log.replica.machine.last_applied().time {
        let first = reader::first_header(log).map_err(lost)?;
        if first.is_none_or(|first| first.first_time > time.saturating_add(1)) {
            return Err(history_lost());
        }
    }
    Ok(reader)
}

fn lost(error: ReadError) -> CommandError {
    match error {
        ReadError::Cut(_) => history_lost(),
        // Another member may have what this one has passed over.
        ReadError::Replaced => CommandError::new(
            ErrorCode::InterruptedDueToReplStateChange,
            "a snapshot has taken the place of what the stream has read",
        ),
        ReadError::Log(_) => errors::internal(error.to_string()),
    }
}

fn history_lost() -> CommandError {
    CommandError::new(
        ErrorCode::ChangeStreamHistoryLost,
        "Resume of change stream was not possible, as the resume point may no longer be in the \
         oplog.",
    )
}

fn unreadable(error: impl std::fmt::Display) -> CommandError {
    errors::internal(error.to_string())
}

/// Which fragment of a split event a row is.
fn fragment_of(row: &RawDocument) -> Option<u32> {
    let split = row.get_document("splitEvent").ok()?;
    u32::try_from(split.get_i32("fragment").ok()?).ok()
}

/// A row whose `_id` is this token.
fn renamed(row: &RawDocument, token: Token) -> RawDocumentBuf {
    let mut out = RawDocumentBuf::new();
    for (name, value) in row.iter().flatten() {
        match name.as_str() {
            "_id" => out.append(name, token.to_document()),
            _ => out.append(name, value),
        }
    }
    out
}

fn not_split() -> CommandError {
    CommandError::new(
        ErrorCode::ChangeStreamFatalError,
        "the stream is to go on behind a fragment of an event that it does not split",
    )
}

/// Who changes an event's `_id` could not go on from it.
fn check_id(event: &RawDocument, row: &RawDocument) -> Result<(), CommandError> {
    let expected = event.get("_id").ok().flatten();
    let found = row.get("_id").ok().flatten();
    if expected == found {
        return Ok(());
    }
    let shown = |value: Option<RawBsonRef<'_>>| {
        value.map_or_else(
            || "{}".to_owned(),
            |value| format!("{{ _id: {} }}", errors::shown(value)),
        )
    };
    Err(CommandError::new(
        ErrorCode::ChangeStreamFatalError,
        format!(
            "Encountered an event whose _id field, which contains the resume token, was modified \
             by the pipeline. Modifying the _id field of an event makes it impossible to resume \
             the stream from that point. Only transformations that retain the unmodified _id \
             field are allowed. Expected: {} but found: {}",
            shown(expected),
            shown(found)
        ),
    ))
}
