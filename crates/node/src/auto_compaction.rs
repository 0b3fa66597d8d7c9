//! Compaction in the background: `autoCompact`.
//!
//! While it is on, it is looked now and then whether merging the tables of the storage engine would
//! free enough, and if so they are merged. That concerns this process alone: no other member hears of
//! it, and it is off after a restart.

use std::sync::Arc;
use std::time::Duration;

use banyan_storage::Store;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// Between two looks for what could be freed.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// After a failure, as in MongoDB.
const RETRY_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Less than that is not worth the work.
    pub target_bytes: u64,
    /// It is off again once everything was looked at.
    pub once: bool,
}

#[derive(Default)]
pub struct AutoCompaction {
    /// Ends what runs; `None`: it is off.
    running: Mutex<Option<CancellationToken>>,
    /// Held while tables are merged, which cannot be ended in between.
    merging: tokio::sync::Mutex<()>,
}

impl AutoCompaction {
    /// Turns it on until the process ends. False: it is on already.
    pub fn start(
        self: &Arc<Self>,
        store: Store,
        options: Options,
        ends: &CancellationToken,
    ) -> bool {
        let mut running = self.running.lock();
        if running.is_some() {
            return false;
        }
        let stop = ends.child_token();
        *running = Some(stop.clone());
        let this = self.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = this.run(&store, options) => {
                    let mut running = this.running.lock();
                    // Whoever has turned it off may have turned it on again.
                    if !stop.is_cancelled() {
                        *running = None;
                    }
                }
            }
        });
        true
    }

    /// Turns it off. A merge that has begun comes to its end.
    pub fn stop(&self) {
        if let Some(running) = self.running.lock().take() {
            running.cancel();
        }
    }

    async fn run(&self, store: &Store, options: Options) {
        loop {
            let pause = match self.pass(store, options.target_bytes).await {
                Ok(()) => LOOK_EVERY,
                Err(reason) => {
                    tracing::warn!(%reason, "the tables could not be merged in the background");
                    RETRY_AFTER
                }
            };
            if options.once {
                return;
            }
            tokio::time::sleep(pause).await;
        }
    }

    async fn pass(&self, store: &Store, target_bytes: u64) -> Result<(), String> {
        let _alone = self.merging.lock().await;
        let store = store.clone();
        let merge = move || {
            if store.recoverable_bytes() < target_bytes {
                return Ok(None);
            }
            store.compact().map(Some)
        };
        let merged = tokio::task::spawn_blocking(merge).await;
        let freed = merged.map_err(|error| error.to_string())?;
        if let Some(bytes) = freed.map_err(|error| error.to_string())? {
            tracing::info!(bytes, "merged the tables in the background");
        }
        Ok(())
    }
}
