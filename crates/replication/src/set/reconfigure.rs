//! `replSetReconfig`: another configuration in the place of the current one.
//!
//! Ordinarily the primary writes it to the log like anything else, and then makes the Raft group
//! what it says, one member at a time (see `reconcile`). A set that has lost its majority can
//! write nothing; there `force` makes this member the only voter, durably and in a higher term,
//! and the others come back to it one by one. That is where a write that the lost members had
//! acknowledged can be lost: never among the survivors, since only the one with the longest log is
//! taken.

use std::time::{Duration, Instant};

use banyan_consensus::{Member, Status};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawDocument, rawdoc};

use super::ReplicationCoordinator;
use super::config::{MemberConfig, SetConfig};
use super::health::{Health, Heartbeat};
use super::initiate::Answer;
use super::lead::wait;
use super::state::MemberState;
use crate::replica::Replica;

/// A forced configuration leaps ahead, so that no version is given twice on two sides of a
/// partition.
const LEAP_LEAST: i64 = 10_000;
const LEAP_MOST: i64 = 110_000;
const FORCED_LEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a set with a majority may take to find a primary.
const ELECTION_TIMEOUT: Duration = Duration::from_secs(5);
const ELECTION_POLL: Duration = Duration::from_millis(200);
/// How long a changed configuration is waited for to show in the group.
const FOLLOW_TIMEOUT: Duration = Duration::from_secs(2);
const FORWARD_TIMEOUT: Duration = Duration::from_secs(30);

/// What a forced change of a set without a majority says to the operator.
const RISK: &str = "The set had no primary. This member was made the primary of the members of \
    the new configuration: writes that only the members which are gone had are lost, and a former \
    member that still runs under the old configuration must be ended before it is reached by \
    clients.";

/// How a reconfiguration went.
pub struct Reconfigured {
    pub warning: Option<&'static str>,
}

impl ReplicationCoordinator {
    pub(super) fn begin_configuring(
        &self,
        what: &str,
    ) -> Result<tokio::sync::MutexGuard<'_, ()>, CommandError> {
        self.configuring.try_lock().map_err(|_| {
            CommandError::new(
                ErrorCode::ConfigurationInProgress,
                format!(
                    "Cannot run {what} because the node is currently updating its configuration"
                ),
            )
        })
    }

    pub async fn reconfigure(
        &self,
        replica: &Replica,
        document: &RawDocument,
        force: bool,
    ) -> Result<Reconfigured, CommandError> {
        let old = self.require_config()?;
        let state = self.state();
        if state != MemberState::Primary && !force {
            return Err(CommandError::new(
                ErrorCode::NotWritablePrimary,
                format!(
                    "New config is rejected :: caused by :: replSetReconfig should only be run on \
                     a writable PRIMARY. Current state {};",
                    state.name()
                ),
            ));
        }
        let new = self.read_successor(&old, document, force)?;
        if state != MemberState::Primary {
            return self.force(replica, &old, new, document).await;
        }
        let _configuring = self.begin_configuring("replSetReconfig")?;
        self.replace(replica, new, force).await?;
        Ok(Reconfigured { warning: None })
    }

    /// The new configuration, with what follows from the old one filled in.
    fn read_successor(
        &self,
        old: &SetConfig,
        document: &RawDocument,
        force: bool,
    ) -> Result<SetConfig, CommandError> {
        let mut new = SetConfig::read(document)?;
        let versioned = document.get("version").is_ok_and(|value| value.is_some());
        if !versioned {
            return Err(CommandError::new(
                ErrorCode::InvalidReplicaSetConfig,
                "BSON field 'ReplSetConfig.version' is missing but a required field",
            ));
        }
        if new.name != old.name {
            return Err(CommandError::new(
                ErrorCode::InvalidReplicaSetConfig,
                format!(
                    "Rejecting reconfig where new config set name differs from command line set \
                     name, new config set name: {}, old config set name: {}",
                    new.name, old.name
                ),
            ));
        }
        if new.config_server && !self.config_server {
            return Err(CommandError::new(
                ErrorCode::NewReplicaSetConfigurationIncompatible,
                "Nodes being used for config servers must be started with the --configsvr flag",
            ));
        }
        if new.settings.replica_set_id.is_none() {
            new.settings.replica_set_id = old.settings.replica_set_id;
        }
        new.term = self.term();
        if force {
            let leap = rand::random_range(LEAP_LEAST..LEAP_MOST);
            new.version = new.version.max(old.version).saturating_add(leap);
            new.version = new.version.min(i64::from(i32::MAX));
        }
        Ok(new)
    }

    /// By the primary, through the log. Called while configuring.
    async fn replace(
        &self,
        replica: &Replica,
        mut new: SetConfig,
        force: bool,
    ) -> Result<(), CommandError> {
        // It may have changed since it was looked at.
        let old = self.require_config()?;
        old.check_successor(&new, force)?;
        let own = self.own_host().unwrap_or_default();
        let enough = |answers: &[Answer<'_>]| {
            let answered = |member: &MemberConfig| {
                let mut answers = answers.iter();
                answers.any(|answer| answer.member.host == member.host)
            };
            let mut members = new.members.iter();
            members.all(|member| old.by_host(&member.host).is_some() || answered(member))
                && (force || has_quorum(answers, &old, &new))
        };
        let answers = self.ask_until(&new.members, enough).await;
        // It may be known by another name from now on.
        let answered = |answer: &&Answer<'_>| {
            let heartbeat = answer.outcome.as_ref();
            heartbeat.is_ok_and(|heartbeat| heartbeat.peer == self.id)
        };
        let member = new
            .by_host(&own)
            .or_else(|| answers.iter().find(answered).map(|answer| answer.member))
            .ok_or_else(|| nowhere(&new))?;
        if !member.electable() {
            return Err(not_electable(member, &new));
        }
        self.check_newcomers(&answers, &old, &new)?;
        if !force {
            check_quorum(&answers, &old)?;
        }
        new.term = replica.group.leader_term() as i64;
        replica.write_set_config(&new.to_document()).await?;
        tracing::info!(version = new.version, force, "changed the configuration");
        // A majority is counted among the group's voters, and whoever reads that the votes have
        // changed goes by that. What is not there in time follows later.
        let followed = || self.group_follows(replica, &old, &new);
        let _ = wait("the group", FOLLOW_TIMEOUT, followed).await;
        Ok(())
    }

    /// The old members that can be reached vote as the configuration says, and nobody else does.
    /// Newcomers vote once they have caught up.
    fn group_follows(&self, replica: &Replica, old: &SetConfig, new: &SetConfig) -> bool {
        let membership = replica.group.status().membership;
        let settled = |member: &MemberConfig| match membership.by_address(&member.host) {
            Some(raft) => raft.voter == member.votes,
            None => false,
        };
        let stays = |member: &&MemberConfig| {
            let health = self.health.lock();
            let up = health.get(&member.host).is_none_or(Health::is_up);
            up && old.by_host(&member.host).is_some()
        };
        let listed = |address: &str| new.by_host(address).is_some();
        new.members.iter().filter(stays).all(settled)
            && membership.voters().all(|raft| listed(&raft.address))
    }

    /// A newcomer that answered must be free to join.
    fn check_newcomers(
        &self,
        answers: &[Answer<'_>],
        old: &SetConfig,
        new: &SetConfig,
    ) -> Result<(), CommandError> {
        let set_id = new.settings.replica_set_id;
        for answer in answers {
            let Ok(heartbeat) = &answer.outcome else {
                continue;
            };
            if let Some(why) = heartbeat.unfit_for(answer.member) {
                return Err(CommandError::new(
                    ErrorCode::NewReplicaSetConfigurationIncompatible,
                    format!(
                        "{} {why}; it has to start with an empty directory",
                        answer.member.host
                    ),
                ));
            }
            let newcomer = old.by_host(&answer.member.host).is_none();
            let foreign = heartbeat.has_data && heartbeat.replica_set_id != set_id;
            if newcomer && foreign && heartbeat.peer != self.id {
                return Err(CommandError::new(
                    ErrorCode::NewReplicaSetConfigurationIncompatible,
                    format!(
                        "{} has data, or a history, that is not this set's; it has to start with \
                         an empty directory",
                        answer.member.host
                    ),
                ));
            }
        }
        Ok(())
    }

    /// On a member that is not the primary. If there is one, it does what is asked; if there is
    /// none, this member becomes it.
    async fn force(
        &self,
        replica: &Replica,
        old: &SetConfig,
        new: SetConfig,
        document: &RawDocument,
    ) -> Result<Reconfigured, CommandError> {
        let _configuring = self.begin_configuring("replSetReconfig")?;
        old.check_successor(&new, true)?;
        self.find_own(&new).await?;
        let everybody = union(old, &new);
        let started = Instant::now();
        let (answers, status) = loop {
            let answers = self.ask_members(&everybody).await;
            // Its own log may have grown meanwhile, and it may have been elected.
            let status = replica.group.status();
            if replica.is_primary() {
                self.replace(replica, new, true).await?;
                return Ok(Reconfigured { warning: None });
            }
            if let Some(primary) = self.find_primary(&answers, &status) {
                return self.forward(&primary, document).await;
            }
            // With a majority there is an election under way, and nothing to be forced.
            let voters = answers.iter().filter(|answer| {
                let voted = old
                    .by_host(&answer.member.host)
                    .is_some_and(|old| old.votes);
                let heartbeat = answer.outcome.as_ref();
                voted && heartbeat.is_ok_and(|heartbeat| self.is_same_set(heartbeat))
            });
            if voters.count() < old.majority() || started.elapsed() >= ELECTION_TIMEOUT {
                break (answers, status);
            }
            tokio::time::sleep(ELECTION_POLL).await;
        };
        check_longest_log(&answers, &new, &status)?;
        let members = self.survivors(&new, &status, &answers);
        tracing::warn!(
            version = new.version,
            ?members,
            "forcing a configuration on a set without a primary: {RISK}"
        );
        let forced = replica.group.force_membership(members).await;
        forced.map_err(|error| {
            CommandError::new(
                ErrorCode::OperationFailed,
                format!("the configuration could not be forced: {error}"),
            )
        })?;
        self.come_back();
        wait("this member to lead", FORCED_LEAD_TIMEOUT, || {
            replica.group.leader_term() != 0
        })
        .await?;
        let mut new = new;
        new.term = replica.group.leader_term() as i64;
        replica.write_set_config(&new.to_document()).await?;
        Ok(Reconfigured {
            warning: Some(RISK),
        })
    }

    /// Whether a configuration has this member, by whatever name, and would let it lead.
    async fn find_own(&self, new: &SetConfig) -> Result<(), CommandError> {
        let own = self.own_host().unwrap_or_default();
        let member = match new.by_host(&own) {
            Some(member) => member,
            None => {
                let answers = self.ask_members(&new.members).await;
                let answered = answers.iter().find(|answer| {
                    let heartbeat = answer.outcome.as_ref();
                    heartbeat.is_ok_and(|heartbeat| heartbeat.peer == self.id)
                });
                answered.ok_or_else(|| nowhere(new))?.member
            }
        };
        match member.electable() {
            true => Ok(()),
            false => Err(not_electable(member, new)),
        }
    }

    /// A member of this set that leads now, going by what was just answered.
    fn find_primary(&self, answers: &[Answer<'_>], status: &Status) -> Option<String> {
        let leads = |answer: &&Answer<'_>| {
            answer.outcome.as_ref().is_ok_and(|heartbeat| {
                heartbeat.state == MemberState::Primary
                    && heartbeat.peer != self.id
                    && heartbeat.term >= status.term as i64
                    && self.is_same_set(heartbeat)
            })
        };
        let primary = answers.iter().find(leads)?;
        Some(primary.member.host.clone())
    }

    async fn forward(
        &self,
        primary: &str,
        document: &RawDocument,
    ) -> Result<Reconfigured, CommandError> {
        let pool = self
            .peers
            .pool(primary)
            .ok_or_else(|| super::unreachable(primary, "no runtime"))?;
        let body = rawdoc! { "replSetReconfig": document.to_owned(), "force": true };
        tracing::info!(primary, "passing a forced configuration to the primary");
        pool.command("admin", &body, Some(FORWARD_TIMEOUT)).await?;
        Ok(Reconfigured { warning: None })
    }

    /// This member votes; the others of the new configuration that the group knows follow, until
    /// they have caught up and vote again.
    fn survivors(&self, new: &SetConfig, status: &Status, answers: &[Answer<'_>]) -> Vec<Member> {
        let survivor = |member: &MemberConfig| {
            let answered = answers
                .iter()
                .find(|answer| answer.member.host == member.host)
                .and_then(|answer| answer.outcome.as_ref().ok())
                .filter(|heartbeat| self.is_same_set(heartbeat))
                .map(|heartbeat| heartbeat.peer);
            let known = status
                .membership
                .by_address(&member.host)
                .map(|raft| raft.id);
            let id = answered.or(known)?;
            Some(Member {
                id,
                address: member.host.clone(),
                voter: id == self.id,
            })
        };
        new.members.iter().filter_map(survivor).collect()
    }
}

fn nowhere(new: &SetConfig) -> CommandError {
    CommandError::new(
        ErrorCode::NodeNotFound,
        format!(
            "No host described in new configuration with {} for replica set {} maps to this node",
            new.version_and_term(),
            new.name
        ),
    )
}

fn not_electable(member: &MemberConfig, new: &SetConfig) -> CommandError {
    CommandError::new(
        ErrorCode::NodeNotElectable,
        format!(
            "This node, {}, with _id MemberId({}) is not electable under the new configuration \
             with {} for replica set {}",
            member.host,
            member.id,
            new.version_and_term(),
            new.name
        ),
    )
}

/// The members of both, by host.
fn union(old: &SetConfig, new: &SetConfig) -> Vec<MemberConfig> {
    let gone = old.members.iter();
    let gone = gone.filter(|member| new.by_host(&member.host).is_none());
    new.members.iter().chain(gone).cloned().collect()
}

fn has_quorum(answers: &[Answer<'_>], old: &SetConfig, new: &SetConfig) -> bool {
    let voting = new.members.iter();
    let voting = voting.filter(|member| member.votes && old.knows(member));
    let there = answers
        .iter()
        .filter(|answer| answer.member.votes && old.knows(answer.member) && answer.outcome.is_ok());
    there.count() > voting.count() / 2
}

/// A majority of those who will vote has to be there, or the set would come to a standstill.
/// Newcomers vote only once they have been there.
fn check_quorum(answers: &[Answer<'_>], old: &SetConfig) -> Result<(), CommandError> {
    let voting: Vec<&Answer<'_>> = answers
        .iter()
        .filter(|answer| answer.member.votes && old.knows(answer.member))
        .collect();
    let (there, missing): (Vec<&Answer<'_>>, Vec<&Answer<'_>>) = voting
        .iter()
        .copied()
        .partition(|answer| answer.outcome.is_ok());
    let required = voting.len() / 2 + 1;
    if there.len() >= required {
        return Ok(());
    }
    let hosts: Vec<_> = there
        .iter()
        .map(|answer| answer.member.host.as_str())
        .collect();
    let reasons = missing.iter().filter_map(|answer| {
        let error = answer.outcome.as_ref().err()?;
        Some(format!(
            "{} failed with {}",
            answer.member.host, error.message
        ))
    });
    let reasons: Vec<_> = reasons.collect();
    Err(CommandError::new(
        ErrorCode::NodeNotFound,
        format!(
            "Quorum check failed because not enough voting nodes responded; required {required} \
             but only the following {} voting nodes responded: {}; the following nodes did not \
             respond affirmatively: {}",
            hosts.len(),
            hosts.join(", "),
            reasons.join(", ")
        ),
    ))
}

/// The one with the longest log knows everything that can still be known.
fn check_longest_log(
    answers: &[Answer<'_>],
    new: &SetConfig,
    status: &Status,
) -> Result<(), CommandError> {
    let own = (status.last_term, status.last_index);
    let reached = answers.iter().filter_map(|answer| {
        let heartbeat: &Heartbeat = answer.outcome.as_ref().ok()?;
        (heartbeat.peer != status.id).then_some(())?;
        Some((heartbeat.last_term, heartbeat.last_index, answer.member))
    });
    let ahead = reached
        .filter(|(.., member)| new.by_host(&member.host).is_some())
        .filter(|(term, index, _)| (*term, *index) > own)
        .max_by_key(|(term, index, _)| (*term, *index));
    let Some((term, index, member)) = ahead else {
        return Ok(());
    };
    Err(CommandError::new(
        ErrorCode::NodeNotElectable,
        format!(
            "{} has a longer log than this member ({index} entries up to term {term}, here {} up \
             to term {}): force the configuration there, so that nothing it has is lost",
            member.host, own.1, own.0
        ),
    ))
}

#[cfg(test)]
mod tests {
    use banyan_consensus::Position;
    use bson::{DateTime, Timestamp};

    use super::super::op_time::OpTime;
    use super::*;

    fn heartbeat(last_term: u64, last_index: u64) -> Heartbeat {
        Heartbeat {
            set_name: "s".into(),
            peer: 7,
            state: MemberState::Secondary,
            term: last_term as i64,
            applied: OpTime {
                time: Timestamp {
                    time: 0,
                    increment: 0,
                },
                term: 0,
            },
            applied_index: last_index,
            commit_index: last_index,
            last_index,
            last_term,
            wall: DateTime::from_millis(0),
            config_version: 1,
            config_term: 1,
            replica_set_id: None,
            has_data: true,
            keeps_no_data: false,
            keeps_no_indexes: false,
            sync_source: String::new(),
            election: None,
            may_lead: true,
            info: String::new(),
            lists_asker: true,
        }
    }

    fn of(hosts: &[&str]) -> SetConfig {
        let mut config = SetConfig::of_one("s", hosts[0]);
        for (id, host) in (1..).zip(&hosts[1..]) {
            config.members.push(MemberConfig::new(id, host));
        }
        config
    }

    fn status(term: u64, index: u64) -> Status {
        Status {
            id: 1,
            role: banyan_consensus::Role::Follower,
            term,
            leader: None,
            leader_ready: false,
            commit: 0,
            applied: Position::default(),
            last_index: index,
            last_term: term,
            first_index: 1,
            log_bytes: 0,
            oldest_ms: None,
            damage: None,
            membership: banyan_consensus::Membership::default(),
            peers: Vec::new(),
            installing_snapshot: false,
        }
    }

    fn gone() -> Result<Heartbeat, CommandError> {
        Err(CommandError::new(ErrorCode::HostUnreachable, "gone"))
    }

    #[test]
    fn only_the_longest_log_is_forced() {
        let new = of(&["a:1", "b:1"]);
        let left_out = MemberConfig::new(5, "c:1");
        let answers = |other: Result<Heartbeat, CommandError>, member| {
            let own = Answer {
                member: &new.members[0],
                outcome: Ok(heartbeat(3, 10)),
            };
            let other = Answer {
                member,
                outcome: other,
            };
            [own, other]
        };
        let own = status(3, 10);
        let kept = &new.members[1];
        for (term, index, fine) in [(3, 10, true), (3, 11, false), (2, 99, true), (4, 1, false)] {
            let answers = answers(Ok(heartbeat(term, index)), kept);
            let checked = check_longest_log(&answers, &new, &own);
            assert_eq!(checked.is_ok(), fine, "{term}, {index}: {checked:?}");
            if let Err(error) = checked {
                assert!(error.message.starts_with("b:1 has a longer log"), "{error}");
            }
        }
        assert!(check_longest_log(&answers(gone(), kept), &new, &own).is_ok());
        let dropped = answers(Ok(heartbeat(9, 99)), &left_out);
        assert!(check_longest_log(&dropped, &new, &own).is_ok());
    }

    #[test]
    fn a_majority_of_those_who_voted_has_to_answer() {
        let old = of(&["a:1", "b:1", "c:1"]);
        let new = of(&["a:1", "b:1", "c:1", "d:1"]);
        let answers = |there: &[bool]| -> Vec<Answer<'_>> {
            let answer = |(member, &there): (_, &bool)| Answer {
                member,
                outcome: if there { Ok(heartbeat(1, 1)) } else { gone() },
            };
            new.members.iter().zip(there).map(answer).collect()
        };
        assert!(check_quorum(&answers(&[true, true, false, false]), &old).is_ok());
        let refused = check_quorum(&answers(&[true, false, false, true]), &old).unwrap_err();
        assert_eq!(refused.code, ErrorCode::NodeNotFound);
        assert!(
            refused
                .message
                .contains("required 2 but only the following 1")
        );
        assert!(
            refused.message.contains("c:1 failed with gone"),
            "{refused}"
        );
    }
}
