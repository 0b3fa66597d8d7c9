//! The shard that gives a range away.

use std::sync::Arc;
use std::time::{Duration, Instant};

use banyan_node::read_concern;
use banyan_sharding::{Chunk, ChunkRange, ShardKey};
use banyan_wire::{CommandError, ErrorCode, RequestOptions};
use bson::oid::ObjectId;
use bson::{RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

use super::capture::ChangeCapture;
use super::coordinator::CoordinatorDocument;
use super::donor_state::{DonorState, MoveRange};
use super::recovery::{self, Ended, Moved};
use crate::shard::errors::{bad_value, conflict, internal};
use crate::shard::keys::KeyView;
use crate::shard::metadata::{Block, Collection, Filter};
use crate::shard::state::{Identity, ShardRole};

/// A recipient that makes no progress for this long is given up.
const STALL_MAX: Duration = Duration::from_secs(120);

/// The critical section ends without a commit when the recipient takes longer than this.
const LAST_CHANGES_MAX: Duration = Duration::from_secs(10);

const ASK_TIMEOUT: Duration = Duration::from_secs(30);

const COMMIT_TIMEOUT: Duration = Duration::from_secs(15);

/// Between two looks at the recipient.
const LOOK_MIN: Duration = Duration::from_millis(5);
const LOOK_MAX: Duration = Duration::from_millis(200);

/// Streams that the recipient clones over, and the documents below which one is enough.
const STREAMS: usize = 3;
const DOCUMENTS_PER_STREAM_MIN: u64 = 2_000;

/// Moves a range to another shard, from start to end.
pub async fn move_range(role: &Arc<ShardRole>, request: MoveRange) -> Result<(), CommandError> {
    let identity = role.identified()?;
    if *request.to == *identity.name {
        return Err(bad_value("the range is to move to the shard that it is on"));
    }
    let term = role.term();
    let stays = role.chunk_changes.lock().await;
    role.refresh(&request.ns).await?;
    let collection = role.collection(&request.ns);
    let filter = collection.filter().ok_or_else(|| {
        CommandError::new(
            ErrorCode::NamespaceNotSharded,
            format!("{} is not sharded", request.ns),
        )
    })?;
    let range = ChunkRange::parse(filter.table.pattern(), &request.min, &request.max);
    let range = range.map_err(bad_value)?;
    let chunk = owned_chunk(&filter, &request, &range, &identity)?;
    let donor = Arc::new(DonorState {
        id: ObjectId::new(),
        term,
        ns: request.ns.clone(),
        range: range.clone(),
        pattern: filter.table.pattern().clone(),
        capture: Arc::new(ChangeCapture::new(filter.table.pattern().clone(), range)),
        indexes_changed: filter.table.entry().indexes_changed,
    });
    let session = Session::begin(role, &collection, &donor)?;
    drop(stays);
    let coordinator = CoordinatorDocument::new(&donor, &filter.table, &chunk, &identity, &request);
    let started = Instant::now();
    let outcome = session.run(&coordinator, &request).await;
    drop(session);
    if let Err(error) = role.log_known(&collection).await {
        // They ask for it when they have waited for long enough.
        tracing::warn!(ns = coordinator.ns, %error, "secondaries are not told that a migration is over");
    }
    match &outcome {
        Ok(()) => tracing::info!(
            ns = coordinator.ns, range = %donor.range, to = coordinator.to,
            milliseconds = started.elapsed().as_millis() as u64, "moved a range"
        ),
        Err(error) => tracing::warn!(
            ns = coordinator.ns, range = %donor.range, to = coordinator.to, %error, "a range was not moved"
        ),
    }
    outcome?;
    if request.wait_for_delete {
        role.orphans.wait_for(&role.local, donor.id).await?;
    }
    Ok(())
}

/// The chunk that the range lies in, if it is here and as the config primary saw it.
fn owned_chunk(
    filter: &Filter,
    request: &MoveRange,
    range: &ChunkRange,
    identity: &Identity,
) -> Result<Arc<Chunk>, CommandError> {
    if filter.table.version().epoch != request.epoch {
        let message = format!(
            "{} is not the collection that was meant any more",
            request.ns
        );
        return Err(CommandError::new(ErrorCode::StaleEpoch, message));
    }
    let chunk = filter.table.find(&range.min);
    if !chunk.range.covers(range) || chunk.shard != identity.name {
        return Err(conflict(format!(
            "range {range} is not within one chunk of this shard"
        )));
    }
    if chunk.lastmod != request.lastmod {
        return Err(conflict(format!(
            "chunk {} has changed since the move was planned",
            chunk.range
        )));
    }
    Ok(chunk.clone())
}

/// While this lives, writes of the range are captured; at its end nothing of the migration is left
/// in memory.
struct Session<'a> {
    role: &'a Arc<ShardRole>,
    collection: &'a Arc<Collection>,
    donor: &'a Arc<DonorState>,
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        self.collection.change(|state| {
            state.capture = None;
            state.block = None;
        });
        *self.role.donor.lock() = None;
    }
}

impl<'a> Session<'a> {
    fn begin(
        role: &'a Arc<ShardRole>,
        collection: &'a Arc<Collection>,
        donor: &'a Arc<DonorState>,
    ) -> Result<Session<'a>, CommandError> {
        let mut slot = role.donor.lock();
        if let Some(other) = &*slot {
            return Err(conflict(format!(
                "this shard is currently donating a chunk of {}",
                other.ns
            )));
        }
        *slot = Some(donor.clone());
        drop(slot);
        collection.change(|state| state.capture = Some(donor.capture.clone()));
        Ok(Session {
            role,
            collection,
            donor,
        })
    }

    async fn run(
        &self,
        coordinator: &CoordinatorDocument,
        request: &MoveRange,
    ) -> Result<(), CommandError> {
        // Writes that had begun before the capture may not have been seen by it; once they are
        // over, every snapshot holds them.
        self.role.drain_writes(&coordinator.ns).await;
        let before_commit = async {
            self.start_recipient(coordinator, request).await?;
            let received = self.wait_until_steady(coordinator).await?;
            recovery::write(self.role, coordinator).await?;
            self.block(false);
            self.role.drain_writes(&coordinator.ns).await;
            let marking = self.role.log_refreshing(self.collection);
            let marked = tokio::time::timeout(LAST_CHANGES_MAX, marking).await;
            marked.map_err(|_| conflict("secondaries cannot be told of the migration"))??;
            // Whatever is written there from now on is later than what has just been logged here,
            // and so a secondary of this shard that is to have seen it knows of the migration.
            let time = self.role.node().replica.clock.now();
            let request = rawdoc! {
                "_recvChunkCommit": &*coordinator.ns, "migrationId": coordinator.id,
                "$clusterTime": read_concern::gossip(time),
            };
            self.ask(coordinator, request, LAST_CHANGES_MAX).await?;
            if self.donor.capture.overflowed() {
                return Err(conflict("the range changes faster than it can be moved"));
            }
            self.check_term()?;
            Ok(received)
        };
        let received = match before_commit.await {
            Ok(received) => received,
            Err(error) => {
                // No commit was sent, so this is the end of it.
                recovery::conclude(self.role, coordinator, Ended::NotCommitted).await?;
                return Err(error);
            }
        };
        self.block(true);
        let committed = self.commit(coordinator).await?;
        let ended = match &committed {
            Ok(()) => Ended::Committed {
                moved: received,
                is_awaited: request.wait_for_delete,
            },
            Err(_) => Ended::NotCommitted,
        };
        recovery::conclude(self.role, coordinator, ended).await?;
        committed
    }

    fn check_term(&self) -> Result<(), CommandError> {
        if self.role.term() == self.donor.term {
            return Ok(());
        }
        let message = "this member has not been primary all the time";
        Err(CommandError::new(
            ErrorCode::InterruptedDueToReplStateChange,
            message,
        ))
    }

    fn block(&self, reads: bool) {
        self.collection
            .change(|state| state.block = Some(Block { reads, until: None }));
    }

    async fn ask(
        &self,
        coordinator: &CoordinatorDocument,
        request: RawDocumentBuf,
        timeout: Duration,
    ) -> Result<RawDocumentBuf, CommandError> {
        let request_options = RequestOptions::write()
            .timeout(Some(timeout))
            .server_selection_timeout(Duration::from_secs(5));
        let peer = self.role.peer(&coordinator.to_host)?;
        Ok(peer.command(request_options, "admin", &request).await?)
    }

    async fn start_recipient(
        &self,
        coordinator: &CoordinatorDocument,
        request: &MoveRange,
    ) -> Result<(), CommandError> {
        let cuts = self.cuts().await?;
        let mut points = RawArrayBuf::new();
        for cut in &cuts {
            points.push(cut.document().to_owned());
        }
        let request = rawdoc! {
            "_recvChunkStart": &*coordinator.ns,
            "migrationId": coordinator.id,
            "uuid": coordinator.uuid(),
            "key": self.donor.pattern.document().to_owned(),
            "min": coordinator.min.clone(),
            "max": coordinator.max.clone(),
            "fromShard": &*coordinator.from,
            "fromShardHost": request.from_host.as_str(),
            "toShard": &*coordinator.to,
            "cuts": points,
        };
        self.ask(coordinator, request, ASK_TIMEOUT).await.map(drop)
    }

    /// Where the range is cut for cloning.
    async fn cuts(&self) -> Result<Vec<ShardKey>, CommandError> {
        let (role, donor) = (self.role.clone(), self.donor.clone());
        let work = move || {
            let view = KeyView::open(role.node(), &donor.ns, &donor.pattern)?;
            let Some(view) = view else {
                return Ok(Vec::new());
            };
            let count = view.count(&donor.range)?;
            if count < DOCUMENTS_PER_STREAM_MIN {
                return Ok(Vec::new());
            }
            view.split_points(&donor.range, count, STREAMS)
        };
        tokio::task::spawn_blocking(work).await.map_err(internal)?
    }

    /// Waits until the recipient has everything, or what it lacks is so little that writes may
    /// wait for it. What it got.
    async fn wait_until_steady(
        &self,
        coordinator: &CoordinatorDocument,
    ) -> Result<Moved, CommandError> {
        let mut pause = LOOK_MIN;
        let mut progress = (Instant::now(), 0);
        let mut catching_up: Option<Instant> = None;
        loop {
            let request =
                rawdoc! { "_recvChunkStatus": &*coordinator.ns, "migrationId": coordinator.id };
            let status = self.ask(coordinator, request, ASK_TIMEOUT).await?;
            let bytes = number(&status, "clonedBytes");
            let documents = number(&status, "cloned");
            let moved = bytes + number(&status, "caughtUp") + number(&status, "cleared");
            match status.get_str("state").unwrap_or_default() {
                "steady" => return Ok(Moved { documents, bytes }),
                "catchup" => {
                    let since = catching_up.get_or_insert_with(Instant::now).elapsed();
                    if self.donor.capture.len() <= allowed_rest(documents, since) {
                        return Ok(Moved { documents, bytes });
                    }
                }
                "fail" => {
                    let reason = status.get_str("errmsg").unwrap_or("the recipient failed");
                    return Err(CommandError::new(ErrorCode::OperationFailed, reason));
                }
                _ => {}
            }
            if self.donor.capture.overflowed() {
                return Err(conflict("the range changes faster than it can be moved"));
            }
            if moved != progress.1 {
                progress = (Instant::now(), moved);
            } else if progress.0.elapsed() > STALL_MAX {
                let message = "the recipient makes no progress";
                return Err(CommandError::new(ErrorCode::ExceededTimeLimit, message));
            }
            self.check_term()?;
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LOOK_MAX);
        }
    }

    /// Commits, and finds out whether that worked. The outer error: nobody knows yet.
    async fn commit(
        &self,
        coordinator: &CoordinatorDocument,
    ) -> Result<Result<(), CommandError>, CommandError> {
        let identity = self.role.identified()?;
        let request_options = RequestOptions::write()
            .idempotent()
            .timeout(Some(COMMIT_TIMEOUT));
        let mut command = coordinator.commit_command();
        if let Some(changed) = self.donor.indexes_changed {
            command.append(cstr!("indexesChanged"), changed);
        }
        let sent = identity.config.command(request_options, &command).await;
        let certain = match &sent {
            Ok(_) => true,
            Err(error) => is_refusal(error.code),
        };
        let committed =
            recovery::find_out(self.role, coordinator, !certain, self.donor.term).await?;
        Ok(match (committed, sent) {
            (true, _) => Ok(()),
            (false, Err(error)) => Err(error),
            (false, Ok(_)) => Err(internal("the range was committed and came back at once")),
        })
    }
}

/// How many changed documents may be left for the critical section: a tenth of the range, and
/// more the longer the recipient has been trying to keep up.
fn allowed_rest(cloned: u64, catching_up: Duration) -> usize {
    let rest = (cloned / 10).clamp(200, 2_000) * (1 + catching_up.as_secs() / 2);
    usize::try_from(rest).unwrap_or(usize::MAX)
}

/// The config primary looked at the commit and said no: it will not say yes later.
fn is_refusal(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::ConflictingOperationInProgress
            | ErrorCode::StaleEpoch
            | ErrorCode::NamespaceNotSharded
            | ErrorCode::ShardNotFound
            | ErrorCode::BadValue
            | ErrorCode::CommandNotFound
    )
}

fn number(document: &RawDocument, field: &str) -> u64 {
    match document.get(field) {
        Ok(Some(RawBsonRef::Int64(n))) => u64::try_from(n).unwrap_or(0),
        Ok(Some(RawBsonRef::Int32(n))) => u64::try_from(n).unwrap_or(0),
        _ => 0,
    }
}
