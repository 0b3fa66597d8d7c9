//! Several shards' cursors read as one, in the order of a sort if there is one.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use banyan_document::DocumentWriter;
use banyan_query::sort::{SORT_KEY_FIELD, SortPattern};
use banyan_wire::behalf;
use banyan_wire::{CommandError, Doc, ErrorCode, Pool};
use bson::raw::cstr;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use futures::future::join_all;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::answer::Answer;
use crate::errors::query_error;

/// How long a shard is waited for that is to close a cursor.
pub const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// A shard's cursor and what it has sent that nobody has taken yet.
pub struct Remote {
    pub shard: Arc<str>,
    member: Pool,
    database: String,
    collection: String,
    /// 0 when the shard has sent everything.
    cursor: i64,
    ready: VecDeque<Doc>,
    /// The sort key of the first document in `ready`.
    head: Option<Vec<u8>>,
    session: Option<RawDocumentBuf>,
    /// Whose the cursor is, as the shard was told.
    client: Option<Arc<RawDocumentBuf>>,
    batch_size: Option<i64>,
}

impl Remote {
    /// Takes over the cursor that a shard's reply opens.
    pub fn open(answer: Answer, session: Option<RawDocumentBuf>) -> Result<Remote, CommandError> {
        let broken = |what: &str| {
            let text = format!("shard {}: reply without {what}", answer.shard);
            CommandError::new(ErrorCode::OperationFailed, text)
        };
        let cursor = answer
            .reply
            .get_document("cursor")
            .map_err(|_| broken("a cursor"))?;
        let ns = cursor.get_str("ns").map_err(|_| broken("a namespace"))?;
        let (database, collection) = ns.split_once('.').ok_or_else(|| broken("a namespace"))?;
        let mut remote = Remote {
            shard: answer.shard.clone(),
            member: answer.member.clone(),
            database: database.to_owned(),
            collection: collection.to_owned(),
            cursor: 0,
            ready: VecDeque::new(),
            head: None,
            session,
            client: behalf::current(),
            batch_size: None,
        };
        remote.accept(answer.reply)?;
        Ok(remote)
    }

    /// Limits how many documents the shard sends at once.
    pub fn set_batch_size(&mut self, batch_size: Option<i64>) {
        self.batch_size = batch_size.filter(|&size| size > 0);
    }

    /// Keeps the batch of a reply; its documents share the reply's bytes.
    fn accept(&mut self, reply: RawDocumentBuf) -> Result<(), CommandError> {
        let reply = Doc::from(reply);
        let malformed = |error: bson::error::Error| {
            let text = format!("shard {}: {error}", self.shard);
            CommandError::new(ErrorCode::OperationFailed, text)
        };
        let cursor = reply.get_document("cursor").map_err(malformed)?;
        self.cursor = cursor.get_i64("id").map_err(malformed)?;
        let batch = cursor
            .get_array("firstBatch")
            .or_else(|_| cursor.get_array("nextBatch"))
            .map_err(malformed)?;
        for value in batch {
            if let RawBsonRef::Document(document) = value.map_err(malformed)? {
                self.ready.push_back(reply.slice_of(document));
            }
        }
        Ok(())
    }

    fn is_dry(&self) -> bool {
        self.ready.is_empty() && self.cursor != 0
    }

    fn is_done(&self) -> bool {
        self.ready.is_empty() && self.cursor == 0
    }

    /// Asks the shard for its next batch.
    async fn fetch(&mut self) -> Result<(), CommandError> {
        let mut command = rawdoc! {"getMore": self.cursor, "collection": self.collection.as_str()};
        if let Some(size) = self.batch_size {
            command.append(cstr!("batchSize"), size);
        }
        if let Some(session) = &self.session {
            command.append(cstr!("lsid"), session.clone());
        }
        let reply = self.member.command(&self.database, &command, None).await?;
        self.accept(reply)
    }

    /// Closes the shard's cursor, if it is open, also if nobody waits for that.
    fn kill(&mut self) -> Option<JoinHandle<()>> {
        let cursor = std::mem::take(&mut self.cursor);
        // Without a runtime the process is ending, and its connections with it.
        let runtime = Handle::try_current().ok().filter(|_| cursor != 0)?;
        let mut command = rawdoc! {"killCursors": self.collection.as_str(), "cursors": [cursor]};
        if let Some(session) = &self.session {
            command.append(cstr!("lsid"), session.clone());
        }
        let (member, database) = (self.member.clone(), self.database.clone());
        let kill = async move {
            // A cursor that can't be killed times out by itself.
            let _ = member
                .command(&database, &command, Some(KILL_TIMEOUT))
                .await;
        };
        Some(runtime.spawn(behalf::on_behalf_of(self.client.clone(), kill)))
    }
}

impl Drop for Remote {
    /// A command that is cut off at its deadline leaves no cursors behind.
    fn drop(&mut self) {
        drop(self.kill());
    }
}

/// By what several shards' documents are put in one order.
pub enum Order {
    By(SortPattern),
    /// Each brings its place in [`SORT_KEY_FIELD`], which goes no further.
    Sent,
}

impl Order {
    fn key(&self, document: &RawDocument) -> Result<Vec<u8>, CommandError> {
        match self {
            Order::By(pattern) => pattern.key(document).map_err(query_error),
            Order::Sent => match document.get(SORT_KEY_FIELD) {
                Ok(Some(RawBsonRef::Binary(key))) => Ok(key.bytes.to_vec()),
                _ => Err(CommandError::new(
                    ErrorCode::OperationFailed,
                    "a shard sent a document without its place in the order",
                )),
            },
        }
    }
}

/// What is done with the documents on their way through the router.
#[derive(Default)]
pub struct Shape {
    pub sort: Option<Order>,
    pub skip: u64,
    pub limit: Option<u64>,
    /// Documents are told the values that they are sorted by, for `$meta`.
    pub tells_sort_key: bool,
}

pub struct Merge {
    remotes: Vec<Remote>,
    shape: Shape,
}

impl Merge {
    pub fn new(remotes: Vec<Remote>, shape: Shape) -> Merge {
        Merge { remotes, shape }
    }

    /// The next document; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Doc>, CommandError> {
        loop {
            if self.shape.limit == Some(0) {
                self.kill().await;
                return Ok(None);
            }
            let Some((_, document)) = self.take().await? else {
                return Ok(None);
            };
            if self.shape.skip > 0 {
                self.shape.skip -= 1;
                continue;
            }
            if let Some(limit) = &mut self.shape.limit {
                *limit -= 1;
            }
            return Ok(Some(match &self.shape.sort {
                Some(Order::Sent) => without_sort_key(&document).into(),
                Some(Order::By(order)) if self.shape.tells_sort_key => {
                    with_sort_key(order, &document)?.into()
                }
                _ => document,
            }));
        }
    }

    /// How many of the documents each shard has. The documents themselves are not wanted.
    pub async fn shares(mut self) -> Result<HashMap<Arc<str>, i64>, CommandError> {
        let mut shares: HashMap<Arc<str>, i64> = HashMap::new();
        while self.shape.limit != Some(0) {
            let Some((index, _)) = self.take().await? else {
                return Ok(shares);
            };
            let shard = self.remotes[index].shard.clone();
            *shares.entry(shard).or_default() += 1;
            if let Some(limit) = &mut self.shape.limit {
                *limit -= 1;
            }
        }
        self.kill().await;
        Ok(shares)
    }

    /// Whether the end is known to have been reached.
    pub fn is_done(&self) -> bool {
        self.shape.limit == Some(0) || self.remotes.iter().all(Remote::is_done)
    }

    /// Whether the next document is here already.
    pub fn is_ready(&self) -> bool {
        match self.shape.sort {
            Some(_) => !self.remotes.iter().any(Remote::is_dry),
            None => self.remotes.iter().any(|remote| !remote.ready.is_empty()),
        }
    }

    /// The next document, and which of the remotes it is from.
    async fn take(&mut self) -> Result<Option<(usize, Doc)>, CommandError> {
        loop {
            if !self.is_ready() {
                self.refill().await?;
            }
            let Some(index) = self.least()? else {
                if self.remotes.iter().all(Remote::is_done) {
                    return Ok(None);
                }
                continue;
            };
            let Some(remote) = self.remotes.get_mut(index) else {
                return Ok(None);
            };
            remote.head = None;
            if let Some(document) = remote.ready.pop_front() {
                return Ok(Some((index, document)));
            }
        }
    }

    /// The remote that holds the next document.
    fn least(&mut self) -> Result<Option<usize>, CommandError> {
        let Some(sort) = &self.shape.sort else {
            return Ok(self
                .remotes
                .iter()
                .position(|remote| !remote.ready.is_empty()));
        };
        for remote in &mut self.remotes {
            if remote.head.is_none()
                && let Some(first) = remote.ready.front()
            {
                remote.head = Some(sort.key(first)?);
            }
        }
        let with_head = self.remotes.iter().enumerate();
        Ok(with_head
            .filter_map(|(index, remote)| Some((remote.head.as_ref()?, index)))
            .min()
            .map(|(_, index)| index))
    }

    /// Fetches for every remote that has nothing ready, all at once.
    async fn refill(&mut self) -> Result<(), CommandError> {
        let dry = self.remotes.iter_mut().filter(|remote| remote.is_dry());
        let fetched = join_all(dry.map(Remote::fetch)).await;
        for outcome in fetched {
            if let Err(error) = outcome {
                self.kill().await;
                return Err(error);
            }
        }
        Ok(())
    }

    pub async fn kill(&mut self) {
        join_all(self.remotes.iter_mut().filter_map(Remote::kill)).await;
        for remote in &mut self.remotes {
            remote.ready.clear();
        }
    }
}

fn with_sort_key(
    order: &SortPattern,
    document: &RawDocument,
) -> Result<RawDocumentBuf, CommandError> {
    let mut told = document.to_owned();
    told.append(
        SORT_KEY_FIELD,
        order.key_values(document).map_err(query_error)?,
    );
    Ok(told)
}

fn without_sort_key(document: &RawDocument) -> RawDocumentBuf {
    let mut rest = DocumentWriter::with_capacity(document.as_bytes().len());
    for element in banyan_document::elements(document) {
        if element.name() != SORT_KEY_FIELD.as_str() {
            rest.append_element(&element);
        }
    }
    rest.finish()
}
