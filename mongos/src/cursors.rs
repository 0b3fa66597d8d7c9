//! The cursors that clients hold open on this router.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use banyan_access::api_version::ApiParameters;
use banyan_access::identity::UserDigest;
use banyan_document::DocumentWriter;
use banyan_query::query_stats::Recording;
use banyan_wire::fail_points::FailPoints;
use banyan_wire::session_id::{self, SessionId};
use banyan_wire::{CommandError, Doc, ErrorCode, Outgoing, Pool, behalf};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::merge::{KILL_TIMEOUT, Merge};
use crate::piped::Piped;

/// An idle cursor is closed after this, as in MongoDB.
const IDLE_MAX: Duration = Duration::from_secs(600);
const REAP_EVERY: Duration = Duration::from_secs(30);
/// What a first batch holds when the client doesn't say.
const FIRST_BATCH_DOCUMENTS: usize = 101;
/// A batch stops growing at the size of the largest document.
const BATCH_BYTES_MAX: usize = banyan_document::MAX_DOCUMENT_BYTES;

/// Where a cursor's documents come from.
pub enum Source {
    /// One shard's cursor: its batches are passed on as they are.
    Forwarded(Forwarded),
    Merged(Merge),
    /// The end of a pipeline that runs here.
    Piped(Box<Piped>),
    /// What is known already.
    Listed(std::vec::IntoIter<Doc>),
}

pub struct Forwarded {
    pub member: Pool,
    pub cursor: i64,
}

pub struct Cursor {
    pub ns: String,
    pub source: Source,
    /// A document that did not fit the last batch.
    pending: Option<Doc>,
    done: bool,
    session: Option<RawDocumentBuf>,
    /// Whose it is; `None` while users do not count.
    owner: Option<UserDigest>,
    /// What its command said of the stable API.
    pub api: ApiParameters,
    /// What shards are told of that.
    client: Option<Arc<RawDocumentBuf>>,
    no_timeout: bool,
    /// What is left of its command's `maxTimeMS`, which counts while the router works on it.
    time_left: Option<Duration>,
    /// Where its query is counted, if it is.
    recording: Option<Arc<Recording>>,
}

enum Slot {
    Idle {
        cursor: Box<Cursor>,
        since: Instant,
    },
    /// Taken out by a `getMore`; `killed` says that it must not be put back.
    Busy {
        killed: bool,
        ns: String,
        owner: Option<UserDigest>,
    },
}

#[derive(Default)]
pub struct Cursors {
    slots: Mutex<HashMap<i64, Slot>>,
}

/// A cursor taken out for a `getMore`; the slot is freed if it is not put back.
pub struct Taken<'a> {
    cursors: &'a Cursors,
    id: i64,
    cursor: Option<Box<Cursor>>,
}

impl Cursor {
    pub fn new(ns: String, source: Source, request: &RawDocument) -> Cursor {
        let session = match crate::fields::get(request, "lsid") {
            Some(RawBsonRef::Document(session)) => Some(session.to_owned()),
            _ => None,
        };
        let no_timeout = crate::fields::get_flag(request, "noCursorTimeout");
        Cursor {
            ns,
            source,
            pending: None,
            done: false,
            session,
            owner: None,
            api: ApiParameters::of(request),
            client: behalf::current(),
            no_timeout,
            time_left: None,
            recording: None,
        }
    }

    /// Has only this user go on with it.
    pub fn owned_by(mut self, owner: Option<UserDigest>) -> Cursor {
        self.owner = owner;
        self
    }

    /// Has the batches that are still to come end when this batch's command would have.
    pub fn within(mut self, deadline: Option<tokio::time::Instant>) -> Cursor {
        self.keep_time(deadline);
        self
    }

    /// When the batch that is asked for now has to be there.
    pub fn deadline(&self, fail_points: &FailPoints) -> Option<tokio::time::Instant> {
        let now = tokio::time::Instant::now().into_std();
        let deadline = fail_points.deadline(now, self.time_left);
        deadline.map(tokio::time::Instant::from_std)
    }

    /// Keeps what a batch has left of the time.
    pub fn keep_time(&mut self, deadline: Option<tokio::time::Instant>) {
        let now = tokio::time::Instant::now();
        self.time_left = deadline.map(|deadline| deadline.saturating_duration_since(now));
    }

    /// The session that it was opened in: its client's, whose request was let in.
    fn session_id(&self) -> Option<SessionId> {
        let lsid = session_id::parse(self.session.as_ref()?).ok()?;
        Some(SessionId {
            id: lsid.id,
            user: lsid.uid.unwrap_or(self.owner),
        })
    }

    async fn next(&mut self) -> Result<Option<Doc>, CommandError> {
        if let Some(document) = self.pending.take() {
            return Ok(Some(document));
        }
        let next = match &mut self.source {
            Source::Merged(merge) => merge.next().await?,
            Source::Piped(piped) => piped.next().await?,
            Source::Listed(listed) => listed.next(),
            Source::Forwarded(_) => None,
        };
        self.done |= next.is_none();
        Ok(next)
    }

    /// Up to `documents_max` documents, and no more bytes than fit a reply.
    pub async fn batch(&mut self, documents_max: usize) -> Result<Vec<Doc>, CommandError> {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while batch.len() < documents_max {
            let Some(document) = self.next().await? else {
                break;
            };
            let length = document.as_bytes().len();
            if !batch.is_empty() && bytes + length > BATCH_BYTES_MAX {
                self.pending = Some(document);
                break;
            }
            bytes += length;
            batch.push(document);
        }
        Ok(batch)
    }

    pub fn is_done(&self) -> bool {
        self.done
            || self.pending.is_none()
                && match &self.source {
                    Source::Merged(merge) => merge.is_done(),
                    Source::Listed(listed) => listed.len() == 0,
                    Source::Forwarded(_) | Source::Piped(_) => false,
                }
    }

    /// Wherever that is noticed: the shards know whose their cursors are.
    pub async fn kill(&mut self) {
        let client = self.client.clone();
        behalf::on_behalf_of(client, self.kill_source()).await;
    }

    async fn kill_source(&mut self) {
        match &mut self.source {
            Source::Merged(merge) => merge.kill().await,
            Source::Forwarded(remote) => {
                let (database, collection) = self.ns.split_once('.').unwrap_or((&self.ns, ""));
                let mut command = rawdoc! {"killCursors": collection, "cursors": [remote.cursor]};
                if let Some(session) = &self.session {
                    command.append(bson::raw::cstr!("lsid"), session.clone());
                }
                // A cursor that can't be killed times out by itself.
                let killed = remote
                    .member
                    .command(database, &command, Some(KILL_TIMEOUT));
                let _ = killed.await;
            }
            Source::Piped(piped) => piped.kill().await,
            Source::Listed(_) => {}
        }
    }
}

/// How many documents a first batch may hold.
pub fn first_batch_size(request: &RawDocument, options: Option<&RawDocument>) -> usize {
    let options = options.unwrap_or(request);
    match crate::fields::get_number(options, "batchSize") {
        Some(size) => usize::try_from(size).unwrap_or(usize::MAX),
        None => FIRST_BATCH_DOCUMENTS,
    }
}

/// `{cursor: {firstBatch | nextBatch, id, ns}, ok: 1}`.
pub fn reply(batch_name: &str, batch: &[Doc], id: i64, ns: &str) -> RawDocumentBuf {
    let bytes: usize = batch
        .iter()
        .map(|document| document.as_bytes().len() + 8)
        .sum();
    let mut out = DocumentWriter::with_capacity(bytes + 128);
    out.begin_document("cursor");
    out.begin_array(batch_name);
    for document in batch {
        out.push(RawBsonRef::Document(document));
    }
    out.end();
    out.append_i64("id", id);
    out.append_str("ns", ns);
    out.end();
    out.append_f64("ok", 1.0);
    out.finish()
}

/// Puts another cursor id into a reply where the shard's stands.
pub fn with_cursor_id(reply: RawDocumentBuf, id: i64) -> RawDocumentBuf {
    let at = reply.get_document("cursor").ok().and_then(|cursor| {
        let element = banyan_document::elements(cursor).find(|element| element.name() == "id")?;
        let value = element.value_bytes();
        let offset = value.as_ptr() as usize - reply.as_bytes().as_ptr() as usize;
        (value.len() == 8).then_some(offset)
    });
    let Some(at) = at else { return reply };
    let mut bytes = reply.into_bytes();
    if let Some(place) = bytes.get_mut(at..at + 8) {
        place.copy_from_slice(&id.to_le_bytes());
    }
    // Only the eight bytes of a number changed; were it not a document any more, an empty one
    // tells the client that the reply is unusable.
    RawDocumentBuf::from_bytes(bytes).unwrap_or_default()
}

impl Cursors {
    /// Takes a cursor in and answers under which id.
    pub fn insert(&self, cursor: Cursor) -> i64 {
        let mut slots = self.slots.lock();
        loop {
            let id = rand::random::<i64>() & i64::MAX;
            if id != 0 && !slots.contains_key(&id) {
                slots.insert(
                    id,
                    Slot::Idle {
                        cursor: Box::new(cursor),
                        since: Instant::now(),
                    },
                );
                return id;
            }
        }
    }

    /// Has a cursor's query counted, while nobody reads it.
    pub fn record(&self, id: i64, recording: &Arc<Recording>) {
        if let Some(Slot::Idle { cursor, .. }) = self.slots.lock().get_mut(&id) {
            cursor.recording = Some(recording.clone());
        }
    }

    /// Where a cursor's query is counted, if it is.
    pub fn recording(&self, id: i64) -> Option<Arc<Recording>> {
        match self.slots.lock().get(&id) {
            Some(Slot::Idle { cursor, .. }) => cursor.recording.clone(),
            _ => None,
        }
    }

    pub fn len(&self) -> usize {
        self.slots.lock().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes a cursor out for one batch.
    pub fn take(
        &self,
        id: i64,
        ns: &str,
        owner: Option<&UserDigest>,
    ) -> Result<Taken<'_>, CommandError> {
        let mut slots = self.slots.lock();
        match slots.get(&id) {
            None => return Err(not_found(id)),
            Some(slot) if owner.is_some() && slot.owner() != owner => {
                let text = format!("cursor id {id} was not created by the authenticated user");
                return Err(CommandError::new(ErrorCode::Unauthorized, text));
            }
            Some(Slot::Busy { .. }) => {
                let text = format!("cursor id {id} is already in use");
                return Err(CommandError::new(ErrorCode::CursorInUse, text));
            }
            Some(Slot::Idle { cursor, .. }) if cursor.ns != ns => {
                let text = format!(
                    "Requested getMore on namespace '{ns}', but cursor belongs to a different \
                     namespace {}",
                    cursor.ns
                );
                return Err(CommandError::new(ErrorCode::Unauthorized, text));
            }
            Some(Slot::Idle { .. }) => {}
        }
        let busy = Slot::Busy {
            killed: false,
            ns: ns.to_owned(),
            owner: owner.copied(),
        };
        match slots.insert(id, busy) {
            Some(Slot::Idle { cursor, .. }) => Ok(Taken {
                cursors: self,
                id,
                cursor: Some(cursor),
            }),
            _ => Err(not_found(id)),
        }
    }

    /// The idle cursors of the sessions that fit.
    pub fn of_sessions(&self, fits: impl Fn(&SessionId) -> bool) -> Vec<i64> {
        let slots = self.slots.lock();
        let own = slots.iter().filter(|(_, slot)| match slot {
            Slot::Idle { cursor, .. } => {
                let session = cursor.session_id();
                session.is_some_and(|session| fits(&session))
            }
            Slot::Busy { .. } => false,
        });
        own.map(|(id, _)| *id).collect()
    }

    /// Whether the cursor is this user's, if it is there.
    pub fn is_owned(&self, id: i64, user: &UserDigest) -> Option<bool> {
        let slots = self.slots.lock();
        slots.get(&id).map(|slot| slot.owner() == Some(user))
    }

    /// The cursors among these that are on a collection.
    pub fn on(&self, ns: &str, ids: &[i64]) -> Vec<i64> {
        let slots = self.slots.lock();
        let is_there = |id: &&i64| slots.get(id).is_some_and(|slot| slot.ns() == ns);
        ids.iter().filter(is_there).copied().collect()
    }

    /// Kills cursors: those that were there, and those that were not.
    pub async fn kill(&self, ids: &[i64]) -> (Vec<i64>, Vec<i64>) {
        let (mut killed, mut missing, mut ended) = (Vec::new(), Vec::new(), Vec::new());
        {
            let mut slots = self.slots.lock();
            for &id in ids {
                match slots.get_mut(&id) {
                    None => missing.push(id),
                    Some(Slot::Busy { killed: flag, .. }) => {
                        *flag = true;
                        killed.push(id);
                    }
                    Some(Slot::Idle { .. }) => {
                        if let Some(Slot::Idle { cursor, .. }) = slots.remove(&id) {
                            ended.push(cursor);
                        }
                        killed.push(id);
                    }
                }
            }
        }
        for mut cursor in ended {
            cursor.kill().await;
        }
        (killed, missing)
    }

    /// Closes cursors that nobody has asked for in a long time, until `stop`.
    pub async fn reap(&self, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(REAP_EVERY) => {}
            }
            let old: Vec<i64> = {
                let slots = self.slots.lock();
                slots
                    .iter()
                    .filter(|(_, slot)| slot.is_old())
                    .map(|(id, _)| *id)
                    .collect()
            };
            if !old.is_empty() {
                debug!(cursors = old.len(), "closing idle cursors");
                self.kill(&old).await;
            }
        }
    }
}

impl Slot {
    fn owner(&self) -> Option<&UserDigest> {
        match self {
            Slot::Idle { cursor, .. } => cursor.owner.as_ref(),
            Slot::Busy { owner, .. } => owner.as_ref(),
        }
    }

    fn ns(&self) -> &str {
        match self {
            Slot::Idle { cursor, .. } => &cursor.ns,
            Slot::Busy { ns, .. } => ns,
        }
    }

    fn is_old(&self) -> bool {
        match self {
            Slot::Idle { cursor, since } => !cursor.no_timeout && since.elapsed() > IDLE_MAX,
            Slot::Busy { .. } => false,
        }
    }
}

fn not_found(id: i64) -> CommandError {
    CommandError::new(
        ErrorCode::CursorNotFound,
        format!("cursor id {id} not found"),
    )
}

impl Taken<'_> {
    pub fn cursor(&mut self) -> Option<&mut Cursor> {
        self.cursor.as_deref_mut()
    }

    /// Closes the cursor, while nobody waits for that.
    pub fn give_up(mut self) {
        if let Some(mut cursor) = self.cursor.take() {
            self.cursors.slots.lock().remove(&self.id);
            tokio::spawn(async move { cursor.kill().await });
        }
    }

    /// Puts the cursor back for the next batch, unless it was killed meanwhile.
    pub async fn put_back(mut self) {
        let Some(mut cursor) = self.cursor.take() else {
            return;
        };
        let killed = {
            let mut slots = self.cursors.slots.lock();
            if matches!(slots.get(&self.id), Some(Slot::Busy { killed: true, .. })) {
                slots.remove(&self.id);
                true
            } else {
                let idle = Slot::Idle {
                    cursor,
                    since: Instant::now(),
                };
                slots.insert(self.id, idle);
                return;
            }
        };
        if killed {
            cursor.kill().await;
        }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        // Still here: the cursor ended or failed, or its client has left.
        let Some(mut cursor) = self.cursor.take() else {
            return;
        };
        self.cursors.slots.lock().remove(&self.id);
        let elsewhere = matches!(cursor.source, Source::Merged(_) | Source::Piped(_));
        if elsewhere && !cursor.is_done() {
            // The shards keep their part until they are told.
            tokio::spawn(async move { cursor.kill().await });
        }
    }
}

/// Sends a `getMore` on to the one shard that holds the cursor.
pub async fn forward_get_more(
    remote: &Forwarded,
    body: &RawDocument,
) -> Result<RawDocumentBuf, CommandError> {
    let mut added = DocumentWriter::with_capacity(body.as_bytes().len());
    // The cursor's id has to come first, so the rest follows as additions.
    added.append_i64("getMore", remote.cursor);
    for element in banyan_document::elements(body).skip(1) {
        added.append_element(&element);
    }
    let outgoing = Outgoing::forward(&added.finish(), &[], &RawDocumentBuf::new());
    Ok(remote.member.exchange(&outgoing, None).await?)
}
