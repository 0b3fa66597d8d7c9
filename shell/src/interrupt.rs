//! Ctrl-C, for whatever waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// Raised once for all that a line of the prompt does, and lowered before the next one.
#[derive(Clone, Default)]
pub struct Interrupt {
    raised: Arc<AtomicBool>,
    waiting: Arc<Notify>,
}

impl Interrupt {
    pub fn raise(&self) {
        self.raised.store(true, Ordering::SeqCst);
        self.waiting.notify_waiters();
    }

    pub fn lower(&self) {
        self.raised.store(false, Ordering::SeqCst);
    }

    pub fn is_raised(&self) -> bool {
        self.raised.load(Ordering::SeqCst)
    }

    /// Ends when it is raised, also if that was before.
    pub async fn raised(&self) {
        loop {
            // Made before the look: what is raised in between wakes it.
            let woken = self.waiting.notified();
            if self.is_raised() {
                return;
            }
            woken.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_is_noticed_before_and_after() {
        let interrupt = Interrupt::default();
        let waiting = tokio::spawn({
            let interrupt = interrupt.clone();
            async move { interrupt.raised().await }
        });
        interrupt.raise();
        waiting.await.unwrap();
        interrupt.raised().await;
        interrupt.lower();
        assert!(!interrupt.is_raised());
    }
}
