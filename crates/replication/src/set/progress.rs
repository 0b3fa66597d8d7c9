//! How far the other members have applied the log, for those who wait for more than a majority.
//!
//! Raft tells the leader what is in the followers' logs, not what they would show to a reader.
//! While somebody waits, each follower is asked with a long poll: it answers as soon as it has
//! applied more than the answer before, so one question may serve many waiting writes. Nobody is
//! asked while nobody waits.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use banyan_wire::CommandError;
use banyan_wire::params;
use bson::{RawDocument, RawDocumentBuf, rawdoc};
use tokio::sync::watch;

use super::ReplicationCoordinator;

/// How long a member keeps the question when it has nothing new to tell.
pub const POLL: Duration = Duration::from_secs(1);
/// After this long the member is taken to be stopped.
const TIMEOUT: Duration = Duration::from_secs(3);
const RETRY: Duration = Duration::from_millis(100);

/// Keeps the members being asked while it lives.
pub struct Watching<'a> {
    replication: &'a Arc<ReplicationCoordinator>,
    own_host: Option<String>,
}

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        let progress = &self.replication.progress;
        progress.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Watching<'_> {
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.replication.progress.changed.subscribe()
    }

    /// Whether a member is known to have applied the entry at `index`.
    pub fn has_applied(&self, host: &str, index: u64) -> bool {
        if self.own_host.as_deref() == Some(host) {
            return self.replication.machine.applied_index() >= index;
        }
        let followers = self.replication.progress.followers.lock();
        let follower = followers.by_host.get(host);
        follower.is_some_and(|follower| follower.applied_index >= index)
    }

    /// Sees to it that every member that holds data is asked.
    pub fn follow_everybody(&self) {
        let replication = self.replication;
        let (Some(config), Some(replica)) = (replication.config(), replication.replica()) else {
            return;
        };
        let Some(runtime) = replication.peers.runtime() else {
            return;
        };
        let term = replica.group.leader_term();
        let mut followers = replication.progress.followers.lock();
        if followers.term != term {
            followers.term = term;
            let known = followers.by_host.values_mut();
            known.for_each(|follower| follower.applied_index = 0);
        }
        for member in config.members.iter().filter(|member| !member.arbiter_only) {
            if self.own_host.as_ref() == Some(&member.host) {
                continue;
            }
            let follower = followers.by_host.entry(member.host.clone()).or_default();
            if !follower.followed {
                follower.followed = true;
                runtime.spawn(replication.clone().follow(member.host.clone()));
            }
        }
    }
}

impl ReplicationCoordinator {
    pub fn watch_progress(self: &Arc<Self>) -> Watching<'_> {
        self.progress.waiting.fetch_add(1, Ordering::SeqCst);
        Watching {
            replication: self,
            own_host: self.own_host(),
        }
    }

    /// Gives the primary a command.
    pub async fn ask_primary(
        &self,
        command: &RawDocument,
        timeout: Duration,
    ) -> Result<RawDocumentBuf, CommandError> {
        self.ask_primary_in("admin", command, timeout).await
    }

    pub async fn ask_primary_in(
        &self,
        database: &str,
        command: &RawDocument,
        timeout: Duration,
    ) -> Result<RawDocumentBuf, CommandError> {
        let primary = self
            .status()
            .and_then(|status| self.primary_host(&status))
            .ok_or_else(|| super::unreachable("the primary", "there is none"))?;
        let pool = self
            .peers
            .pool(&primary)
            .ok_or_else(|| super::unreachable(&primary, "no runtime"))?;
        Ok(pool.command(database, command, Some(timeout)).await?)
    }

    /// Changes whenever the role, the primary or the configuration does.
    pub fn topology_watch(&self) -> watch::Receiver<i64> {
        self.topology.subscribe()
    }

    /// Asks one member for as long as somebody waits.
    async fn follow(self: Arc<Self>, host: String) {
        loop {
            let asked = {
                let mut followers = self.progress.followers.lock();
                let idle = self.progress.waiting.load(Ordering::SeqCst) == 0;
                let known = self.config().is_some_and(|c| c.by_host(&host).is_some());
                if idle || !known || self.stop.is_cancelled() {
                    followers.by_host.remove(&host);
                    return;
                }
                let follower = followers.by_host.get(&host);
                let after = follower.map_or(0, |follower| follower.applied_index);
                (followers.term, after)
            };
            match self.ask_progress(&host, asked.1).await {
                Some(applied_index) => self.note_progress(&host, asked.0, applied_index),
                None => tokio::time::sleep(RETRY).await,
            }
        }
    }

    async fn ask_progress(&self, host: &str, after: u64) -> Option<u64> {
        let pool = self.peers.vital_pool(host)?;
        let after = i64::try_from(after).unwrap_or(i64::MAX);
        let body = rawdoc! { "_appliedProgress": 1, "after": after };
        let reply = pool.command("admin", &body, Some(TIMEOUT)).await.ok()?;
        applied_index(&reply)
    }

    fn note_progress(&self, host: &str, term: u64, applied_index: u64) {
        let mut followers = self.progress.followers.lock();
        if followers.term != term {
            return;
        }
        if let Some(follower) = followers.by_host.get_mut(host) {
            follower.applied_index = follower.applied_index.max(applied_index);
        }
        drop(followers);
        self.progress.changed.send_modify(|count| *count += 1);
    }
}

fn applied_index(reply: &RawDocument) -> Option<u64> {
    let index = params::number(reply.get("appliedIndex").ok().flatten()?)?;
    u64::try_from(index).ok()
}
