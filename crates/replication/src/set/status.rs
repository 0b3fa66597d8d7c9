//! `replSetGetStatus`: the whole set, as this member sees it.

use std::sync::atomic::Ordering;
use std::time::Instant;

use banyan_consensus::Status;
use banyan_wire::{CommandError, ErrorCode};
use bson::{DateTime, RawArrayBuf, RawDocumentBuf, Timestamp, cstr, rawdoc};

use super::ReplicationCoordinator;
use super::config::{MemberConfig, SetConfig, small};
use super::health::Health;
use super::op_time::OpTime;
use super::state::MemberState;

const NO_TIME: OpTime = OpTime {
    time: Timestamp {
        time: 0,
        increment: 0,
    },
    term: -1,
};

/// Before the set is initiated: today's error, with the fields of the 2.x server.
pub fn not_yet_initialized() -> CommandError {
    let extra = rawdoc! {
        "startupStatus": 3,
        "info": "run rs.initiate(...) if not yet done for the set",
    };
    CommandError::new(
        ErrorCode::NotYetInitialized,
        "can't get local.system.replset config from self or any seed (EMPTYCONFIG)",
    )
    .with_extra(extra)
}

pub fn not_a_set() -> CommandError {
    CommandError::new(
        ErrorCode::NoReplicationEnabled,
        "not running with --replSet",
    )
}

impl ReplicationCoordinator {
    /// The configuration, or the reason why there is none.
    pub fn require_config(&self) -> Result<std::sync::Arc<SetConfig>, CommandError> {
        if !self.is_replica_set() {
            return Err(not_a_set());
        }
        self.config().ok_or_else(|| {
            CommandError::new(
                ErrorCode::NotYetInitialized,
                "no replset config has been received",
            )
        })
    }

    /// The configuration to be shown, or the reason why there is none.
    pub fn require_shown_config(&self) -> Result<std::sync::Arc<SetConfig>, CommandError> {
        match self.shown_config() {
            Some(config) if self.is_replica_set() => Ok(config),
            _ => self.require_config(),
        }
    }

    pub fn status_document(&self) -> Result<RawDocumentBuf, CommandError> {
        if !self.is_replica_set() {
            return Err(not_a_set());
        }
        let config = self.shown_config().ok_or_else(not_yet_initialized)?;
        let status = self.status().ok_or_else(not_yet_initialized)?;
        let state = self.state_of(&status);
        if state == MemberState::Removed {
            return Err(CommandError::new(
                ErrorCode::InvalidReplicaSetConfig,
                "Our replica set config is invalid or we are not a member of it",
            ));
        }
        let applied = self.applied(&status);
        let sync_source = self.sync_source(&status);
        let source_id = sync_source.as_deref().and_then(|host| config.by_host(host));
        let voting = config.voters().count();
        let data_voters = config
            .voters()
            .filter(|member| !member.arbiter_only)
            .count();
        let mut out = rawdoc! {
            "set": config.name.as_str(),
            "date": DateTime::now(),
            "myState": state.number(),
            "term": status.term as i64,
            "syncSourceHost": sync_source.as_deref().unwrap_or(""),
            "syncSourceId": source_id.map_or(-1, |member| member.id as i32),
            "heartbeatIntervalMillis": self.heartbeat_period().as_millis() as i64,
            "majorityVoteCount": config.majority() as i32,
            "writeMajorityCount": config.majority().min(data_voters) as i32,
            "votingMembersCount": voting as i32,
            "writableVotingMembersCount": data_voters as i32,
            "optimes": {
                "lastCommittedOpTime": applied.to_document(),
                "lastCommittedWallTime": self.machine.last_wall(),
                "readConcernMajorityOpTime": applied.to_document(),
                "appliedOpTime": applied.to_document(),
                "durableOpTime": applied.to_document(),
                "lastAppliedWallTime": self.machine.last_wall(),
                "lastDurableWallTime": self.machine.last_wall(),
            },
        };
        if let Some(metrics) = self.election_metrics(&config, &status, state) {
            out.append(cstr!("electionCandidateMetrics"), metrics);
        }
        if let Some(progress) = self.initial_sync() {
            out.append(cstr!("initialSyncStatus"), progress.to_document());
        }
        let health = self.health.lock().clone();
        let own = self.shown_host();
        let members = config.members.iter().map(|member| {
            if own.as_ref() == Some(&member.host) {
                self.own_line(member, &config, &status, state)
            } else {
                self.other_line(member, &status, health.get(&member.host))
            }
        });
        out.append(cstr!("members"), RawArrayBuf::from_iter(members));
        out.append(cstr!("ok"), 1.0);
        Ok(out)
    }

    fn sync_source(&self, status: &Status) -> Option<String> {
        let leader = status.leader.filter(|&id| id != self.id)?;
        status
            .membership
            .get(leader)
            .map(|leader| leader.address.clone())
    }

    fn own_line(
        &self,
        member: &MemberConfig,
        config: &SetConfig,
        status: &Status,
        state: MemberState,
    ) -> RawDocumentBuf {
        let applied = self.applied(status);
        let uptime = self.process_started.elapsed().as_secs();
        let mut out = start_line(member, 1.0, state, uptime as i64);
        let wall = self.machine.last_wall();
        if !member.arbiter_only {
            out.append(cstr!("optime"), applied.to_document());
            out.append(cstr!("optimeDate"), applied.date());
            out.append(cstr!("lastAppliedWallTime"), wall);
            out.append(cstr!("lastDurableWallTime"), wall);
        }
        let source = self.sync_source(status).unwrap_or_default();
        let source_id = config
            .by_host(&source)
            .map_or(-1, |source| source.id as i32);
        out.append(cstr!("syncSourceHost"), source.as_str());
        out.append(cstr!("syncSourceId"), source_id);
        let maintenance = self.maintenance.load(Ordering::Acquire);
        if maintenance > 0 {
            out.append(cstr!("maintenanceMode"), maintenance as i32);
        }
        let info = self.info_message(status, state);
        out.append(cstr!("infoMessage"), info.as_str());
        let election = *self.election.lock();
        if let (MemberState::Primary, Some(election)) = (state, election) {
            out.append(cstr!("electionTime"), election.time);
            out.append(cstr!("electionDate"), election.date);
        }
        out.append(cstr!("configVersion"), config.version as i32);
        out.append(cstr!("configTerm"), small(config.term.max(0)));
        out.append(cstr!("self"), true);
        out.append(cstr!("lastHeartbeatMessage"), "");
        out
    }

    fn other_line(
        &self,
        member: &MemberConfig,
        status: &Status,
        health: Option<&Health>,
    ) -> RawDocumentBuf {
        let unasked = Health::default();
        let health = health.unwrap_or(&unasked);
        let asked_and_failed = health.asked.is_some() && !health.problem.is_empty();
        let state = match (&health.last, health.is_up()) {
            (Some(last), true) => self.as_seen(member, status, last.state),
            _ if asked_and_failed => MemberState::Down,
            _ => MemberState::Startup,
        };
        let up = health
            .up_since
            .map_or(0, |since: Instant| since.elapsed().as_secs() as i64);
        let well = if state == MemberState::Down { 0.0 } else { 1.0 };
        let mut out = start_line(member, well, state, up);
        let last = health.last.as_ref().filter(|_| health.is_up());
        let applied = last.map_or(NO_TIME, |last| last.applied);
        let wall = last.map_or(DateTime::from_millis(0), |last| last.wall);
        append_optime(&mut out, member, applied, wall);
        let never = DateTime::from_millis(0);
        out.append(cstr!("lastHeartbeat"), health.asked.unwrap_or(never));
        out.append(
            cstr!("lastHeartbeatRecv"),
            health.heard_from.unwrap_or(never),
        );
        out.append(cstr!("pingMs"), health.ping_ms);
        let kept_out = last
            .filter(|_| status.leader_ready)
            .and_then(|last| self.why_not_admitted(member, last));
        let message = kept_out.as_deref().unwrap_or(&health.problem);
        out.append(cstr!("lastHeartbeatMessage"), message);
        let source = last.map_or("", |last| last.sync_source.as_str());
        out.append(cstr!("syncSourceHost"), source);
        let config = self.config();
        let source = config.as_ref().and_then(|config| config.by_host(source));
        out.append(
            cstr!("syncSourceId"),
            source.map_or(-1, |source| source.id as i32),
        );
        let info = last.map_or("", |last| last.info.as_str());
        out.append(cstr!("infoMessage"), info);
        if let Some((time, date)) = last.and_then(|last| last.election) {
            out.append(cstr!("electionTime"), time);
            out.append(cstr!("electionDate"), date);
        }
        out.append(
            cstr!("configVersion"),
            last.map_or(-2, |last| last.config_version as i32),
        );
        out.append(
            cstr!("configTerm"),
            small(last.map_or(-1, |last| last.config_term)),
        );
        out
    }

    /// How this member came to lead.
    fn election_metrics(
        &self,
        config: &SetConfig,
        status: &Status,
        state: MemberState,
    ) -> Option<RawDocumentBuf> {
        let election = (*self.election.lock()).filter(|_| state == MemberState::Primary)?;
        let priority = self.own_in(config, status)?.priority;
        Some(rawdoc! {
            "lastElectionDate": election.date,
            "electionTerm": status.term as i64,
            "numVotesNeeded": config.majority() as i32,
            "priorityAtElection": priority,
            "electionTimeoutMillis": config.settings.election_timeout_ms,
            // It has everything when it begins, and begins when a majority has its first entry.
            "numCatchUpOps": 0_i64,
            "newTermStartDate": election.date,
            "wMajorityWriteAvailabilityDate": election.date,
        })
    }

    /// Why it's in the state that it's in, where that is not as it should be.
    pub(super) fn info_message(&self, status: &Status, state: MemberState) -> String {
        let frozen = *self.frozen_until.lock();
        let left = frozen.and_then(|until| until.checked_duration_since(Instant::now()));
        match state {
            MemberState::Startup => {
                "no configuration yet: it waits for rs.initiate() here or rs.add() elsewhere".into()
            }
            MemberState::Startup2 => self.initial_sync().map_or_else(
                || match status.last_index {
                    0 => "waiting to fetch the data from the primary".to_owned(),
                    _ => self.behind(status),
                },
                |progress| progress.line(),
            ),
            MemberState::Recovering if self.maintenance.load(Ordering::Acquire) > 0 => {
                "in maintenance mode".into()
            }
            MemberState::Recovering => self.behind(status),
            MemberState::Removed => format!(
                "not a member in version {} of the configuration",
                self.removed_in
                    .load(Ordering::Acquire)
                    .max(self.config().map_or(0, |config| config.version))
            ),
            MemberState::Secondary => left.map_or_else(String::new, |left| {
                format!("does not seek election for {} seconds", left.as_secs() + 1)
            }),
            _ => String::new(),
        }
    }

    fn behind(&self, status: &Status) -> String {
        let Some(leader) = status.leader.and_then(|id| status.membership.get(id)) else {
            return "waiting for a primary".to_owned();
        };
        let health = self.health.lock();
        let last = health
            .get(&leader.address)
            .and_then(|health| health.last.as_ref());
        last.map_or_else(
            || "waiting to hear from the primary".to_owned(),
            |last| {
                let entries = last.commit_index.saturating_sub(status.applied.index);
                format!("{entries} entries of the log behind {}", leader.address)
            },
        )
    }

    /// The primary knows more about a newcomer than the newcomer does.
    fn as_seen(&self, member: &MemberConfig, status: &Status, said: MemberState) -> MemberState {
        if !status.leader_ready {
            return said;
        }
        let raft = status.membership.by_address(&member.host);
        match (raft, said) {
            (None, MemberState::Startup) => MemberState::Startup,
            (Some(raft), MemberState::Startup) if !raft.voter => MemberState::Startup2,
            (_, said) => said,
        }
    }
}

fn start_line(
    member: &MemberConfig,
    health: f64,
    state: MemberState,
    uptime: i64,
) -> RawDocumentBuf {
    rawdoc! {
        "_id": member.id as i32,
        "name": member.host.as_str(),
        "health": health,
        "state": state.number(),
        "stateStr": state.name(),
        "uptime": i32::try_from(uptime).unwrap_or(i32::MAX),
    }
}

/// What another member has; its own line is shorter.
fn append_optime(out: &mut RawDocumentBuf, member: &MemberConfig, applied: OpTime, wall: DateTime) {
    if member.arbiter_only {
        return;
    }
    out.append(cstr!("optime"), applied.to_document());
    out.append(cstr!("optimeDurable"), applied.to_document());
    out.append(cstr!("optimeDate"), applied.date());
    out.append(cstr!("optimeDurableDate"), applied.date());
    out.append(cstr!("lastAppliedWallTime"), wall);
    out.append(cstr!("lastDurableWallTime"), wall);
}
