//! The taking side.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use banyan_consensus::SnapshotMeta;
use banyan_storage::transfer::checksum;
use banyan_storage::{Divergence, ImportScope, Importer, Part, SliceEnd, StorageError, Store};
use banyan_wire::params;
use banyan_wire::{ClientError, ErrorCode, Pool};
use bson::spec::BinarySubtype;
use bson::{RawBinaryRef, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::progress::InitialSync;
use crate::set::transport::Peers;

/// Slices that are fetched and written at once. Each holds a few chunks in memory.
const LANES: usize = 4;
/// Chunks that wait between the connection and the disk, for each lane.
const CHUNKS_AHEAD: usize = 1;
const CHUNK_TIMEOUT: Duration = Duration::from_secs(60);
/// A giver that cannot be reached is asked again for this long.
const UNREACHABLE_TIMEOUT: Duration = Duration::from_secs(30);
/// One whose host refuses connections has probably ended, and its snapshot with it.
const REFUSED_TIMEOUT: Duration = Duration::from_secs(5);
const RETRY_PAUSE: Duration = Duration::from_millis(250);
const DAMAGED_CHUNKS_MAX: u32 = 3;
const REPORT_EVERY: Duration = Duration::from_secs(10);

/// Fetches snapshots for this member.
pub struct Fetcher {
    peers: Arc<Peers>,
    store: Store,
    stop: CancellationToken,
    progress: Arc<InitialSync>,
}

/// Why a snapshot did not come in.
#[derive(Debug, Clone, thiserror::Error)]
enum Failure {
    #[error("{0}")]
    Other(String),
    #[error("{0} no longer offers the snapshot")]
    Gone(String),
    #[error("this process is shutting down")]
    Stopped,
}

impl From<StorageError> for Failure {
    fn from(error: StorageError) -> Failure {
        Failure::Other(error.to_string())
    }
}

fn other(what: impl Into<String>) -> Failure {
    Failure::Other(what.into())
}

/// What the giver said about its snapshot.
struct Plan {
    token: i64,
    index: u64,
    cuts: [Vec<Vec<u8>>; 2],
    bytes: [u64; 3],
}

struct Slice {
    part: Part,
    number: usize,
    after: Vec<u8>,
    end: SliceEnd,
}

/// Where a half done import came from; kept with it.
struct Source {
    host: String,
    token: i64,
    id_indexes_only: bool,
}

impl Source {
    fn encode(&self) -> RawDocumentBuf {
        rawdoc! { "host": self.host.as_str(), "token": self.token, "idIndexesOnly": self.id_indexes_only }
    }

    fn decode(bytes: &[u8]) -> Option<Source> {
        let document = RawDocument::from_bytes(bytes).ok()?;
        Some(Source {
            host: document.get_str("host").ok()?.to_owned(),
            token: document.get_i64("token").ok()?,
            id_indexes_only: document.get_bool("idIndexesOnly").ok()?,
        })
    }
}

impl Fetcher {
    pub fn new(
        peers: Arc<Peers>,
        store: Store,
        stop: CancellationToken,
        progress: Arc<InitialSync>,
    ) -> Fetcher {
        Fetcher {
            peers,
            store,
            stop,
            progress,
        }
    }

    /// Replaces the state of the store by the leader's, or goes on with what an earlier attempt
    /// has begun. Blocks; not to be called on a runtime's thread.
    pub fn fetch(&self, meta: &SnapshotMeta, scope: ImportScope) -> Result<(), String> {
        let started = Instant::now();
        let runtime = self.peers.runtime().ok_or("there is no runtime")?.clone();
        let mut source = meta.leader_address.clone();
        let outcome = self
            .prepare(&runtime, meta, scope)
            .and_then(|(fetching, importer)| {
                source = fetching.pool.address().to_owned();
                fetching.run(importer)
            });
        let outcome = outcome.map_err(|error| error.to_string());
        match &outcome {
            Ok(()) => tracing::info!(
                from = source,
                seconds = started.elapsed().as_secs_f64(),
                "the snapshot is in"
            ),
            Err(error) => tracing::warn!(from = source, error, "a snapshot was not fetched"),
        }
        self.progress.end(&source, started.elapsed(), &outcome);
        outcome
    }

    /// Finds a giver.
    fn prepare(
        &self,
        runtime: &Handle,
        meta: &SnapshotMeta,
        scope: ImportScope,
    ) -> Result<(Fetching<'_>, Importer), Failure> {
        if let Some(resumed) = self.resume(runtime, meta, scope)? {
            return Ok(resumed);
        }
        let pool = self.pool(&meta.leader_address)?;
        let asker = Asker::new(self, &pool, UNREACHABLE_TIMEOUT);
        let reply = runtime.block_on(asker.ask(&rawdoc! { "_fetchSnapshot": 1 }))?;
        let plan = Plan::parse(&reply)?;
        if plan.index < meta.position.index {
            return Err(other(format!(
                "{} offers its state at {}, but {} is needed",
                meta.leader_address, plan.index, meta.position.index
            )));
        }
        let source = Source {
            host: meta.leader_address.clone(),
            token: plan.token,
            id_indexes_only: scope == ImportScope::IdIndexes,
        };
        tracing::info!(
            from = source.host,
            index = plan.index,
            bytes = plan.bytes.iter().sum::<u64>(),
            "fetching a snapshot"
        );
        let importer = Importer::begin(&self.store, source.encode().as_bytes(), scope)?;
        Ok((self.fetching(runtime, pool, plan, &importer), importer))
    }

    /// What an earlier attempt has begun, if its giver still has the snapshot and that is young
    /// enough.
    fn resume(
        &self,
        runtime: &Handle,
        meta: &SnapshotMeta,
        scope: ImportScope,
    ) -> Result<Option<(Fetching<'_>, Importer)>, Failure> {
        let Some(importer) = Importer::resume(&self.store, scope)? else {
            return Ok(None);
        };
        let Some(source) = Source::decode(&importer.source()) else {
            return Ok(None);
        };
        if source.id_indexes_only != (scope == ImportScope::IdIndexes) {
            return Ok(None);
        }
        let pool = self.pool(&source.host)?;
        let asker = Asker::new(self, &pool, REFUSED_TIMEOUT);
        let request = rawdoc! { "_fetchSnapshot": 1, "token": source.token, "plan": true };
        let plan = match runtime.block_on(asker.ask(&request)) {
            Ok(reply) => Plan::parse(&reply)?,
            Err(Failure::Stopped) => return Err(Failure::Stopped),
            Err(error) => {
                tracing::info!(%error, "what was fetched of a snapshot cannot be completed");
                return Ok(None);
            }
        };
        if plan.index < meta.position.index {
            tracing::info!(
                index = plan.index,
                needed = meta.position.index,
                "what was fetched of a snapshot is too old by now"
            );
            let close = rawdoc! { "_fetchSnapshot": 1, "token": source.token, "close": true };
            let _ = runtime.block_on(asker.ask(&close));
            return Ok(None);
        }
        tracing::info!(
            from = source.host,
            index = plan.index,
            bytes = importer.bytes(Part::Records) + importer.bytes(Part::Indexes),
            "going on with a snapshot"
        );
        Ok(Some((
            self.fetching(runtime, pool, plan, &importer),
            importer,
        )))
    }

    fn pool(&self, address: &str) -> Result<Pool, Failure> {
        let pool = self.peers.pool(address);
        pool.ok_or_else(|| other("there is no connection to fetch over"))
    }

    fn fetching(
        &self,
        runtime: &Handle,
        pool: Pool,
        plan: Plan,
        importer: &Importer,
    ) -> Fetching<'_> {
        let copied = [
            importer.bytes(Part::Records),
            importer.bytes(Part::Indexes),
            0,
        ];
        self.progress
            .begin(pool.address(), plan.index, plan.bytes, copied);
        Fetching {
            fetcher: self,
            runtime: runtime.clone(),
            pool,
            plan,
            failure: Mutex::new(None),
        }
    }
}

/// One attempt.
struct Fetching<'a> {
    fetcher: &'a Fetcher,
    runtime: Handle,
    pool: Pool,
    plan: Plan,
    /// What went wrong first; the lanes stop at it.
    failure: Mutex<Option<Failure>>,
}

impl Fetching<'_> {
    fn run(&self, importer: Importer) -> Result<(), Failure> {
        let is_whole = !matches!(importer.scope(), ImportScope::MetaKeys(_));
        if is_whole {
            self.fetch_slices(&importer)?;
        }
        self.fetch_meta(&importer)?;
        if let Err(error) = self.verify(&importer) {
            // Nothing of it can be trusted.
            importer.discard()?;
            return Err(error);
        }
        importer.finish()?;
        let close = rawdoc! { "_fetchSnapshot": 1, "token": self.plan.token, "close": true };
        let asker = Asker::new(self.fetcher, &self.pool, Duration::ZERO);
        // If this is lost the offer ends by itself.
        let _ = self.runtime.block_on(asker.ask(&close));
        Ok(())
    }

    fn fetch_slices(&self, importer: &Importer) -> Result<(), Failure> {
        let slices = self.slices(importer);
        self.fetcher.progress.plan_slices(slices.len());
        let waiting = Mutex::new(VecDeque::from(slices));
        let reported = Mutex::new(Instant::now());
        thread::scope(|scope| {
            let lanes: Vec<_> = (0..LANES)
                .map(|_| scope.spawn(|| self.work_off(importer, &waiting, &reported)))
                .collect();
            for lane in lanes {
                if lane.join().is_err() {
                    self.fail(other("a fetching thread panicked"));
                }
            }
        });
        match self.failure.lock().take() {
            Some(failure) => Err(failure),
            None => Ok(()),
        }
    }

    fn fail(&self, failure: Failure) {
        self.failure.lock().get_or_insert(failure);
    }

    fn slices(&self, importer: &Importer) -> Vec<Slice> {
        let mut slices = Vec::new();
        for part in Part::SLICED {
            let Some(mut after) = importer.frontier(part) else {
                continue;
            };
            let mut number = 0;
            let mut push = |after: Vec<u8>, end| {
                slices.push(Slice {
                    part,
                    number,
                    after,
                    end,
                });
                number += 1;
            };
            for cut in &self.plan.cuts[usize::from(part.tag())] {
                if *cut > after {
                    push(
                        std::mem::replace(&mut after, cut.clone()),
                        SliceEnd::Key(cut.clone()),
                    );
                }
            }
            push(after, SliceEnd::Part);
        }
        slices
    }

    /// A lane: takes slices, in order, until there are none.
    fn work_off(
        &self,
        importer: &Importer,
        waiting: &Mutex<VecDeque<Slice>>,
        reported: &Mutex<Instant>,
    ) {
        loop {
            let Some(slice) = waiting.lock().pop_front() else {
                return;
            };
            if let Err(failure) = self.fetch_slice(importer, &slice) {
                self.fail(failure);
                return;
            }
            self.fetcher.progress.slice_done();
            self.report(reported);
        }
    }

    fn report(&self, reported: &Mutex<Instant>) {
        let mut reported = reported.lock();
        if reported.elapsed() >= REPORT_EVERY
            && let Some(status) = self.fetcher.progress.status()
        {
            *reported = Instant::now();
            tracing::info!("{}", status.line());
        }
    }

    fn fetch_slice(&self, importer: &Importer, slice: &Slice) -> Result<(), Failure> {
        let (chunks, mut arriving) = mpsc::channel(CHUNKS_AHEAD);
        let until = match &slice.end {
            SliceEnd::Key(key) => Some(key.clone()),
            SliceEnd::Part => None,
        };
        let asker = Asker::new(self.fetcher, &self.pool, UNREACHABLE_TIMEOUT);
        let (token, part, after) = (self.plan.token, slice.part, slice.after.clone());
        let fetching = self.runtime.spawn(async move {
            let fetched = asker.chunks(token, part, after, until, &chunks).await;
            if let Err(failure) = fetched {
                // Nobody listens any more if the writing has failed.
                let _ = chunks.send(Err(failure)).await;
            }
        });
        let arrived = std::iter::from_fn(|| {
            if self.failure.lock().is_some() {
                return Some(Err(Failure::Stopped));
            }
            let chunk: Option<Result<Reply, Failure>> = arriving.blocking_recv();
            chunk.map(|chunk| {
                let chunk = chunk.inspect_err(|failure| self.fail(failure.clone()))?;
                self.fetcher
                    .progress
                    .copied(slice.part, chunk.pairs().len());
                Ok(chunk)
            })
        });
        let (part, number) = (slice.part, slice.number);
        let written = importer.write_slice(part, number, &slice.after, &slice.end, arrived);
        fetching.abort();
        written
    }

    fn fetch_meta(&self, importer: &Importer) -> Result<(), Failure> {
        let (chunks, mut arriving) = mpsc::channel(CHUNKS_AHEAD);
        let asker = Asker::new(self.fetcher, &self.pool, UNREACHABLE_TIMEOUT);
        let token = self.plan.token;
        self.runtime.spawn(async move {
            let fetched = asker.chunks(token, Part::Meta, Vec::new(), None, &chunks);
            if let Err(failure) = fetched.await {
                let _ = chunks.send(Err(failure)).await;
            }
        });
        while let Some(chunk) = arriving.blocking_recv() {
            let chunk: Reply = chunk?;
            self.fetcher
                .progress
                .copied(Part::Meta, chunk.pairs().len());
            importer.write_meta(chunk.pairs())?;
        }
        Ok(())
    }

    /// Where something else arrived than the catalog counts, the giver is asked to count.
    fn verify(&self, importer: &Importer) -> Result<(), Failure> {
        for diverging in importer.compare()? {
            let Divergence {
                part, id, arrived, ..
            } = diverging;
            let request = rawdoc! {
                "_fetchSnapshot": 1,
                "token": self.plan.token,
                "part": i32::from(part.tag()),
                "count": i64::from(id),
            };
            let asker = Asker::new(self.fetcher, &self.pool, UNREACHABLE_TIMEOUT);
            let reply = self.runtime.block_on(asker.ask(&request))?;
            let counted = (integer(&reply, "entries"), integer(&reply, "bytes"));
            if counted == (Some(arrived.entries), Some(arrived.bytes)) {
                tracing::warn!(
                    what = diverging.name,
                    counted = ?diverging.expected,
                    found = ?arrived,
                    "the catalog of {} counts wrong",
                    self.pool.address()
                );
            } else {
                tracing::error!(
                    what = diverging.name,
                    given = ?counted,
                    arrived = ?arrived,
                    "a snapshot did not arrive as it was: starting over"
                );
                return Err(other(format!("{} did not arrive whole", diverging.name)));
            }
        }
        Ok(())
    }
}

impl Plan {
    fn parse(reply: &RawDocument) -> Result<Plan, Failure> {
        let needed = |name: &str| {
            integer(reply, name).ok_or_else(|| other(format!("a plan without {name}")))
        };
        let mut cuts = [Vec::new(), Vec::new()];
        for (cuts, name) in cuts.iter_mut().zip(["recordsCuts", "indexesCuts"]) {
            let list = reply
                .get_array(name)
                .map_err(|error| other(error.to_string()))?;
            for cut in list {
                let Ok(RawBsonRef::Binary(cut)) = cut else {
                    return Err(other("a plan whose cuts are no keys"));
                };
                cuts.push(cut.bytes.to_vec());
            }
        }
        Ok(Plan {
            token: needed("token")? as i64,
            index: needed("index")?,
            cuts,
            bytes: [
                needed("recordsBytes")?,
                needed("indexesBytes")?,
                needed("metaBytes")?,
            ],
        })
    }
}

/// A reply that carries pairs.
struct Reply {
    document: RawDocumentBuf,
}

impl Reply {
    fn pairs(&self) -> &[u8] {
        binary(&self.document, "pairs").unwrap_or_default()
    }
}

impl AsRef<[u8]> for Reply {
    fn as_ref(&self) -> &[u8] {
        self.pairs()
    }
}

/// Asks the giver, again and again while it cannot be reached.
struct Asker {
    pool: Pool,
    stop: CancellationToken,
    timeout: Duration,
}

impl Asker {
    fn new(fetcher: &Fetcher, pool: &Pool, timeout: Duration) -> Asker {
        Asker {
            pool: pool.clone(),
            stop: fetcher.stop.clone(),
            timeout,
        }
    }

    async fn ask(&self, request: &RawDocument) -> Result<RawDocumentBuf, Failure> {
        let started = Instant::now();
        loop {
            let reply = tokio::select! {
                () = self.stop.cancelled() => return Err(Failure::Stopped),
                reply = self.pool.command("admin", request, Some(CHUNK_TIMEOUT)) => reply,
            };
            let error = match reply {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            let timeout = match &error {
                ClientError::Command(error) if error.code == ErrorCode::NoSuchKey => {
                    return Err(Failure::Gone(self.pool.address().to_owned()));
                }
                ClientError::Command(_) => return Err(other(error.to_string())),
                ClientError::Connect { source, .. }
                    if source.kind() == std::io::ErrorKind::ConnectionRefused =>
                {
                    self.timeout.min(REFUSED_TIMEOUT)
                }
                _ => self.timeout,
            };
            if started.elapsed() >= timeout {
                return Err(other(error.to_string()));
            }
            tracing::debug!(%error, "asking again for a part of a snapshot");
            tokio::select! {
                () = self.stop.cancelled() => return Err(Failure::Stopped),
                () = tokio::time::sleep(RETRY_PAUSE) => {}
            }
        }
    }

    /// Hands on all chunks of a range, in order.
    async fn chunks(
        &self,
        token: i64,
        part: Part,
        mut after: Vec<u8>,
        until: Option<Vec<u8>>,
        chunks: &mpsc::Sender<Result<Reply, Failure>>,
    ) -> Result<(), Failure> {
        loop {
            let mut request =
                rawdoc! { "_fetchSnapshot": 1, "token": token, "part": i32::from(part.tag()) };
            if !after.is_empty() {
                request.append(cstr!("after"), as_binary(&after));
            }
            if let Some(until) = &until {
                request.append(cstr!("until"), as_binary(until));
            }
            let document = self.ask_for_chunk(&request).await?;
            let next = binary(&document, "next").map(<[u8]>::to_vec);
            if chunks.send(Ok(Reply { document })).await.is_err() {
                return Ok(());
            }
            match next {
                Some(next) => after = next,
                None => return Ok(()),
            }
        }
    }

    async fn ask_for_chunk(&self, request: &RawDocument) -> Result<RawDocumentBuf, Failure> {
        let mut damaged = 0;
        loop {
            let reply = self.ask(request).await?;
            let pairs = binary(&reply, "pairs").ok_or_else(|| other("a chunk without content"))?;
            if integer(&reply, "checksum") == Some(u64::from(checksum(pairs))) {
                return Ok(reply);
            }
            damaged += 1;
            tracing::error!(
                from = self.pool.address(),
                "a chunk of a snapshot was damaged on its way"
            );
            if damaged == DAMAGED_CHUNKS_MAX {
                return Err(other("chunks arrive damaged"));
            }
        }
    }
}

fn integer(document: &RawDocument, name: &str) -> Option<u64> {
    let value = document.get(name).ok().flatten().and_then(params::number);
    value.and_then(|value| u64::try_from(value).ok())
}

fn as_binary(bytes: &[u8]) -> RawBinaryRef<'_> {
    RawBinaryRef {
        subtype: BinarySubtype::Generic,
        bytes,
    }
}

fn binary<'a>(document: &'a RawDocument, name: &str) -> Option<&'a [u8]> {
    match document.get(name).ok().flatten() {
        Some(RawBsonRef::Binary(binary)) => Some(binary.bytes),
        _ => None,
    }
}
