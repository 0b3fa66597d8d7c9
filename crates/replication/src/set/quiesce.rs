//! The end of a member that is told to stop: it gives the lead away, tells the drivers, lets what
//! runs come to its end, and only then closes its connections.

use std::time::{Duration, Instant};

use banyan_wire::{CommandError, ErrorCode};
use bson::rawdoc;

use super::ReplicationCoordinator;
use super::config::MemberConfig;
use super::state::MemberState;
use crate::replica::Replica;

/// How long commands that run may go on once new ones are refused.
const QUIESCE: Duration = Duration::from_secs(1);
/// Requests that were on their way when the drivers were told are still refused in words, which
/// says more than a closed connection.
const LINGER: Duration = Duration::from_millis(30);
const HEARD_WITHIN: Duration = Duration::from_millis(300);
/// The group forgets now and then, for a moment, who was heard of.
const SILENT_AFTER: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(5);
/// A former leader that is about to end need not come back.
const AWAY: Duration = Duration::from_secs(60);

impl ReplicationCoordinator {
    /// Gives the lead to a member that has everything, if this one leads and there is such a
    /// member within the time. Says whether this member leads no more.
    pub async fn hand_over(&self, replica: &Replica, limit: Duration) -> bool {
        if !self.is_replica_set() || self.state() != MemberState::Primary {
            return true;
        }
        // One that has just begun to lead has not heard of anybody yet.
        let started = Instant::now();
        while !self.has_heirs(replica) {
            if started.elapsed() >= HEARD_WITHIN.min(limit) {
                return false;
            }
            tokio::time::sleep(POLL).await;
        }
        tracing::info!("giving the lead away before the end");
        let stepping = self.step_down(replica, AWAY, limit, false);
        let alone = async {
            let mut heard = Instant::now();
            while heard.elapsed() < SILENT_AFTER {
                if self.has_heirs(replica) {
                    heard = Instant::now();
                }
                tokio::time::sleep(POLL).await;
            }
        };
        let given = tokio::select! {
            outcome = stepping => outcome.is_ok(),
            () = alone => !replica.is_primary(),
        };
        let milliseconds = started.elapsed().as_millis() as u64;
        tracing::info!(given, milliseconds, "left the lead");
        given
    }

    /// The configuration has another member that may lead.
    pub fn has_possible_heirs(&self) -> bool {
        let (Some(config), own) = (self.config(), self.own_host().unwrap_or_default()) else {
            return false;
        };
        let mut others = config.members.iter().filter(|member| member.host != own);
        others.any(MemberConfig::electable)
    }

    /// Another member may lead and has been heard of lately.
    fn has_heirs(&self, replica: &Replica) -> bool {
        let (Some(config), status) = (self.config(), replica.group.status()) else {
            return false;
        };
        status.peers.iter().any(|peer| {
            let electable = config
                .by_host(&peer.address)
                .is_some_and(MemberConfig::electable);
            peer.id != self.id && peer.voter && peer.recent_active && electable
        })
    }

    /// From now on commands are refused and drivers are told to look elsewhere; returns once what
    /// ran before has ended (`is_idle`), or has had its time.
    pub async fn quiesce(&self, is_idle: impl Fn() -> bool) {
        // Until now the members had to be told apart, for one of them to be given the lead.
        self.stop.cancel();
        if !self.is_replica_set() {
            return;
        }
        let started = Instant::now();
        if self.quiescing_until.set(started + QUIESCE).is_ok() {
            self.topology_changed();
        }
        tokio::time::sleep(LINGER).await;
        while !is_idle() && started.elapsed() < QUIESCE {
            tokio::time::sleep(POLL).await;
        }
    }

    /// Why no command is taken any more, once that is so.
    pub fn check_quiescing(&self) -> Result<(), CommandError> {
        let Some(until) = self.quiescing_until.get() else {
            return Ok(());
        };
        let left = until.saturating_duration_since(Instant::now());
        let error = CommandError::new(
            ErrorCode::ShutdownInProgress,
            "The server is in quiesce mode and will shut down",
        );
        let milliseconds = i64::try_from(left.as_millis()).unwrap_or(i64::MAX);
        Err(error.with_extra(rawdoc! { "remainingQuiesceTimeMillis": milliseconds }))
    }
}
