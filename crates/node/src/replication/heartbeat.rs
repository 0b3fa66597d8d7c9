//! Members ask each other how they are. Raft has its own heartbeats and decides by those; these
//! carry what people want to see in `rs.status()`, and who a host is before it's a member.

use std::sync::Arc;
use std::time::{Duration, Instant};

use banyan_consensus::PeerId;
use banyan_wire::CommandError;
use bson::{DateTime, RawDocument, RawDocumentBuf, Timestamp, cstr, rawdoc};
use tokio::task::JoinSet;

use super::state::MemberState;
use super::{OpTime, Replication};
use crate::params;

/// How often the others are asked.
pub const PERIOD: Duration = Duration::from_millis(500);
const TIMEOUT: Duration = Duration::from_secs(5);

/// What a member says about itself.
#[derive(Debug, Clone)]
pub struct Heartbeat {
    pub set_name: String,
    pub peer: PeerId,
    pub state: MemberState,
    pub term: i64,
    pub applied: OpTime,
    pub applied_index: u64,
    pub commit_index: u64,
    pub wall: DateTime,
    pub config_version: i64,
    pub config_term: i64,
    pub replica_set_id: Option<bson::oid::ObjectId>,
    pub has_data: bool,
    pub sync_source: String,
    pub election: Option<(Timestamp, DateTime)>,
}

/// What is known about another member.
#[derive(Debug, Clone, Default)]
pub struct Health {
    pub asked: Option<DateTime>,
    /// It asked us.
    pub heard_from: Option<DateTime>,
    pub answered: Option<Instant>,
    pub ping_ms: i64,
    pub up_since: Option<Instant>,
    pub last: Option<Heartbeat>,
    pub problem: String,
}

impl Health {
    pub fn is_up(&self) -> bool {
        self.up_since.is_some()
    }
}

impl Heartbeat {
    pub fn to_reply(&self) -> RawDocumentBuf {
        let mut out = rawdoc! {
            "set": self.set_name.as_str(),
            "state": self.state.number(),
            "v": self.config_version,
            "configTerm": self.config_term,
            "term": self.term,
            "opTime": self.applied.to_document(),
            "durableOpTime": self.applied.to_document(),
            "wallTime": self.wall,
            "syncingTo": self.sync_source.as_str(),
            "peer": self.peer as i64,
            "appliedIndex": self.applied_index as i64,
            "commitIndex": self.commit_index as i64,
            "hasData": self.has_data,
        };
        if let Some(id) = self.replica_set_id {
            out.append(cstr!("replicaSetId"), id);
        }
        if let Some((time, date)) = self.election {
            out.append(cstr!("electionTime"), time);
            out.append(cstr!("electionDate"), date);
        }
        out.append(cstr!("ok"), 1.0);
        out
    }

    /// None if the reply is not one of a member like this one.
    pub fn from_reply(reply: &RawDocument) -> Option<Heartbeat> {
        let integer = |name: &str| reply.get(name).ok().flatten().and_then(params::number);
        let election_time = reply.get_timestamp("electionTime").ok();
        let election_date = reply.get_datetime("electionDate").ok();
        Some(Heartbeat {
            set_name: reply.get_str("set").ok()?.to_owned(),
            peer: u64::try_from(integer("peer")?).ok()?,
            state: MemberState::from_number(i32::try_from(integer("state")?).ok()?),
            term: integer("term")?,
            applied: OpTime::from_document(reply.get_document("opTime").ok()?),
            applied_index: u64::try_from(integer("appliedIndex")?).ok()?,
            commit_index: u64::try_from(integer("commitIndex")?).ok()?,
            wall: reply.get_datetime("wallTime").ok()?,
            config_version: integer("v")?,
            config_term: integer("configTerm")?,
            replica_set_id: reply.get_object_id("replicaSetId").ok(),
            has_data: reply.get_bool("hasData").unwrap_or(false),
            sync_source: reply.get_str("syncingTo").unwrap_or_default().to_owned(),
            election: election_time.zip(election_date),
        })
    }
}

impl Replication {
    /// Asks a host how it is.
    pub async fn ask(
        &self,
        host: &str,
        timeout: Duration,
    ) -> Result<(Heartbeat, Duration), CommandError> {
        let pool = self
            .peers
            .pool(host)
            .ok_or_else(|| super::unreachable(host, "no runtime"))?;
        let config = self.config();
        let own_host = self.own_host();
        let mut body = rawdoc! {
            "replSetHeartbeat": self.set_name().unwrap_or_default(),
            "configVersion": config.as_ref().map_or(-2, |config| config.version),
            "term": self.term(),
            "fromPeer": self.id as i64,
        };
        if let Some(own) = &own_host {
            body.append(cstr!("from"), own.as_str());
        }
        let started = Instant::now();
        let reply = pool.command("admin", &body, Some(timeout)).await?;
        let heartbeat = Heartbeat::from_reply(&reply)
            .ok_or_else(|| super::unreachable(host, "its answer is not one of a member"))?;
        Ok((heartbeat, started.elapsed()))
    }

    /// Asks all the others, for as long as the process runs.
    pub(super) async fn ask_everybody(self: Arc<Self>) {
        let mut rounds = tokio::time::interval(PERIOD);
        rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut asking = JoinSet::new();
        loop {
            tokio::select! {
                _ = rounds.tick() => {}
                () = self.pulse.notified() => {}
                () = self.stop.cancelled() => return,
            }
            while asking.try_join_next().is_some() {}
            self.reconsider();
            self.snapshots.expire();
            let Some(config) = self.config() else {
                continue;
            };
            let own = self.own_host();
            let others = config
                .members
                .iter()
                .filter(|member| Some(&member.host) != own.as_ref());
            for member in others {
                if !self.begin_asking(&member.host) {
                    continue;
                }
                let (replication, host) = (self.clone(), member.host.clone());
                asking.spawn(async move {
                    let answer = replication.ask(&host, TIMEOUT).await;
                    replication.note_answer(&host, answer);
                });
            }
            let known = |host: &str| config.by_host(host).is_some();
            self.health.lock().retain(|host, _| known(host));
        }
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

    /// Another member asked: it's alive, and knows us.
    pub fn note_question(&self, from: &str) {
        if let Some(health) = self.health.lock().get_mut(from) {
            health.heard_from = Some(DateTime::now());
        }
    }
}
