//! The replica set: its configuration, its members' states, and how they talk.
//!
//! Raft (see `banyan_consensus`) decides who leads and what is committed. This module gives it the
//! shape that MongoDB's users know:
//!
//! - [`config`]: the document that `rs.initiate` and `rs.reconfig` take. It's replicated like any
//!   other write; the primary then makes the Raft group what it says ([`reconcile`]).
//! - [`identity`]: which member a data directory is. Raft knows members by this number, people by
//!   `host:port` and `_id`; the address of a Raft member is the `host` of the configuration.
//! - [`transport`]: Raft's messages over the ordinary port.
//! - [`initiate`], [`reconfigure`], [`lead`]: what an operator makes a set do.
//! - [`retention`]: how much of the log is kept.
//! - [`snapshot`]: how a member that's too far behind for the log fetches the state.
//! - [`heartbeat`]: members ask each other how they are, for `rs.status()`.
//! - [`announced`]: what a newcomer is told of the set before it has any of its log.
//! - [`progress`]: how far the others have applied the log, while somebody waits for them.
//! - [`state`], [`hello`], [`status`]: what a member says about itself.
//! - [`quiesce`]: how a member leaves.
//! - [`write_concern`]: what has to hold of a write before its reply leaves.
//! - [`readiness`]: whether its state is recent enough to be read.
//!
//! A standalone has the same log and the same group, of one; nobody can join it.

mod announced;
pub mod config;
mod followers;
pub mod health;
pub mod heartbeat;
pub mod hello;
pub mod identity;
mod initiate;
pub mod lead;
pub mod op_time;
mod options;
pub mod progress;
mod quiesce;
pub mod readiness;
mod reconcile;
pub mod reconfigure;
pub mod retention;
pub mod snapshot;
pub mod state;
pub mod status;
pub mod transport;
mod wiped;
pub mod write_concern;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use banyan_consensus::{Options, PeerId, Role, Status, SyncMode, Transport};
use banyan_storage::Store;
use banyan_wire::{CommandError, ErrorCode};
use bson::oid::ObjectId;
use bson::{DateTime, Timestamp, rawdoc};
use parking_lot::{Mutex, RwLock};
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::machine::Machine;
use crate::replica::Replica;
use config::{MemberConfig, SetConfig};
use followers::Progress;
use health::{Health, Heartbeat};
use op_time::OpTime;
pub use options::{SetOptions, StartError};
use retention::Retention;
use state::MemberState;
use transport::Peers;

/// A standalone syncs its log this often; a set syncs every entry before it counts.
const SYNC_INTERVAL: Duration = Duration::from_millis(100);

/// No longer than this after its start a member waits for the others' word.
const ASKING_AROUND: Duration = Duration::from_secs(2);

/// Of the hosts that this process was reached by, so many are kept.
const NAMES_MAX: usize = 8;

/// When this member, or another, became the primary.
#[derive(Debug, Clone, Copy)]
pub struct Election {
    pub id: ObjectId,
    pub time: Timestamp,
    pub date: DateTime,
}

/// A configuration that the members speak of before the log has brought it, and which of the hosts
/// in it is this one.
#[derive(Clone)]
struct Announced {
    config: Arc<SetConfig>,
    host: String,
}

/// This member's part in its set.
pub struct ReplicationCoordinator {
    id: PeerId,
    /// `--replSet`.
    required_name: Option<String>,
    /// `--selfInitiate`.
    self_initiate: bool,
    /// Config servers may form a set whose name was not given on their command line.
    config_server: bool,
    /// `name:port` of this process.
    address: String,
    machine: Arc<Machine>,
    replica: OnceLock<Weak<Replica>>,
    peers: Arc<Peers>,
    config: RwLock<Option<Arc<SetConfig>>>,
    announced: RwLock<Option<Announced>>,
    health: Mutex<HashMap<String, Health>>,
    asking: Mutex<HashSet<String>>,
    /// The member was seen to have caught up with the primary: it serves reads.
    caught_up: AtomicBool,
    readiness: readiness::Readiness,
    frozen_until: Mutex<Option<Instant>>,
    /// How often maintenance was asked for.
    maintenance: AtomicU32,
    /// The version of a configuration that does not have this member any more; 0: none is known.
    removed_in: AtomicI64,
    /// Hosts by which others have reached this process.
    names: Mutex<Vec<String>>,
    /// The member that an operator would like this one to follow.
    sync_wish: Mutex<Option<String>>,
    retention: Retention,
    /// Hosts that were found unfit to be admitted.
    refused: Mutex<HashSet<String>>,
    started: Instant,
    process_started: Instant,
    /// The arbiters that the group was told of.
    witnesses: Mutex<Vec<PeerId>>,
    election: Mutex<Option<Election>>,
    /// Counts what drivers watch for: the role, the primary, the configuration.
    topology: watch::Sender<i64>,
    process: ObjectId,
    /// Set when the member is about to end: see [`quiesce`].
    quiescing_until: OnceLock<Instant>,
    /// Something changed that [`reconcile`] wants to know.
    changed: Notify,
    pulse: Notify,
    /// Held while a configuration is made.
    configuring: tokio::sync::Mutex<()>,
    progress: Progress,
    snapshots: snapshot::Offers,
    initial_sync: Arc<snapshot::InitialSync>,
    /// Cancelled once the member is about to end: see [`quiesce`].
    stop: CancellationToken,
}

fn unreachable(host: &str, why: &str) -> CommandError {
    CommandError::new(ErrorCode::HostUnreachable, format!("{host}: {why}"))
}

impl ReplicationCoordinator {
    /// Called before the group is opened.
    pub fn open(
        options: SetOptions,
        store: &Store,
        machine: &Arc<Machine>,
    ) -> Result<Arc<ReplicationCoordinator>, StartError> {
        let log_dir = &options.log_dir;
        let has_state = machine.applied_index() > 0;
        let peers = Arc::new(Peers::default());
        let limits = retention::Limits {
            bytes_max: options.log_bytes_max,
            hours_min: options.log_hours_min,
        };
        let vital = options.vital.clone();
        if let Some(handle) = vital.or_else(|| Handle::try_current().ok()) {
            peers.use_runtime(handle);
        }
        let replication = Arc::new(ReplicationCoordinator {
            id: identity::load_or_draw(log_dir, has_state)?,
            required_name: options.name.clone(),
            self_initiate: options.self_initiate,
            config_server: options.config_server,
            address: options.address.clone(),
            machine: machine.clone(),
            replica: OnceLock::new(),
            peers,
            config: RwLock::new(None),
            announced: RwLock::new(None),
            health: Mutex::default(),
            asking: Mutex::default(),
            caught_up: AtomicBool::new(false),
            readiness: readiness::Readiness::new(),
            frozen_until: Mutex::new(None),
            maintenance: AtomicU32::new(0),
            removed_in: AtomicI64::new(0),
            names: Mutex::default(),
            sync_wish: Mutex::new(None),
            retention: Retention::open(log_dir, limits)?,
            refused: Mutex::default(),
            started: Instant::now(),
            process_started: options.process_started,
            witnesses: Mutex::default(),
            election: Mutex::new(None),
            topology: watch::Sender::new(0),
            process: ObjectId::new(),
            quiescing_until: OnceLock::new(),
            changed: Notify::new(),
            pulse: Notify::new(),
            configuring: tokio::sync::Mutex::new(()),
            snapshots: snapshot::Offers::default(),
            progress: Progress::default(),
            initial_sync: Arc::default(),
            stop: CancellationToken::new(),
        });
        replication.read_config()?;
        replication.check_name()?;
        let own = replication.config();
        let own = own
            .as_ref()
            .and_then(|config| config.by_host(&replication.address));
        replication.take_part(own);
        let fetcher = snapshot::Fetcher::new(
            replication.peers.clone(),
            store.clone(),
            replication.stop.clone(),
            replication.initial_sync.clone(),
        );
        machine.fetch_snapshots_from(Box::new(move |meta, scope| fetcher.fetch(meta, scope)));
        Ok(replication)
    }

    /// A directory that belongs to a set is not opened under another name, or as a standalone:
    /// its writes would be unknown to the others.
    fn check_name(&self) -> Result<(), StartError> {
        let Some(config) = self.config() else {
            return Ok(());
        };
        match &self.required_name {
            Some(name) if *name == config.name => Ok(()),
            None if self.config_server => Ok(()),
            Some(name) => Err(StartError(format!(
                "the data belongs to the replica set \"{}\", but --replSet says \"{name}\"",
                config.name
            ))),
            None => Err(StartError(format!(
                "the data belongs to the replica set \"{}\"; start it with --replSet {0}",
                config.name
            ))),
        }
    }

    /// What the configuration makes of this member, as far as its state is concerned.
    fn take_part(&self, own: Option<&MemberConfig>) {
        let Some(own) = own else { return };
        self.machine.set_build_indexes(own.build_indexes);
        self.machine.set_dataless(own.arbiter_only);
    }

    pub fn group_options(&self) -> Options {
        let sync = match self.is_replica_set() {
            true => SyncMode::EveryEntry,
            false => SyncMode::Interval(SYNC_INTERVAL),
        };
        let mut options = Options::new(self.id, sync);
        options.log_bytes_max = self.retention.limits().bytes_max;
        if let Some(config) = self.config() {
            options.heartbeat = config.settings.leader_heartbeat();
            options.election_timeout = config.settings.election_timeout();
            if let Some(own) = config.by_host(&self.address) {
                options.witness = own.arbiter_only;
                options.apply_delay = own.apply_delay();
            }
        }
        options
    }

    pub fn transport(&self) -> Arc<dyn Transport> {
        self.peers.clone()
    }

    /// Called once the replica is complete. A standalone is bootstrapped here.
    pub fn start(self: &Arc<Self>, replica: &Arc<Replica>) -> Result<(), StartError> {
        // It's called once.
        let _ = self.replica.set(Arc::downgrade(replica));
        let failed = |error: banyan_consensus::Error| StartError(error.to_string());
        self.retention.apply(replica);
        if !self.is_replica_set() {
            if self.self_initiate {
                self.check_self_initiate(replica)?;
            }
            if !replica.group.is_bootstrapped() {
                replica.group.bootstrap(&self.address).map_err(failed)?;
            }
            return Ok(());
        }
        let watching = Arc::downgrade(self);
        replica.group.watch(Box::new(move |status| {
            if let Some(replication) = watching.upgrade() {
                replication.note_status(status);
            }
        }));
        let configured = Arc::downgrade(self);
        replica.machine.on_config(Box::new(move || {
            if let Some(replication) = configured.upgrade() {
                replication.config_changed();
            }
        }));
        // Opening the group may have applied one.
        self.config_changed();
        let runtime = self.peers.runtime().cloned();
        let runtime = runtime
            .ok_or_else(|| StartError("a member of a replica set needs a runtime".into()))?;
        runtime.spawn(self.clone().ask_everybody());
        runtime.spawn(self.clone().reconcile_forever(replica.group.clone()));
        if self.self_initiate && self.check_self_initiate(replica)? {
            runtime.spawn(self.clone().self_initiate(replica.clone()));
        }
        Ok(())
    }

    /// It was started as a member of a set, whether or not the set exists yet.
    pub fn is_replica_set(&self) -> bool {
        self.required_name.is_some() || self.config_server
    }

    pub fn snapshots(&self) -> &snapshot::Offers {
        &self.snapshots
    }

    /// How the fetching of a snapshot goes; `None` while none is fetched.
    pub fn initial_sync(&self) -> Option<snapshot::progress::Status> {
        self.initial_sync.status()
    }

    pub fn peer_id(&self) -> PeerId {
        self.id
    }

    /// The set's name: as it was given, or as the configuration says.
    pub fn set_name(&self) -> Option<String> {
        self.required_name
            .clone()
            .or_else(|| self.config().map(|config| config.name.clone()))
    }

    pub fn config(&self) -> Option<Arc<SetConfig>> {
        self.config.read().clone()
    }

    fn read_config(&self) -> Result<(), StartError> {
        let parsed = match self.machine.set_config() {
            None => None,
            Some(document) => Some(Arc::new(SetConfig::parse(&document).map_err(|error| {
                StartError(format!(
                    "the replica set's configuration is damaged: {error}"
                ))
            })?)),
        };
        *self.config.write() = parsed;
        Ok(())
    }

    fn config_changed(&self) {
        if let Err(error) = self.read_config() {
            tracing::error!(%error, "a configuration cannot be used");
        }
        if let Some(config) = self.config() {
            let known = |address: &str| config.by_host(address).is_some();
            self.peers.keep_only(known);
            if config.version >= self.removed_in.load(Ordering::Acquire) {
                self.removed_in.store(0, Ordering::Release);
            }
            self.forget_announcement(config.version);
            self.follow_config(&config);
        }
        self.reconsider();
        self.topology_changed();
        self.changed.notify_one();
        self.pulse.notify_one();
    }

    /// Makes this member what the configuration says.
    fn follow_config(&self, config: &SetConfig) {
        let Some(replica) = self.replica() else {
            return;
        };
        let settings = &config.settings;
        replica
            .group
            .set_timing(settings.leader_heartbeat(), settings.election_timeout());
        let own = self.own_host();
        let own = own.as_deref().and_then(|host| config.by_host(host));
        if let Some(own) = own {
            self.take_part(Some(own));
            replica.group.set_witness(own.arbiter_only);
            replica.group.set_apply_delay(own.apply_delay());
        }
    }

    /// Whoever leads must know whom it cannot give the lead to.
    fn tell_witnesses(&self) {
        let (Some(replica), Some(config)) = (self.replica(), self.config()) else {
            return;
        };
        let membership = replica.group.status().membership;
        let arbiters = config.members.iter().filter(|member| member.arbiter_only);
        let ids = arbiters.filter_map(|member| Some(membership.by_address(&member.host)?.id));
        let witnesses: Vec<PeerId> = ids.collect();
        let mut told = self.witnesses.lock();
        if *told != witnesses {
            replica.group.set_witnesses(witnesses.clone());
            *told = witnesses;
        }
    }

    fn replica(&self) -> Option<Arc<Replica>> {
        self.replica.get().and_then(Weak::upgrade)
    }

    fn status(&self) -> Option<Status> {
        self.replica().map(|replica| replica.group.status())
    }

    pub fn term(&self) -> i64 {
        self.status().map_or(0, |status| status.term as i64)
    }

    /// The host by which the configuration knows this member.
    pub fn own_host(&self) -> Option<String> {
        let status = self.status()?;
        let own = status.membership.get(self.id)?;
        let config = self.config();
        let member = config
            .as_ref()
            .and_then(|config| self.own_in(config, &status));
        Some(member.map_or(&own.address, |member| &member.host).clone())
    }

    /// This member in a configuration: by the address that the group has for it or, if the
    /// configuration has another name for it that the group did not follow yet, by that.
    fn own_in<'a>(&self, config: &'a SetConfig, status: &Status) -> Option<&'a MemberConfig> {
        let own = status.membership.get(self.id)?;
        config.by_host(&own.address).or_else(|| {
            let names = self.names.lock();
            let mut members = config.members.iter();
            members.find(|member| names.contains(&member.host))
        })
    }

    /// Another member has reached this process by that host.
    pub fn note_name(&self, host: &str) {
        let mut names = self.names.lock();
        let known = names.iter().any(|known| known == host);
        if !known && host.len() <= config::HOST_BYTES_MAX {
            if names.len() == NAMES_MAX {
                names.remove(0);
            }
            names.push(host.to_owned());
        }
    }

    fn note_status(&self, status: &Status) {
        if status.leader_ready {
            let date = DateTime::now();
            let time = Timestamp {
                time: (date.timestamp_millis() / 1000) as u32,
                increment: 1,
            };
            let mut election = self.election.lock();
            let id = election_id(status.term);
            if election.is_none_or(|election| election.id != id) {
                *election = Some(Election { id, time, date });
                tracing::info!(term = status.term, "became the primary");
                self.tell_of_lead();
            }
        }
        self.topology_changed();
        self.changed.notify_one();
        self.pulse.notify_one();
    }

    /// Has the log say that this member leads: from then on what is in the log is of its term.
    fn tell_of_lead(&self) {
        if let (Some(replica), Some(runtime)) = (self.replica(), self.peers.runtime()) {
            runtime.spawn(async move {
                // It need not be the first entry of its term: whoever is quicker may write before.
                let message = rawdoc! { "msg": "new primary" };
                if let Err(error) = replica.write_noop(&message).await {
                    tracing::debug!(%error, "no no-op entry of a new primary");
                }
            });
        }
    }

    /// Looks again at what follows from everything known: whether it may campaign, and whether it
    /// has caught up.
    fn reconsider(&self) {
        let Some(replica) = self.replica() else {
            return;
        };
        let status = replica.group.status();
        replica.group.set_electable(self.may_lead(&status));
        if status.installing_snapshot {
            self.readiness.begin_anew();
            if self.caught_up.swap(false, Ordering::AcqRel) {
                self.topology_changed();
            }
        } else if !self.caught_up.load(Ordering::Acquire) && self.has_caught_up(&status) {
            self.caught_up.store(true, Ordering::Release);
            self.topology_changed();
        }
    }

    fn may_lead(&self, status: &Status) -> bool {
        let mut frozen = self.frozen_until.lock();
        if frozen.is_some_and(|until| until <= Instant::now()) {
            *frozen = None;
        }
        let config = self.config();
        let own = config
            .as_ref()
            .and_then(|config| self.own_in(config, status));
        let others = config.iter().flat_map(|config| &config.members);
        let mut others = others.filter(|&member| Some(member) != own);
        frozen.is_none()
            && self.maintenance.load(Ordering::Acquire) == 0
            && self.removed_in.load(Ordering::Acquire) == 0
            && own.is_none_or(|own| own.electable())
            && (self.started.elapsed() >= ASKING_AROUND
                || others.all(|other| self.has_word_of(&other.host)))
    }

    /// Whether a member is there and follows the log, as far as its heartbeats tell.
    pub fn is_following(&self, host: &str) -> bool {
        let health = self.health.lock();
        health.get(host).is_some_and(|health| {
            let last = health.last.as_ref();
            health.is_up() && last.is_some_and(|last| last.state == MemberState::Secondary)
        })
    }

    /// After a start a member hears the others out before it campaigns: the set may have gone on
    /// without it, by a configuration that it does not know.
    fn has_word_of(&self, host: &str) -> bool {
        let health = self.health.lock();
        let health = health.get(host);
        health.is_some_and(|health| health.answered.is_some() || !health.problem.is_empty())
    }

    fn has_caught_up(&self, status: &Status) -> bool {
        let config = self.config();
        if status.membership.get(self.id).is_none() {
            return false;
        }
        let own = config
            .as_ref()
            .and_then(|config| self.own_in(config, status));
        // A delayed member is never level.
        if own.is_some_and(|own| own.delay_seconds > 0) {
            return true;
        }
        let leader = status.leader.and_then(|id| status.membership.get(id));
        let primary_commit = leader.and_then(|leader| {
            let health = self.health.lock();
            let last = health.get(&leader.address)?.last.as_ref()?;
            (last.state == MemberState::Primary).then_some(last.commit_index)
        });
        let timeout = config.map_or(Duration::ZERO, |config| config.settings.election_timeout());
        self.readiness.is_level(status, primary_commit, timeout)
    }

    /// What this member is right now.
    pub fn state(&self) -> MemberState {
        let Some(replica) = self.replica() else {
            return MemberState::Startup;
        };
        self.state_of(&replica.group.status())
    }

    fn state_of(&self, status: &Status) -> MemberState {
        let Some(config) = self.config() else {
            let joining = status.installing_snapshot
                || status.role == Role::Learner
                || self.announced.read().is_some();
            return if joining {
                MemberState::Startup2
            } else {
                MemberState::Startup
            };
        };
        if self.removed_in.load(Ordering::Acquire) > 0 {
            return MemberState::Removed;
        }
        let Some(member) = self.own_in(&config, status) else {
            // While the state has arrived and the log has not, it knows of no members at all; and
            // the log brings configurations from before it was one.
            let joining = status.membership.members.is_empty() || self.announced.read().is_some();
            return if joining {
                MemberState::Startup2
            } else {
                MemberState::Removed
            };
        };
        if status.leader_ready {
            MemberState::Primary
        } else if status.installing_snapshot {
            MemberState::Startup2
        } else if member.arbiter_only {
            MemberState::Arbiter
        } else if status.role == Role::Learner && member.votes
            || self.maintenance.load(Ordering::Acquire) > 0
        {
            MemberState::Recovering
        } else if self.caught_up.load(Ordering::Acquire) {
            MemberState::Secondary
        } else {
            MemberState::Recovering
        }
    }

    /// It may answer reads, as far as its state goes.
    pub fn is_readable(&self) -> bool {
        // Every read on a secondary comes by: nothing is copied.
        let look = |replica: Arc<Replica>| replica.group.look(|status| self.state_of(status));
        !self.is_replica_set()
            || self
                .replica()
                .map(look)
                .is_some_and(MemberState::is_readable)
    }

    pub fn applied(&self, status: &Status) -> OpTime {
        OpTime {
            time: self.machine.operation_time(),
            term: status.applied.term as i64,
        }
    }

    fn is_same_set(&self, heartbeat: &Heartbeat) -> bool {
        let own = self
            .config()
            .and_then(|config| config.settings.replica_set_id);
        own.is_some() && own == heartbeat.replica_set_id
    }
}

/// As MongoDB makes it: grows with the term.
fn election_id(term: u64) -> ObjectId {
    let mut bytes = [0; 12];
    bytes[..4].copy_from_slice(&[0x7f, 0xff, 0xff, 0xff]);
    bytes[4..].copy_from_slice(&term.to_be_bytes());
    ObjectId::from_bytes(bytes)
}
