//! Busy polling: a connection that is alone among those that are served alike looks for its next
//! request for a moment before its thread goes to sleep.
//!
//! To put a core to sleep and to wake it costs more than a point operation. A client that sends its
//! next request as soon as it has the answer to the last is spared both. It is no gain where others
//! want the core, or where the client is far away: only a connection that has been the only one for
//! a while polls, and one whose requests come too late for it stops trying.
//!
//! Polling holds a thread of the runtime. It is given back often, so that the sockets of the others
//! are looked at; nobody else is served meanwhile, or there would be no polling.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a connection looks for its next request.
const POLL_MAX: Duration = Duration::from_micros(100);
/// A connection is alone if no other has sent a request for so long.
const ALONE_AFTER: Duration = Duration::from_millis(5);
/// How long the thread is kept from one look at all sockets to the next. To give it back wakes
/// another one.
const HOLD_MAX: Duration = Duration::from_millis(2);
/// A connection that waited in vain does not try again for up to so many requests.
const REQUESTS_SKIPPED_MAX: u32 = 1024;

/// Who has sent requests of late.
pub(crate) struct Requesters {
    began: Instant,
    /// The connection with the latest request.
    latest: AtomicU64,
    /// When another one than before became that, in microseconds since it began.
    changed: AtomicU64,
    /// With one core the client would have to wait for whoever polls.
    has_cores: bool,
}

impl Requesters {
    pub fn new() -> Requesters {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Requesters {
            began: Instant::now(),
            latest: AtomicU64::new(u64::MAX),
            changed: AtomicU64::new(0),
            has_cores: cores > 1,
        }
    }

    fn note(&self, connection: u64) {
        if self.latest.load(Ordering::Relaxed) != connection {
            self.latest.store(connection, Ordering::Relaxed);
            self.changed.store(self.micros(), Ordering::Relaxed);
        }
    }

    fn is_alone(&self, connection: u64) -> bool {
        let others = Duration::from_micros(self.changed.load(Ordering::Relaxed));
        self.latest.load(Ordering::Relaxed) == connection
            && self.began.elapsed().saturating_sub(others) > ALONE_AFTER
    }

    fn micros(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

/// One connection's part in it.
pub(crate) struct BusyPoll {
    requesters: Arc<Requesters>,
    connection: u64,
    /// Its client waits for each answer before it asks again.
    awaits: bool,
    /// When it last gave its thread back.
    held_since: Instant,
    /// It does not poll for so many requests.
    skips: u32,
    /// And for so many after it has polled in vain once more.
    skips_next: u32,
}

impl BusyPoll {
    pub fn new(requesters: Arc<Requesters>, connection: u64) -> BusyPoll {
        BusyPoll {
            requesters,
            connection,
            awaits: false,
            held_since: Instant::now(),
            skips: 0,
            skips_next: 1,
        }
    }

    /// The connection has sent a request.
    pub fn note(&self) {
        self.requesters.note(self.connection);
    }

    /// That is done with, and was answered if the client awaited it. Messages that nobody answers
    /// come when they come.
    pub fn done(&mut self, awaited: bool) {
        self.awaits = awaited;
    }

    /// Looks until something arrives, if it is worth while; `false`: nothing did.
    pub async fn poll(&mut self, mut arrives: impl FnMut() -> bool) -> bool {
        if !self.awaits || !self.requesters.has_cores || !self.requesters.is_alone(self.connection)
        {
            return false;
        }
        if self.skips > 0 {
            self.skips -= 1;
            return false;
        }
        if self.held_since.elapsed() > HOLD_MAX {
            tokio::task::yield_now().await;
            self.held_since = Instant::now();
        }
        let began = Instant::now();
        while began.elapsed() < POLL_MAX && self.requesters.is_alone(self.connection) {
            if arrives() {
                self.skips_next = (self.skips_next / 2).max(1);
                return true;
            }
            std::hint::spin_loop();
        }
        self.skips = self.skips_next;
        self.skips_next = (self.skips_next * 2).min(REQUESTS_SKIPPED_MAX);
        false
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// The first connection has been alone for a second.
    fn alone() -> Arc<Requesters> {
        Arc::new(Requesters {
            began: Instant::now()
                .checked_sub(Duration::from_secs(1))
                .expect("the clock began earlier than a second ago"),
            latest: AtomicU64::new(1),
            changed: AtomicU64::new(0),
            has_cores: true,
        })
    }

    /// Whether it looked, and what it found.
    async fn polled(busy_poll: &mut BusyPoll, arrives: bool) -> (bool, bool) {
        let looked = Cell::new(false);
        let found = busy_poll.poll(|| {
            looked.set(true);
            arrives
        });
        let found = found.await;
        (looked.get(), found)
    }

    #[tokio::test]
    async fn only_who_is_alone_polls() {
        let requesters = alone();
        let mut first = BusyPoll::new(requesters.clone(), 1);
        let second = BusyPoll::new(requesters.clone(), 2);
        first.note();
        assert_eq!(polled(&mut first, true).await, (false, false));
        first.done(true);
        assert_eq!(polled(&mut first, true).await, (true, true));
        second.note();
        assert_eq!(polled(&mut first, true).await, (false, false));
        first.note();
        assert_eq!(polled(&mut first, true).await, (false, false), "a moment");
        let mut without_cores = alone();
        Arc::get_mut(&mut without_cores)
            .expect("it is not shared")
            .has_cores = false;
        let mut single = BusyPoll::new(without_cores, 1);
        single.done(true);
        assert_eq!(polled(&mut single, true).await, (false, false));
    }

    #[tokio::test]
    async fn who_polls_in_vain_tries_less_and_less() {
        let mut busy_poll = BusyPoll::new(alone(), 1);
        busy_poll.done(true);
        let mut skipped = Vec::new();
        for _ in 0..12 {
            assert_eq!(polled(&mut busy_poll, false).await, (true, false));
            let mut skips = 0;
            while busy_poll.skips > 0 {
                assert_eq!(polled(&mut busy_poll, true).await, (false, false));
                skips += 1;
            }
            skipped.push(skips);
        }
        assert_eq!(skipped[..4], [1, 2, 4, 8]);
        assert_eq!(skipped[10..], [1024, 1024]);
        for _ in 0..11 {
            assert_eq!(polled(&mut busy_poll, true).await, (true, true));
        }
        assert_eq!(polled(&mut busy_poll, false).await, (true, false));
        assert_eq!(
            busy_poll.skips, 1,
            "who has found something tries more often again"
        );
    }
}
