//! A set of two voters of which one came back with an empty directory. There is no majority without
//! the one that is gone, so no primary that could admit the one that came in its place.
//!
//! The one that is left may go on alone: both had everything that was acknowledged (see
//! `Group::replace_lost_voter`). If the lost directory comes back after all, it is a member like any
//! other that has fallen behind.

use std::time::Duration;

use banyan_consensus::{Group, Member};

use super::ReplicationCoordinator;
use crate::machine::Machine;

const TIMEOUT: Duration = Duration::from_secs(2);

impl ReplicationCoordinator {
    /// True if the group has changed.
    pub(super) async fn replace_wiped(&self, group: &Group<Machine>) -> bool {
        let status = group.status();
        let own = status.membership.get(status.id);
        if status.leader.is_some() || !own.is_some_and(|own| own.voter) {
            return false;
        }
        let mut others = status.membership.voters().filter(|it| it.id != status.id);
        let (Some(lost), None) = (others.next(), others.next()) else {
            return false;
        };
        let Some(config) = self.config() else {
            return false;
        };
        let electable = |host: &str| config.by_host(host).is_some_and(|it| it.electable());
        let Some(member) = config.by_host(&lost.address) else {
            return false;
        };
        if !own.is_some_and(|own| electable(&own.address)) {
            return false;
        }
        let Ok((heartbeat, _)) = self.ask(&lost.address, TIMEOUT).await else {
            return false;
        };
        if heartbeat.peer == lost.id || self.why_not_admitted(member, &heartbeat).is_some() {
            return false;
        }
        let newcomer = Member {
            id: heartbeat.peer,
            address: lost.address.clone(),
            voter: false,
        };
        let host = lost.address.clone();
        match group.replace_lost_voter(lost.id, newcomer).await {
            Ok(_) => {
                tracing::warn!(
                    host,
                    "the other voter has lost its data: this member goes on alone until that one \
                     has caught up"
                );
                true
            }
            Err(error) => {
                tracing::debug!(host, %error, "the other voter has lost its data, and more");
                false
            }
        }
    }
}
