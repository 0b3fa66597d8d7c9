//! The primary makes the Raft group what the configuration says: one change at a time, learners
//! before voters, the removed ones last.

use std::sync::Arc;
use std::time::{Duration, Instant};

use banyan_consensus::{Change, Group, Member, Membership, Status};

use super::ReplicationCoordinator;
use super::config::{MemberConfig, SetConfig};
use super::health::Heartbeat;
use super::state::MemberState;
use crate::machine::Machine;

/// After a change, while something has to be waited for, and while there is nothing to do.
const BUSY_PERIOD: Duration = Duration::from_millis(10);
const WAITING_PERIOD: Duration = Duration::from_millis(100);
const IDLE_PERIOD: Duration = Duration::from_millis(500);
/// A change that is not committed in this time is looked at again.
const TIMEOUT: Duration = Duration::from_secs(5);
/// A learner this close to the end of the log may vote.
const CAUGHT_UP_ENTRIES: u64 = 200;
/// A member of higher priority is given the lead when it has been well for so long.
const TAKEOVER_PERIOD: Duration = Duration::from_secs(3);

impl ReplicationCoordinator {
    pub(super) async fn reconcile_forever(self: Arc<Self>, group: Group<Machine>) {
        let mut last_takeover = Instant::now();
        loop {
            let work = self.reconcile(&group).await;
            let period = match work {
                Work::Done => IDLE_PERIOD,
                Work::Waiting => WAITING_PERIOD,
                Work::Changed => BUSY_PERIOD,
            };
            tokio::select! {
                () = tokio::time::sleep(period) => {}
                () = self.changed.notified() => {}
                () = self.stop.cancelled() => return,
            }
            if work != Work::Changed && last_takeover.elapsed() >= TAKEOVER_PERIOD {
                last_takeover = Instant::now();
                self.yield_to_higher_priority(&group);
            }
        }
    }

    async fn reconcile(&self, group: &Group<Machine>) -> Work {
        let status = group.status();
        let Some(config) = self.config().filter(|_| status.leader_ready) else {
            return match self.replace_wiped(group).await {
                true => Work::Changed,
                false => Work::Done,
            };
        };
        let Some(change) = self.next_change(&config, &status).await else {
            return Work::Done;
        };
        let Todo::Change(change) = change else {
            return Work::Waiting;
        };
        tracing::info!(?change, "changing the members of the group");
        let changing = group.change_membership(change.clone());
        match tokio::time::timeout(TIMEOUT, changing).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::warn!(?change, %error, "the group could not be changed"),
            Err(_) => tracing::warn!(?change, "the change of the group takes long"),
        }
        Work::Changed
    }

    async fn next_change(&self, config: &SetConfig, status: &Status) -> Option<Todo> {
        let mut waiting = false;
        for member in &config.members {
            let found = status.membership.by_address(&member.host);
            let todo = match found {
                Some(raft) => self.adapt(member, raft, status),
                None => self.admit(member, &status.membership).await,
            };
            match todo {
                Some(Todo::Change(change)) => return Some(Todo::Change(change)),
                Some(Todo::Wait) => waiting = true,
                None => {}
            }
        }
        let own = status.id;
        let surplus = |raft: &&Member| raft.id != own && config.by_host(&raft.address).is_none();
        if let Some(raft) = status.membership.members.iter().find(surplus) {
            return Some(Todo::Change(Change::Remove(raft.id)));
        }
        waiting.then_some(Todo::Wait)
    }

    /// A host that the group doesn't know: it becomes a learner once it says who it is.
    async fn admit(&self, member: &MemberConfig, membership: &Membership) -> Option<Todo> {
        let timeout = Duration::from_secs(2);
        let Ok((heartbeat, _)) = self.ask(&member.host, timeout).await else {
            return Some(Todo::Wait);
        };
        if let Some(why) = self.why_not_admitted(member, &heartbeat) {
            let newly = self.refused.lock().insert(member.host.clone());
            if newly {
                tracing::warn!(
                    host = member.host,
                    why,
                    "a host cannot be admitted to the set"
                );
            }
            return Some(Todo::Wait);
        }
        self.refused.lock().remove(&member.host);
        let (id, address) = (heartbeat.peer, member.host.clone());
        if membership.get(id).is_some() {
            return Some(Todo::Change(Change::UpdateAddress { id, address }));
        }
        Some(Todo::Change(Change::AddLearner { id, address }))
    }

    /// Why a host of the configuration is kept out of the group. It is looked at by the primary.
    pub(super) fn why_not_admitted(
        &self,
        member: &MemberConfig,
        heartbeat: &Heartbeat,
    ) -> Option<String> {
        let membership = self.status()?.membership;
        if membership.get(heartbeat.peer).is_some() {
            return None;
        }
        if let Some(why) = heartbeat.unfit_for(member) {
            return Some(format!("it {why}; it has to start with an empty directory"));
        }
        // It has a history of its own, which must not be mixed with ours.
        let foreign = heartbeat.has_data && !self.is_same_set(heartbeat);
        foreign.then(|| {
            "it has data, or a history, that is not this set's; it has to start with an empty \
             directory"
                .to_owned()
        })
    }

    fn adapt(&self, member: &MemberConfig, raft: &Member, status: &Status) -> Option<Todo> {
        if raft.id == status.id {
            return None;
        }
        // Another directory answers at the address: the one that was there is gone.
        let health = self.health.lock().get(&member.host).cloned();
        let heartbeat = health
            .filter(|health| health.is_up())
            .and_then(|health| health.last);
        if heartbeat.is_some_and(|heartbeat| heartbeat.peer != raft.id) {
            return Some(Todo::Change(Change::Remove(raft.id)));
        }
        match (member.votes, raft.voter) {
            (true, false) => {
                let peer = status.peers.iter().find(|peer| peer.id == raft.id)?;
                let caught_up = peer.recent_active
                    && !peer.in_snapshot
                    && peer.matched > 0
                    && peer.matched + CAUGHT_UP_ENTRIES >= status.commit;
                Some(if caught_up {
                    Todo::Change(Change::Promote(raft.id))
                } else {
                    Todo::Wait
                })
            }
            (false, true) => Some(Todo::Change(Change::Demote(raft.id))),
            _ => None,
        }
    }

    fn yield_to_higher_priority(&self, group: &Group<Machine>) {
        let status = group.status();
        let Some(config) = self.config().filter(|_| status.leader_ready) else {
            return;
        };
        let own = self.own_in(&config, &status);
        let own_priority = own.map_or(f64::MAX, |own| own.priority);
        let health = self.health.lock();
        let fit = |member: &&MemberConfig| {
            member.electable()
                && member.priority > own_priority
                && health.get(&member.host).is_some_and(|health| {
                    // Asking one that will not take the lead would hold writes up for nothing.
                    let ready = |heartbeat: &Heartbeat| {
                        heartbeat.may_lead && heartbeat.state == MemberState::Secondary
                    };
                    health.is_up() && health.last.as_ref().is_some_and(ready)
                })
        };
        let best = config
            .members
            .iter()
            .filter(fit)
            .filter_map(|member| Some((member, status.membership.by_address(&member.host)?)))
            .filter(|(_, raft)| {
                let peer = status.peers.iter().find(|peer| peer.id == raft.id);
                raft.voter
                    && peer.is_some_and(|peer| {
                        peer.recent_active && peer.matched + CAUGHT_UP_ENTRIES >= status.commit
                    })
            })
            .max_by(|(a, _), (b, _)| a.priority.total_cmp(&b.priority));
        if let Some((member, raft)) = best {
            tracing::info!(
                to = member.host,
                "giving the lead to a member of higher priority"
            );
            group.hand_over(raft.id, "a member of higher priority takes over");
        }
    }
}

/// How far the group is from what the configuration says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    Done,
    Waiting,
    Changed,
}

enum Todo {
    Change(Change),
    /// Something is to be done, but not yet.
    Wait,
}
