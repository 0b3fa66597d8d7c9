//! Counters that many threads add to.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A relaxed atomic: exact by itself, and together with others a rough picture.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, n: u64) {
        if n > 0 {
            self.0.fetch_add(n, Ordering::Relaxed);
        }
    }

    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// As the protocol shows it.
    pub fn get(&self) -> i64 {
        long(self.value())
    }

    /// The value, which is 0 from now on.
    pub fn take(&self) -> u64 {
        self.0.swap(0, Ordering::Relaxed)
    }
}

pub(crate) fn long(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Copies that threads take turns in: more than this many threads share some.
const COPIES: usize = 16;

/// On a cache line of its own, with the one that processors fetch beside it.
#[repr(align(128))]
#[derive(Default)]
struct Apart<T>(T);

/// One copy of the counters for each thread, so that cores do not pass a cache line around.
pub struct Sharded<T> {
    copies: Box<[Apart<T>]>,
}

impl<T> Sharded<T> {
    pub fn new(make: impl Fn() -> T) -> Sharded<T> {
        Sharded {
            copies: (0..COPIES).map(|_| Apart(make())).collect(),
        }
    }

    /// This thread's copy.
    pub fn local(&self) -> &T {
        thread_local! {
            static TURN: Cell<usize> = const { Cell::new(usize::MAX) };
        }
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let turn = TURN.with(|turn| {
            if turn.get() == usize::MAX {
                turn.set(NEXT.fetch_add(1, Ordering::Relaxed) % COPIES);
            }
            turn.get()
        });
        &self.copies[turn].0
    }

    pub fn all(&self) -> impl Iterator<Item = &T> {
        self.copies.iter().map(|copy| &copy.0)
    }

    /// One counter of all copies together.
    pub fn sum(&self, counter: impl Fn(&T) -> &Counter) -> i64 {
        long(self.all().map(|copy| counter(copy).value()).sum())
    }
}

impl<T: Default> Default for Sharded<T> {
    fn default() -> Self {
        Sharded::new(T::default)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_every_thread_adds_is_in_the_sum() {
        let counters: Sharded<(Counter, Counter)> = Sharded::default();
        std::thread::scope(|scope| {
            for n in 0..2 * COPIES as u64 {
                let counters = &counters;
                scope.spawn(move || counters.local().1.add(n));
            }
        });
        let n = 2 * COPIES as i64;
        assert_eq!(counters.sum(|both| &both.1), n * (n - 1) / 2);
        assert_eq!(counters.sum(|both| &both.0), 0);
    }
}
