//! A move to this shard that is under way.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use banyan_sharding::{ChunkRange, ShardKey, ShardKeyPattern};
use banyan_wire::{CommandError, ErrorCode};
use bson::oid::ObjectId;
use bson::{RawDocument, Timestamp};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::orphans::{Kind, NewTask};
use crate::shard::errors::{bad_value, internal};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Ready,
    Clone,
    CatchUp,
    Steady,
    Done,
    Fail,
}

impl Phase {
    pub fn name(self) -> &'static str {
        match self {
            Phase::Ready => "ready",
            Phase::Clone => "clone",
            Phase::CatchUp => "catchup",
            Phase::Steady => "steady",
            Phase::Done => "done",
            Phase::Fail => "fail",
        }
    }
}

/// A move to here that is under way.
pub struct RecipientState {
    pub id: ObjectId,
    pub ns: String,
    pub(super) uuid: [u8; 16],
    pub(super) pattern: ShardKeyPattern,
    pub range: ChunkRange,
    pub(super) from: String,
    pub(super) from_host: String,
    pub(super) cuts: Vec<ShardKey>,
    progress: Mutex<(Phase, Option<CommandError>)>,
    /// Bytes of orphans that were in the way and are gone.
    pub cleared: AtomicU64,
    pub cloned: AtomicU64,
    pub cloned_bytes: AtomicU64,
    pub caught_up: AtomicU64,
    /// The time up to which it is known what the donor's sessions have done.
    pub(super) sessions_until: Mutex<Timestamp>,
    /// The donor has stopped writes: what can be fetched now is the last.
    pub(super) last_call: AtomicBool,
    abandoned: AtomicBool,
    /// A change of `progress`, for those who wait for it; a change of the flags, for the task.
    moved: Notify,
    pub(super) nudge: Notify,
}

impl RecipientState {
    /// Reads `_recvChunkStart`.
    pub fn parse(body: &RawDocument) -> Result<RecipientState, CommandError> {
        let text = |name| body.get_str(name).map(str::to_owned).map_err(bad_value);
        let key = body.get_document("key").map_err(bad_value)?;
        let pattern = ShardKeyPattern::parse(key).map_err(bad_value)?;
        let min = body.get_document("min").map_err(bad_value)?;
        let max = body.get_document("max").map_err(bad_value)?;
        let mut cuts = Vec::new();
        for cut in body.get_array("cuts").map_err(bad_value)? {
            let cut = cut.map_err(bad_value)?;
            let cut = cut
                .as_document()
                .ok_or_else(|| bad_value("a cut is no document"))?;
            cuts.push(pattern.key_of_bound(cut).map_err(bad_value)?);
        }
        let uuid = body.get_binary("uuid").map_err(bad_value)?.bytes;
        Ok(RecipientState {
            id: body.get_object_id("migrationId").map_err(bad_value)?,
            ns: text("_recvChunkStart")?,
            uuid: uuid.try_into().map_err(bad_value)?,
            range: ChunkRange::parse(&pattern, min, max).map_err(bad_value)?,
            pattern,
            from: text("fromShard")?,
            from_host: text("fromShardHost")?,
            cuts,
            progress: Mutex::new((Phase::Ready, None)),
            cleared: AtomicU64::new(0),
            cloned: AtomicU64::new(0),
            cloned_bytes: AtomicU64::new(0),
            caught_up: AtomicU64::new(0),
            sessions_until: Mutex::new(Timestamp {
                time: 0,
                increment: 0,
            }),
            last_call: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
            moved: Notify::new(),
            nudge: Notify::new(),
        })
    }

    pub fn progress(&self) -> (Phase, Option<CommandError>) {
        self.progress.lock().clone()
    }

    /// Whether its task still runs. What it brought may be waiting for the donor's commit when it
    /// no longer does; the pending deletion says so then.
    pub fn is_active(&self) -> bool {
        !matches!(self.progress().0, Phase::Done | Phase::Fail)
    }

    pub(super) fn enter(&self, phase: Phase) {
        let mut progress = self.progress.lock();
        if progress.0 != phase {
            progress.0 = phase;
            drop(progress);
            self.moved.notify_waiters();
        }
    }

    pub fn abandon(&self) {
        self.abandoned.store(true, Ordering::Release);
        self.nudge.notify_one();
    }

    pub(super) fn check(&self) -> Result<(), CommandError> {
        if self.abandoned.load(Ordering::Acquire) {
            return Err(CommandError::new(
                ErrorCode::Interrupted,
                "the migration was abandoned",
            ));
        }
        Ok(())
    }

    /// Fetches the last changes and waits until they are in.
    pub async fn finish_up(&self) -> Result<(), CommandError> {
        self.last_call.store(true, Ordering::Release);
        self.nudge.notify_one();
        loop {
            let mut moved = std::pin::pin!(self.moved.notified());
            moved.as_mut().enable();
            match self.progress() {
                (Phase::Done, _) => return Ok(()),
                (Phase::Fail, error) => {
                    return Err(error.unwrap_or_else(|| internal("the migration failed")));
                }
                _ => moved.await,
            }
        }
    }

    pub(super) fn namespace(&self) -> Result<(&str, &str), CommandError> {
        self.ns
            .split_once('.')
            .ok_or_else(|| internal("a namespace without a dot"))
    }

    /// Its task has failed.
    pub(super) fn fail(&self, error: CommandError) {
        self.progress.lock().1 = Some(error);
        self.enter(Phase::Fail);
    }

    pub(super) async fn wait_until_over(&self) {
        loop {
            let mut moved = std::pin::pin!(self.moved.notified());
            moved.as_mut().enable();
            if !self.is_active() {
                return;
            }
            moved.await;
        }
    }

    /// What is to be removed if this comes to nothing.
    pub(super) fn task(&self) -> NewTask<'_> {
        NewTask {
            id: self.id,
            ns: &self.ns,
            uuid: self.uuid,
            key: self.pattern.document().to_owned(),
            min: self.range.min.document().to_owned(),
            max: self.range.max.document().to_owned(),
            donor: &self.from,
            documents: 0,
            bytes: 0,
            kind: Kind::Pending {
                donor_host: &self.from_host,
            },
        }
    }
}
