//! Who leads: when this member may serve, and saying who took or lost the lead, and why.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Shared;
use super::lead::Lead;
use super::rounds::Rounds;
use crate::core::Core;
use crate::log::Disk;
use crate::machine::{PeerId, StateMachine};
use crate::status::Role;
use crate::surroundings;

impl<S: StateMachine> Shared<S> {
    /// Leader in name becomes leader in fact once an entry of its term is applied.
    pub(super) fn refresh_leadership(&self, core_term: Option<u64>) {
        let mut leadership = self.leadership.lock();
        if let Some(term) = core_term {
            leadership.core_term = term;
        }
        let term = leadership.core_term;
        let serving = if term != 0 && self.applier.applied().term == term {
            term
        } else {
            0
        };
        if self.leader_term.swap(serving, Ordering::AcqRel) != serving {
            self.notify();
        }
    }

    /// Whoever saw that this member leads, or does not, sees after this that the watchers know.
    pub fn settle(&self) {
        drop(self.leadership.lock());
    }

    /// This member's own work on consensus took so long that the others may have noticed.
    pub(super) fn note_delay(&self, rounds: &mut Rounds<S>, what: &'static str, took: Duration) {
        let timeout = self.timing.election_timeout();
        if took < timeout / 2 {
            return;
        }
        tracing::warn!(
            milliseconds = took.as_millis() as u64,
            election_timeout_ms = timeout.as_millis() as u64,
            "consensus was held up: {what}"
        );
        rounds.lead.held_up = Some((what, took, surroundings::now()));
    }

    /// The core's role or its leader are not what they were when they were last made known.
    pub(super) fn tell_of_lead(&self, rounds: &mut Rounds<S>) {
        let (before, leader_before) = (rounds.role, rounds.leader);
        let (after, leader) = (rounds.core.role(), rounds.core.leader());
        let term = rounds.core.term();
        if before == Role::Leader && after != Role::Leader {
            let reason = self.why_lost(rounds);
            tracing::info!(term, reason, "lost the lead");
        }
        match after {
            Role::Leader if before != Role::Leader => {
                let voters = rounds.core.membership().voters().count();
                let votes = rounds.core.votes().min(voters);
                let reason = rounds.lead.campaign.take();
                let reason = reason.unwrap_or_else(|| self.why_asked(rounds, leader_before));
                tracing::info!(term, votes, voters, reason, "took the lead");
                rounds.lead = Lead::default();
            }
            Role::Candidate if before != Role::Candidate => {
                let reason = self.why_asked(rounds, leader_before);
                tracing::info!(term, reason, "asks for the lead");
                rounds.lead.campaign = Some(reason);
            }
            Role::Leader | Role::Candidate => {}
            _ => {
                if let Some(leader) = leader.filter(|_| leader != leader_before) {
                    let leader = name(&rounds.core, leader);
                    tracing::info!(term, leader, "follows a leader");
                    rounds.lead.campaign = None;
                    rounds.lead.told = None;
                }
            }
        }
    }

    fn why_lost(&self, rounds: &mut Rounds<S>) -> String {
        let timeout = self.timing.election_timeout();
        let term = rounds.core.term();
        let newer = rounds.lead.newer.take().filter(|(_, newer)| *newer == term);
        let mut reason = match (rounds.lead.take_told(timeout), newer) {
            (Some(told), _) => told,
            (None, Some((from, _))) => {
                format!(
                    "{} came with the higher term {term}",
                    name(&rounds.core, from)
                )
            }
            (None, None) if rounds.leading_term == term => {
                let silent = self.silent_majority(rounds).unwrap_or(timeout);
                format!("heard no majority for {} ms", silent.as_millis())
            }
            (None, None) => "its part in the set has changed".to_owned(),
        };
        if let Some((what, took, at)) = rounds.lead.held_up.take()
            && surroundings::now().duration_since(at) < 2 * timeout
        {
            reason += &format!(
                "; it was held up itself for {} ms: {what}",
                took.as_millis()
            );
        }
        reason
    }

    fn why_asked(&self, rounds: &mut Rounds<S>, leader: Option<PeerId>) -> String {
        if rounds.core.is_sole_voter() {
            return "it is the only voter".to_owned();
        }
        if let Some(by) = rounds.core.asked_to_lead_by() {
            return format!("{} hands the lead over", name(&rounds.core, by));
        }
        if let Some(told) = rounds.lead.take_told(self.timing.election_timeout()) {
            return told;
        }
        let heard = leader.and_then(|leader| self.contacts.lock().get(&leader).copied());
        match (leader, heard) {
            (Some(leader), Some(heard)) => {
                let silent = surroundings::now().duration_since(heard);
                let leader = name(&rounds.core, leader);
                format!("heard nothing of {leader} for {} ms", silent.as_millis())
            }
            _ => "there is no leader".to_owned(),
        }
    }

    /// For how long it has not heard so many voters that a majority is left with itself.
    fn silent_majority(&self, rounds: &Rounds<S>) -> Option<Duration> {
        let now = surroundings::now();
        let contacts = self.contacts.lock();
        let voters = rounds.core.membership().voters();
        let others = voters.filter(|voter| voter.id != self.options.id);
        let heard = others.map(|voter| contacts.get(&voter.id).copied());
        let mut silences: Vec<Option<Duration>> = heard
            .map(|at| at.map(|at| now.duration_since(at)))
            .collect();
        // Those never heard come last.
        silences.sort_by_key(|silence| silence.unwrap_or(Duration::MAX));
        // With itself a majority is as many as half of the others, rounded up.
        let needed = silences.len().div_ceil(2);
        silences.get(needed.checked_sub(1)?).copied().flatten()
    }
}

fn name<D: Disk>(core: &Core<D>, member: PeerId) -> String {
    let known = core.membership().get(member);
    known.map_or_else(|| format!("member {member}"), |known| known.address.clone())
}
