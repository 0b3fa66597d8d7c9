//! Watching a set: every member is asked to answer once something has changed, so that a failover
//! is known here as soon as the members know of it.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bson::raw::cstr;
use bson::rawdoc;
use tokio::task::AbortHandle;

use super::topology::Greeting;
use super::{HELLO_TIMEOUT, Inner, ReplicaSet, greet};
use crate::client::Pool;
use crate::selection::Kind;

/// How long a member may keep its answer back while nothing changes.
const AWAIT: Duration = Duration::from_secs(10);
/// A member that can't be reached is asked again after this.
const AGAIN_AFTER: Duration = Duration::from_millis(500);

/// The tasks that watch members; they end with it.
#[derive(Default)]
struct Watching(HashMap<String, AbortHandle>);

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.values().for_each(AbortHandle::abort);
    }
}

impl ReplicaSet {
    /// Watches the members from now on, until the last handle of this set is dropped. Must be
    /// called on a runtime; only the first call counts.
    pub fn monitor(&self) {
        if self.inner.monitored.set(()).is_err() {
            return;
        }
        let mut changes = self.inner.changes.subscribe();
        let inner = Arc::downgrade(&self.inner);
        tokio::spawn(async move {
            let mut watching = Watching::default();
            loop {
                let Some(set) = inner.upgrade() else { return };
                watch_members(&set, &mut watching);
                drop(set);
                // An error means that the set is gone.
                if changes.changed().await.is_err() {
                    return;
                }
            }
        });
    }
}

fn watch_members(inner: &Arc<Inner>, watching: &mut Watching) {
    let members = inner.addresses();
    watching.0.retain(|address, task| {
        let stays = members.contains(address);
        if !stays {
            task.abort();
        }
        stays
    });
    for address in members {
        let pool = inner.pool(&address);
        watching.0.entry(address).or_insert_with(|| {
            let task = watch_member(Arc::downgrade(inner), pool);
            tokio::spawn(task).abort_handle()
        });
    }
}

/// Asks in turn how the member is, which also measures the way there, and to be told of a change.
async fn watch_member(set: Weak<Inner>, pool: Pool) {
    loop {
        let Some(name) = set.upgrade().map(|inner| inner.name.clone()) else {
            return;
        };
        let started = Instant::now();
        let greeted = greet(&pool, name.as_deref()).await;
        let Some(version) = note(&set, &pool, greeted, Some(started.elapsed())) else {
            tokio::time::sleep(AGAIN_AFTER).await;
            continue;
        };
        let (process, counter) = version;
        let mut hello = rawdoc! {"hello": 1, "maxAwaitTimeMS": AWAIT.as_millis() as i64};
        hello.append(
            cstr!("topologyVersion"),
            rawdoc! {"processId": process, "counter": counter},
        );
        let answer = pool
            .command("admin", &hello, Some(AWAIT + HELLO_TIMEOUT))
            .await
            .map_err(|error| error.to_string())
            .and_then(|reply| Greeting::read(&reply, name.as_deref()));
        if note(&set, &pool, answer, None).is_none() {
            tokio::time::sleep(AGAIN_AFTER).await;
        }
    }
}

/// Keeps what a member said; returns by what it can be asked to wait for a change.
fn note(
    set: &Weak<Inner>,
    pool: &Pool,
    answer: Result<Greeting, String>,
    took: Option<Duration>,
) -> Option<(bson::oid::ObjectId, i64)> {
    let inner = set.upgrade()?;
    match answer {
        Ok(greeting) => {
            let version = greeting.version;
            inner.change(|topology| topology.heard(pool, greeting, took));
            version
        }
        Err(error) => {
            tracing::debug!(address = pool.address(), error, "a member does not answer");
            pool.clear();
            inner.change(|topology| topology.lost(pool, Kind::Unknown));
            None
        }
    }
}
