//! Cursors: what is left of a result after a batch has gone out.
//!
//! A cursor belongs to the manager between two `getMore`s and to the command that continues it
//! while one runs, so no lock is held while documents are read. Cursors are bounded in number and
//! in the time that they may lie idle.

mod ahead;
pub mod batch;
mod cursor;
pub mod first;
mod idle;
pub mod read_ahead;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use banyan_access::identity::UserDigest;
use banyan_execution::{Cause, Interrupt};
use banyan_wire::{CommandError, ErrorCode, SessionId};
use parking_lot::Mutex;
use tokio::sync::oneshot;

pub use cursor::{Cursor, Following, Opener, Tail};
pub use idle::IdleCursor;

/// Open cursors are spread over this many locks.
const SHARDS: usize = 16;

/// More open cursors than this are refused.
const CURSORS_MAX: usize = 20_000;

/// A cursor that is idle and has held a snapshot for so long keeps its position and lets the snapshot
/// go: old versions of what changes meanwhile need not be kept for it, however often it is read.
pub const REST_AFTER: Duration = Duration::from_secs(1);

/// How long a cursor may lie idle, MongoDB's `cursorTimeoutMillis`.
pub const IDLE_DEFAULT: Duration = Duration::from_secs(600);

/// A cursor that was taken out: by whoever reads its next batch ahead, perhaps.
pub enum Taken {
    Here(Box<Cursor>),
    Lent {
        back: oneshot::Receiver<Box<Cursor>>,
        /// Of the reading.
        interrupt: Interrupt,
    },
}

enum Slot {
    /// Its next batch is being read ahead.
    Lent {
        namespace: String,
        opener: Opener,
        interrupt: Interrupt,
        back: oneshot::Receiver<Box<Cursor>>,
    },
    Idle {
        cursor: Box<Cursor>,
        since: Instant,
        /// It was told to let its snapshot go.
        rests: bool,
    },
    InUse {
        namespace: String,
        opener: Opener,
        interrupt: Interrupt,
    },
}

impl Slot {
    fn namespace(&self) -> &str {
        match self {
            Slot::Idle { cursor, .. } => &cursor.namespace,
            Slot::InUse { namespace, .. } | Slot::Lent { namespace, .. } => namespace,
        }
    }

    fn opener(&self) -> Opener {
        match self {
            Slot::Idle { cursor, .. } => cursor.opener,
            Slot::InUse { opener, .. } | Slot::Lent { opener, .. } => *opener,
        }
    }

    /// Whoever reads ahead stops.
    fn end_reading(&self) {
        if let Slot::Lent { interrupt, .. } = self {
            interrupt.raise(Cause::CursorKilled);
        }
    }
}

/// Whether a cursor that was taken has been killed meanwhile.
fn is_killed(slot: Option<&Slot>) -> bool {
    match slot {
        Some(Slot::InUse { interrupt, .. }) => interrupt.is_raised(),
        _ => true,
    }
}

/// All open cursors of the process.
pub struct CursorManager {
    shards: Box<[Mutex<HashMap<i64, Slot>>]>,
    open: AtomicUsize,
    timed_out: AtomicU64,
    opened: AtomicU64,
    idle_max_ms: AtomicI64,
    /// Bytes reserved for batches that are read ahead.
    read_ahead: Arc<AtomicUsize>,
}

impl Default for CursorManager {
    fn default() -> Self {
        CursorManager::new()
    }
}

impl CursorManager {
    pub fn new() -> CursorManager {
        CursorManager {
            shards: (0..SHARDS).map(|_| Mutex::new(HashMap::new())).collect(),
            open: AtomicUsize::new(0),
            timed_out: AtomicU64::new(0),
            opened: AtomicU64::new(0),
            idle_max_ms: AtomicI64::new(
                i64::try_from(IDLE_DEFAULT.as_millis()).unwrap_or(i64::MAX),
            ),
            read_ahead: Arc::default(),
        }
    }

    fn shard(&self, id: i64) -> &Mutex<HashMap<i64, Slot>> {
        &self.shards[id.unsigned_abs() as usize % SHARDS]
    }

    /// Keeps a cursor and names it.
    pub fn open(&self, mut cursor: Cursor) -> Result<i64, CommandError> {
        if self.open.load(Ordering::Relaxed) >= CURSORS_MAX {
            return Err(CommandError::new(
                ErrorCode::ExceededMemoryLimit,
                format!("too many open cursors: {CURSORS_MAX} at most"),
            ));
        }
        cursor.detach();
        let mut cursor = Some(Box::new(cursor));
        loop {
            // Unpredictable, so that one client cannot guess another's; never 0, which means none.
            let id = rand::random::<i64>() & i64::MAX;
            let mut shard = self.shard(id).lock();
            if id == 0 || shard.contains_key(&id) {
                continue;
            }
            if let Some(cursor) = cursor.take() {
                shard.insert(
                    id,
                    Slot::Idle {
                        cursor,
                        since: Instant::now(),
                        rests: false,
                    },
                );
            }
            self.open.fetch_add(1, Ordering::Relaxed);
            self.opened.fetch_add(1, Ordering::Relaxed);
            return Ok(id);
        }
    }

    /// Takes a cursor out to continue it, if whoever asks is allowed to continue what was opened so.
    /// Give it back with [`CursorManager::put_back`], or [`CursorManager::close`] it.
    pub fn take(
        &self,
        id: i64,
        namespace: &str,
        interrupt: &Interrupt,
        allowed: impl FnOnce(&Opener) -> Result<(), CommandError>,
    ) -> Result<Taken, CommandError> {
        let mut shard = self.shard(id).lock();
        let Some(slot) = shard.get_mut(&id) else {
            return Err(not_found(id));
        };
        if slot.namespace() != namespace {
            return Err(CommandError::new(
                ErrorCode::Unauthorized,
                format!(
                    "Requested getMore on namespace '{namespace}', but cursor belongs to a \
                     different namespace {}",
                    slot.namespace()
                ),
            ));
        }
        if matches!(slot, Slot::InUse { .. }) {
            return Err(CommandError::new(
                ErrorCode::CursorInUse,
                format!("cursor id {id} is already in use"),
            ));
        }
        let opener = slot.opener();
        allowed(&opener)?;
        let taken = Slot::InUse {
            namespace: namespace.to_string(),
            opener,
            interrupt: interrupt.clone(),
        };
        match std::mem::replace(slot, taken) {
            Slot::Idle {
                mut cursor, rests, ..
            } => {
                if rests {
                    cursor.awake_since = Instant::now();
                }
                Ok(Taken::Here(cursor))
            }
            Slot::Lent {
                back, interrupt, ..
            } => Ok(Taken::Lent { back, interrupt }),
            Slot::InUse { .. } => Err(not_found(id)),
        }
    }

    /// As [`CursorManager::put_back`], for a cursor that goes on being read. It comes back by
    /// [`CursorManager::take_back`].
    fn lend(
        &self,
        id: i64,
        cursor: &Cursor,
        interrupt: &Interrupt,
        back: oneshot::Receiver<Box<Cursor>>,
    ) -> Result<(), CommandError> {
        let mut shard = self.shard(id).lock();
        if is_killed(shard.get(&id)) {
            if shard.remove(&id).is_some() {
                self.open.fetch_sub(1, Ordering::Relaxed);
            }
            return Err(not_found(id));
        }
        let lent = Slot::Lent {
            namespace: cursor.namespace.clone(),
            opener: cursor.opener,
            interrupt: interrupt.clone(),
            back,
        };
        shard.insert(id, lent);
        Ok(())
    }

    /// A cursor is idle again, or goes to the `getMore` that waits for it. If it was killed meanwhile
    /// it is gone.
    fn take_back(&self, id: i64, mut cursor: Box<Cursor>, waiting: oneshot::Sender<Box<Cursor>>) {
        cursor.detach();
        let rests = cursor.awake_since.elapsed() >= REST_AFTER;
        if rests {
            cursor.rest();
        }
        let mut shard = self.shard(id).lock();
        match shard.get_mut(&id) {
            Some(slot @ Slot::Lent { .. }) => {
                *slot = Slot::Idle {
                    cursor,
                    since: Instant::now(),
                    rests,
                };
            }
            Some(Slot::InUse { .. }) => {
                drop(shard);
                if rests {
                    cursor.awake_since = Instant::now();
                }
                // If nobody waits any more, the command that did has closed it.
                let _ = waiting.send(cursor);
            }
            Some(Slot::Idle { .. }) | None => {
                drop(shard);
            }
        }
    }

    /// Closes a cursor that does not come back.
    fn forget_lent(&self, id: i64) {
        let mut shard = self.shard(id).lock();
        if matches!(shard.get(&id), Some(Slot::Lent { .. })) {
            shard.remove(&id);
            self.open.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Gives a cursor back; it is closed if it was killed meanwhile.
    pub fn put_back(&self, id: i64, mut cursor: Box<Cursor>) -> Result<(), CommandError> {
        cursor.detach();
        let rests = cursor.awake_since.elapsed() >= REST_AFTER;
        if rests {
            cursor.rest();
        }
        let mut shard = self.shard(id).lock();
        if is_killed(shard.get(&id)) {
            if shard.remove(&id).is_some() {
                self.open.fetch_sub(1, Ordering::Relaxed);
            }
            return Err(not_found(id));
        }
        shard.insert(
            id,
            Slot::Idle {
                cursor,
                since: Instant::now(),
                rests,
            },
        );
        Ok(())
    }

    /// Closes a cursor that was taken, unless told that it was given back. For commands that end
    /// early: by an error, by a panic, by being dropped.
    pub fn guard(&self, id: i64) -> Guard<'_> {
        Guard {
            manager: self,
            id,
            armed: true,
        }
    }

    /// Removes a cursor that is exhausted.
    pub fn close(&self, id: i64) {
        if self.shard(id).lock().remove(&id).is_some() {
            self.open.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Whether the cursor was opened by that user. `None`: there is no such cursor.
    pub fn is_owned(&self, id: i64, user: &UserDigest) -> Option<bool> {
        let shard = self.shard(id).lock();
        shard
            .get(&id)
            .map(|slot| slot.opener().user.as_ref() == Some(user))
    }

    /// Whether there was such a cursor on that namespace.
    pub fn kill(&self, id: i64, namespace: &str) -> bool {
        self.kill_if(id, |slot| slot.namespace() == namespace)
    }

    /// As [`CursorManager::kill`], for a client that cannot say where the cursor is.
    pub fn kill_any(&self, id: i64) -> bool {
        self.kill_if(id, |_| true)
    }

    fn kill_if(&self, id: i64, fits: impl Fn(&Slot) -> bool) -> bool {
        let mut shard = self.shard(id).lock();
        let Some(slot) = shard.get(&id).filter(|slot| fits(slot)) else {
            return false;
        };
        match slot {
            // Whoever holds it sees the cause, and removes it when giving it back.
            Slot::InUse { interrupt, .. } => interrupt.raise(Cause::CursorKilled),
            Slot::Idle { .. } | Slot::Lent { .. } => {
                slot.end_reading();
                let removed = shard.remove(&id);
                drop(shard);
                self.open.fetch_sub(1, Ordering::Relaxed);
                drop(removed);
            }
        }
        true
    }

    /// Kills what fits: the cursors of a session, of a dropped collection.
    fn kill_where(&self, fits: impl Fn(&Slot) -> bool) -> usize {
        let mut killed = 0;
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.retain(|_, slot| {
                if !fits(slot) {
                    return true;
                }
                killed += 1;
                if let Slot::InUse { interrupt, .. } = slot {
                    interrupt.raise(Cause::CursorKilled);
                    return true;
                }
                slot.end_reading();
                self.open.fetch_sub(1, Ordering::Relaxed);
                false
            });
        }
        killed
    }

    pub fn kill_sessions(&self, fits: impl Fn(&SessionId) -> bool) -> usize {
        self.kill_where(|slot| slot.opener().session.is_some_and(|session| fits(&session)))
    }

    pub fn kill_namespace(&self, namespace: &str) -> usize {
        self.kill_where(|slot| slot.namespace() == namespace)
    }

    pub fn kill_all(&self) -> usize {
        self.kill_where(|_| true)
    }

    pub fn set_idle_max(&self, idle_max: Duration) {
        let milliseconds = i64::try_from(idle_max.as_millis()).unwrap_or(i64::MAX);
        self.idle_max_ms.store(milliseconds, Ordering::Relaxed);
    }

    /// Closes cursors that have been idle for too long; to be called every few seconds.
    pub fn reap(&self) -> usize {
        let idle_max = Duration::from_millis(
            self.idle_max_ms
                .load(Ordering::Relaxed)
                .max(0)
                .unsigned_abs(),
        );
        let now = Instant::now();
        let reaped = self.kill_where(|slot| match slot {
            Slot::Idle { cursor, since, .. } => {
                !cursor.no_timeout && now.duration_since(*since) > idle_max
            }
            Slot::InUse { .. } | Slot::Lent { .. } => false,
        });
        self.timed_out.fetch_add(reaped as u64, Ordering::Relaxed);
        reaped
    }

    /// Has idle cursors that have held their snapshots for a while let them go; to be called every
    /// second or so.
    pub fn rest_idle(&self, after: Duration) {
        for shard in &self.shards {
            for slot in shard.lock().values_mut() {
                if let Slot::Idle { cursor, rests, .. } = slot
                    && !*rests
                    && cursor.awake_since.elapsed() >= after
                {
                    *rests = true;
                    cursor.rest();
                }
            }
        }
    }

    /// How many idle cursors hold a snapshot.
    fn holding_snapshots(&self) -> usize {
        let holds = |slot: &Slot| match slot {
            Slot::Idle { cursor, .. } => cursor.holds_snapshot(),
            Slot::InUse { .. } | Slot::Lent { .. } => false,
        };
        let shards = self.shards.iter();
        shards
            .map(|shard| shard.lock().values().filter(|slot| holds(slot)).count())
            .sum()
    }

    /// What is told of the cursors that nobody reads at the moment, where whoever asks `may_see` them.
    pub fn idle(&self, may_see: impl Fn(&Opener) -> bool) -> Vec<IdleCursor> {
        let mut all = Vec::new();
        for shard in &self.shards {
            for (id, slot) in shard.lock().iter() {
                if let Slot::Idle { cursor, since, .. } = slot
                    && may_see(&cursor.opener)
                {
                    all.push(IdleCursor::new(*id, cursor, since.elapsed()));
                }
            }
        }
        all
    }

    pub fn counts(&self) -> CursorCounts {
        CursorCounts {
            open: self.open.load(Ordering::Relaxed) as u64,
            opened: self.opened.load(Ordering::Relaxed),
            timed_out: self.timed_out.load(Ordering::Relaxed),
            holding_snapshots: self.holding_snapshots() as u64,
        }
    }
}

/// See [`CursorManager::guard`].
pub struct Guard<'a> {
    manager: &'a CursorManager,
    id: i64,
    armed: bool,
}

impl Guard<'_> {
    pub fn given_back(mut self) {
        self.armed = false;
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.manager.close(self.id);
        }
    }
}

/// For `serverStatus`.
#[derive(Debug, Clone, Copy)]
pub struct CursorCounts {
    pub open: u64,
    pub opened: u64,
    pub timed_out: u64,
    /// Idle ones that hold a snapshot: they have been so for a moment only, or cannot let it go.
    pub holding_snapshots: u64,
}

pub fn not_found(id: i64) -> CommandError {
    CommandError::new(
        ErrorCode::CursorNotFound,
        format!("cursor id {id} not found"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use banyan_execution::{Row, RowStream};
    use banyan_query::QueryError;
    use std::collections::VecDeque;
    use std::sync::atomic::AtomicBool;

    /// Says whether it holds a snapshot.
    struct Reader(Arc<AtomicBool>);

    impl RowStream for Reader {
        fn next_batch(&mut self, _: usize, _: &mut VecDeque<Row>) -> Result<(), QueryError> {
            Ok(())
        }

        fn save(&mut self) {
            self.0.store(false, Ordering::Relaxed);
        }

        fn holds_snapshot(&self) -> bool {
            self.0.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn who_may_not_continue_a_cursor_leaves_it_as_it_is() {
        let manager = CursorManager::new();
        let rows = Box::new(Reader(Arc::default()));
        let cursor = Cursor::new("a.b".to_owned(), rows, Arc::default());
        let id = manager.open(cursor).unwrap();
        let interrupt = Interrupt::new(Arc::default(), None);
        let refuse = |_: &Opener| {
            let refusal = CommandError::new(ErrorCode::Unauthorized, "not yours");
            Err(refusal)
        };
        let take_refused = || match manager.take(id, "a.b", &interrupt, refuse) {
            Err(error) => assert_eq!(error.code, ErrorCode::Unauthorized),
            Ok(_) => panic!("taken"),
        };

        take_refused();
        let taken = manager.take(id, "a.b", &interrupt, |_| Ok(()));
        let Taken::Here(cursor) = taken.unwrap() else {
            panic!("nobody reads ahead");
        };

        let (_sender, back) = oneshot::channel();
        manager.lend(id, &cursor, &interrupt, back).unwrap();
        take_refused();
        let taken = manager.take(id, "a.b", &interrupt, |_| Ok(()));
        assert!(matches!(taken, Ok(Taken::Lent { .. })));
    }

    #[test]
    fn a_cursor_that_is_never_idle_for_long_lets_its_snapshot_go() {
        let holds = Arc::new(AtomicBool::new(true));
        let manager = CursorManager::new();
        let rows = Box::new(Reader(holds.clone()));
        let cursor = Cursor::new("a.b".to_owned(), rows, Arc::default());
        let id = manager.open(cursor).unwrap();
        let interrupt = Interrupt::new(Arc::default(), None);
        let read = |held_for: Option<Duration>| {
            let Taken::Here(mut cursor) = manager.take(id, "a.b", &interrupt, |_| Ok(())).unwrap()
            else {
                panic!("nobody reads ahead");
            };
            holds.store(true, Ordering::Relaxed);
            if let Some(held_for) = held_for {
                cursor.awake_since = Instant::now().checked_sub(held_for).unwrap();
            }
            manager.put_back(id, cursor).unwrap();
            manager.counts().holding_snapshots
        };
        assert_eq!(read(Some(Duration::ZERO)), 1);
        assert_eq!(read(Some(REST_AFTER)), 0);
        // It goes on in another one, which is new.
        assert_eq!(read(None), 1);
        manager.rest_idle(Duration::ZERO);
        assert_eq!(manager.counts().holding_snapshots, 0);
    }
}
