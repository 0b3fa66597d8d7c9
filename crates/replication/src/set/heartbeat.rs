//! Members ask each other how they are. Raft has its own heartbeats and decides by those; these
//! carry what people want to see in `rs.status()`, who a host is before it's a member, and, to a
//! member that is none any more, that it was removed.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use banyan_consensus::PeerId;
use banyan_wire::{CommandError, ErrorCode};
use bson::{DateTime, cstr, rawdoc};
use tokio::task::JoinSet;

use super::ReplicationCoordinator;
use super::config::SetConfig;
use super::health::Heartbeat;
use super::state::MemberState;

/// How often a member looks at itself while it's in no set.
const IDLE_PERIOD: Duration = Duration::from_millis(500);
/// A member that cannot be reached is asked once more before it's down: the connection may have
/// been an old one.
const SECOND_TRY: Duration = Duration::from_millis(25);
/// An answer that fails within this time was refused, not lost.
const AT_ONCE: Duration = Duration::from_millis(500);

/// Who asks, as far as it says.
pub struct Asker<'a> {
    pub host: Option<&'a str>,
    /// Its number in the group.
    pub peer: Option<PeerId>,
}

impl ReplicationCoordinator {
    /// How this member answers another's heartbeat.
    pub fn heartbeat(&self, asker: Asker<'_>) -> Option<Heartbeat> {
        let status = self.status()?;
        let config = self.config();
        let leader = status.leader.and_then(|id| status.membership.get(id));
        let state = self.state_of(&status);
        let election = self
            .election
            .lock()
            .filter(|_| state == MemberState::Primary);
        // Whoever gets another host may not know of that yet, and asks under the old one.
        let is_in_group = asker
            .peer
            .is_some_and(|id| status.membership.get(id).is_some());
        let lists = |config: &Arc<SetConfig>, host| config.by_host(host).is_some() || is_in_group;
        Some(Heartbeat {
            set_name: self.set_name().unwrap_or_default(),
            peer: self.id,
            state,
            term: status.term as i64,
            applied: self.applied(&status),
            applied_index: status.applied.index,
            commit_index: status.commit,
            last_index: status.last_index,
            last_term: status.last_term,
            wall: self.machine.last_wall(),
            config_version: config.as_ref().map_or(-2, |config| config.version),
            config_term: config.as_ref().map_or(-1, |config| config.term),
            replica_set_id: config
                .as_ref()
                .and_then(|config| config.settings.replica_set_id),
            has_data: status.last_index > 0 || status.applied.index > 0,
            keeps_no_data: self.machine.is_dataless(),
            keeps_no_indexes: self.machine.is_lean(),
            sync_source: leader
                .filter(|leader| leader.id != self.id)
                .map(|leader| leader.address.clone())
                .unwrap_or_default(),
            election: election.map(|election| (election.time, election.date)),
            may_lead: self.may_lead(&status),
            info: self.info_message(&status, state),
            lists_asker: config
                .as_ref()
                .zip(asker.host)
                .is_none_or(|(config, host)| lists(config, host)),
        })
    }

    /// Asks a host how it is.
    pub async fn ask(
        &self,
        host: &str,
        timeout: Duration,
    ) -> Result<(Heartbeat, Duration), CommandError> {
        let pool = self
            .peers
            .vital_pool(host)
            .ok_or_else(|| super::unreachable(host, "no runtime"))?;
        let config = self.config();
        let own_host = self.shown_host();
        let mut body = rawdoc! {
            "replSetHeartbeat": self.set_name().unwrap_or_default(),
            "configVersion": config.as_ref().map_or(-2, |config| config.version),
            "term": self.term(),
            "fromPeer": self.id as i64,
            "to": host,
        };
        if let Some(own) = &own_host {
            body.append(cstr!("from"), own.as_str());
        }
        // A newcomer learns what it will be before it's sent anything.
        if let Some(member) = config.as_ref().and_then(|config| config.by_host(host)) {
            body.append(cstr!("arbiterOnly"), member.arbiter_only);
            body.append(cstr!("buildIndexes"), member.build_indexes);
        }
        if let Some(config) = config.filter(|config| self.is_news_to(host, config)) {
            body.append(cstr!("config"), config.to_document());
        }
        let started = Instant::now();
        let reply = pool.command("admin", &body, Some(timeout)).await?;
        let heartbeat = Heartbeat::from_reply(&reply)
            .ok_or_else(|| super::unreachable(host, "its answer is not one of a member"))?;
        Ok((heartbeat, started.elapsed()))
    }

    /// A member that has not come as far as this configuration is told of it (see
    /// [`super::announced`]).
    fn is_news_to(&self, host: &str, config: &SetConfig) -> bool {
        let health = self.health.lock();
        let last = health.get(host).and_then(|health| health.last.as_ref());
        let knows = last.is_some_and(|last| last.config_version >= config.version);
        config.by_host(host).is_some() && !knows
    }

    /// How often the others are asked.
    pub(super) fn heartbeat_period(&self) -> Duration {
        self.shown_config().map_or(IDLE_PERIOD, |config| {
            config.settings.heartbeat(config.members.len())
        })
    }

    /// Asks all the others, for as long as the process runs.
    pub(super) async fn ask_everybody(self: Arc<Self>) {
        let mut asking = JoinSet::new();
        loop {
            while asking.try_join_next().is_some() {}
            self.reconsider();
            self.tell_witnesses();
            self.snapshots.expire();
            if let Some(config) = self.shown_config() {
                self.ask_others(&config, &mut asking);
            }
            tokio::select! {
                () = tokio::time::sleep(self.heartbeat_period()) => {}
                () = self.pulse.notified() => {}
                () = self.stop.cancelled() => return,
            }
        }
    }

    fn ask_others(self: &Arc<Self>, config: &SetConfig, asking: &mut JoinSet<()>) {
        let own = self.shown_host();
        let others = config
            .members
            .iter()
            .filter(|member| Some(&member.host) != own.as_ref());
        let timeout = config.settings.heartbeat_timeout();
        for member in others {
            if !self.begin_asking(&member.host) {
                continue;
            }
            let (replication, host) = (self.clone(), member.host.clone());
            asking.spawn(async move {
                let started = Instant::now();
                let mut answer = replication.ask(&host, timeout).await;
                if answer.is_err() && started.elapsed() < AT_ONCE {
                    tokio::time::sleep(SECOND_TRY).await;
                    answer = replication.ask(&host, timeout).await;
                }
                replication.note_answer(&host, answer);
            });
        }
        let known = |host: &str| config.by_host(host).is_some();
        self.health.lock().retain(|host, _| known(host));
    }

    /// False while the previous question is still open.
    fn begin_asking(&self, host: &str) -> bool {
        let mut asking = self.asking.lock();
        let fresh = asking.insert(host.to_owned());
        if fresh {
            self.health.lock().entry(host.to_owned()).or_default().asked = Some(DateTime::now());
        }
        fresh
    }

    fn note_answer(&self, host: &str, answer: Result<(Heartbeat, Duration), CommandError>) {
        self.asking.lock().remove(host);
        match &answer {
            Ok((heartbeat, _)) => {
                self.note_withdrawal(heartbeat);
                self.note_removal(heartbeat);
            }
            Err(error) if error.code == ErrorCode::HostUnreachable => self.suspect(host),
            Err(_) => {}
        }
        {
            let mut health = self.health.lock();
            let health = health.entry(host.to_owned()).or_default();
            match answer {
                Ok((heartbeat, took)) => {
                    let took_ms = i64::try_from(took.as_millis()).unwrap_or(i64::MAX);
                    health.ping_ms = match health.answered {
                        None => took_ms,
                        Some(_) => (health.ping_ms * 4 + took_ms) / 5,
                    };
                    health.answered = Some(Instant::now());
                    health.up_since.get_or_insert_with(Instant::now);
                    health.last = Some(heartbeat);
                    health.problem.clear();
                }
                Err(error) => {
                    health.up_since = None;
                    health.problem = error.message;
                }
            }
        }
        self.reconsider();
    }

    /// A primary whose host refuses connections has ended: there is no need to wait for as long as
    /// for one that is only silent. Raft still asks the others before it counts.
    fn suspect(&self, host: &str) {
        let Some(replica) = self.replica() else {
            return;
        };
        let status = replica.group.status();
        let leader = status.leader.and_then(|id| status.membership.get(id));
        if let Some(leader) = leader.filter(|leader| leader.address == host) {
            replica.group.suspect_leader(leader.id);
        }
    }

    /// A newer configuration of this set may do without this member; nobody sends it the log any
    /// more, so this is how it learns of that.
    fn note_removal(&self, heartbeat: &Heartbeat) {
        if !self.is_same_set(heartbeat) {
            return;
        }
        let Some(config) = self.config() else { return };
        let newer = heartbeat.config_version > config.version;
        let known = self.removed_in.load(Ordering::Acquire);
        if newer && !heartbeat.lists_asker && known < heartbeat.config_version {
            self.removed_in
                .store(heartbeat.config_version, Ordering::Release);
            tracing::warn!(
                version = heartbeat.config_version,
                "the set's configuration does not have this member any more"
            );
            if let Some(replica) = self.replica() {
                replica
                    .group
                    .give_up("the set's configuration does not have this member any more");
            }
            self.topology_changed();
        } else if heartbeat.lists_asker && known > 0 && heartbeat.config_version >= known {
            self.removed_in.store(0, Ordering::Release);
            self.topology_changed();
        }
    }

    /// Another member asked: it's alive, and knows us.
    pub fn note_question(&self, from: &str) {
        if let Some(health) = self.health.lock().get_mut(from) {
            health.heard_from = Some(DateTime::now());
        }
    }

    /// What this member will be in the set that asks it, told before it is one.
    pub fn note_part(&self, arbiter_only: bool, build_indexes: bool) {
        if self.config().is_some() || !self.is_replica_set() {
            return;
        }
        let Some(replica) = self.replica() else {
            return;
        };
        let status = replica.group.status();
        // Only where there is nothing yet that could be taken for more, or less, than it is.
        let empty = status.last_index == 0 && status.applied.index == 0;
        if empty && status.membership.members.is_empty() {
            self.machine.set_build_indexes(build_indexes);
            self.machine.set_dataless(arbiter_only);
        }
    }
}
