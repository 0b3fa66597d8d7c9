//! The node: everything that the commands of one process share.

use std::any::Any;
use std::fs;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use banyan_access::control::{AccessControl, AccessOptions};
use banyan_consensus::Group;
use banyan_execution::tickets::Tickets;
use banyan_execution::{Interrupt, RangePreservers};
use banyan_query::JavaScript;
use banyan_replication::clock::Clock;
use banyan_replication::machine::{LogPoint, Machine};
use banyan_replication::op_observer::Change;
use banyan_replication::oplog::Log;
use banyan_replication::replica::Replica;
use banyan_replication::set::{ReplicationCoordinator, SetOptions, StartError, readiness};
use banyan_replication::snapshots::Snapshots;
use banyan_storage::{Namespace, OpenError, Store, StoreOptions};
use banyan_wire::fail_points::FailPoints;
use tokio::runtime::Handle;

use crate::access::signing_keys;
use crate::access::users::{self, NodeUsers};
use crate::auto_compaction::AutoCompaction;
use crate::cluster_parameters::ClusterParameters;
use crate::counters::{Counters, Sharded};
use crate::cursors::CursorManager;
use crate::index_builds::active::IndexBuilds;
use crate::info::{ClusterRole, ServerInfo};
use crate::logical_sessions::LogicalSessions;
use crate::operations::Operations;
use crate::parameters::Parameters;
use crate::profiler::Profiler;
use crate::role::{IndexRules, Role};
use crate::rw_defaults::KnownDefaults;
use crate::top::Top;
use crate::user_writes::UserWrites;
use crate::write_gate::WriteGate;

/// How a node is opened.
pub struct NodeOptions {
    pub info: ServerInfo,
    /// `--replSet`; without it the node is a set of one that nobody can join.
    pub replica_set: Option<String>,
    pub store: StoreOptions,
    /// `--selfInitiate`: a set of this member alone is made on the first start.
    pub self_initiate: bool,
    /// `--oplogSize`.
    pub log_bytes_max: u64,
    /// `--oplogMinRetentionHours`.
    pub log_hours_min: f64,
    /// The runtime that carries what holds the set together; without one, that of the caller.
    pub vital: Option<Handle>,
    /// Who may do what.
    pub access: AccessOptions,
}

impl NodeOptions {
    pub fn new(info: ServerInfo) -> NodeOptions {
        NodeOptions {
            info,
            replica_set: None,
            self_initiate: false,
            store: StoreOptions::default(),
            log_bytes_max: 256 << 20,
            log_hours_min: 0.0,
            vital: None,
            access: AccessOptions::default(),
        }
    }

    fn set(&self) -> SetOptions {
        SetOptions {
            log_dir: self.info.dbpath.join("log"),
            address: self.info.address.clone(),
            name: self.replica_set.clone(),
            self_initiate: self.self_initiate,
            config_server: self.info.role == ClusterRole::Config,
            log_bytes_max: self.log_bytes_max,
            log_hours_min: self.log_hours_min,
            vital: self.vital.clone(),
            process_started: self.info.started_instant,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("the log in {}: {source}", .path.display())]
    Log {
        path: std::path::PathBuf,
        source: banyan_consensus::Error,
    },
    #[error(transparent)]
    Start(#[from] StartError),
}

/// One data-bearing member: a replica, and what answers commands over it. Always behind an `Arc`.
pub struct Node {
    pub replica: Arc<Replica>,
    pub info: ServerInfo,
    pub access: AccessControl,
    /// Held by whoever changes users or roles.
    pub access_changes: tokio::sync::Mutex<()>,
    pub parameters: Parameters,
    pub profiler: Profiler,
    pub counters: Sharded<Counters>,
    pub top: Top,
    pub operations: Operations,
    /// Held by commands while they compute.
    pub tickets: Tickets,
    pub cursors: Arc<CursorManager>,
    /// Routed reads, and the states that are kept for those that rest.
    pub range_preservers: Arc<RangePreservers>,
    pub replication: Arc<ReplicationCoordinator>,
    pub index_builds: IndexBuilds,
    /// Sessions that clients have named.
    pub sessions: LogicalSessions,
    /// Kept for clients that name their time.
    pub snapshots: Snapshots,
    /// The log, as those who follow it read it.
    pub log: Arc<Log>,
    /// The concerns of commands that name none.
    pub defaults: KnownDefaults,
    pub cluster_parameters: ClusterParameters,
    /// What clients' writes pass.
    pub(crate) write_gate: WriteGate,
    pub(crate) user_writes: UserWrites,
    pub(crate) auto_compaction: Arc<AutoCompaction>,
    /// Where tests have it fail.
    pub fail_points: FailPoints,
    /// A no-op entry is being asked for or written: one serves everybody who waits.
    pub(crate) asking_for_noop: AtomicBool,
    role: OnceLock<Arc<dyn Role>>,
    javascript: OnceLock<JavaScriptMaker>,
}

/// Makes the engine for the JavaScript in one command's queries.
pub type JavaScriptMaker = fn(&Node, &Interrupt) -> Arc<dyn JavaScript>;

impl Node {
    /// Opens the data directory and joins whatever group it belongs to. A standalone is ready to
    /// serve soon after; a member of a set once the set has been initiated. What it does on its own once in a while
    /// begins with [`crate::upkeep::start`].
    pub fn open(options: NodeOptions) -> Result<Arc<Node>, NodeError> {
        let store = Store::open(&options.info.dbpath, &options.store)?;
        let clock = Arc::new(Clock::new());
        let machine = Arc::new(
            Machine::open(store.clone(), clock.clone()).map_err(|error| {
                let path = options.info.dbpath.clone();
                OpenError::Damaged {
                    path,
                    reason: error.to_string(),
                }
            })?,
        );
        let log_path = options.info.dbpath.join("log");
        fs::create_dir_all(&log_path)
            .map_err(|error| StartError(format!("{}: {error}", log_path.display())))?;
        let replication = ReplicationCoordinator::open(options.set(), &store, &machine)?;
        let group = Group::open(
            &log_path,
            replication.group_options(),
            machine.clone(),
            replication.transport(),
        )
        .map_err(|source| NodeError::Log {
            path: log_path,
            source,
        })?;
        readiness::check_reach(&group.status(), store.import_was_interrupted()).map_err(
            |reason| OpenError::Damaged {
                path: options.info.dbpath.clone(),
                reason,
            },
        )?;
        let replica = Arc::new(Replica::new(store, machine, group, clock));
        let scratch = options.info.dbpath.join("_tmp");
        let memory = banyan_spill::memory(&scratch);
        let profiler = Profiler::open(&options.info.dbpath);
        let node = Arc::new(Node {
            log: Arc::new(Log::new(replica.clone())),
            info: options.info,
            access: AccessControl::new(options.access),
            access_changes: tokio::sync::Mutex::default(),
            parameters: Parameters::new(memory),
            profiler,
            counters: Sharded::default(),
            top: Top::default(),
            operations: Operations::new(),
            tickets: Tickets::default(),
            cursors: Arc::new(CursorManager::new()),
            range_preservers: Arc::default(),
            replica,
            replication,
            index_builds: IndexBuilds::default(),
            sessions: LogicalSessions::default(),
            snapshots: Snapshots::default(),
            defaults: KnownDefaults::default(),
            cluster_parameters: ClusterParameters::default(),
            write_gate: WriteGate::default(),
            user_writes: UserWrites::default(),
            auto_compaction: Arc::default(),
            fail_points: FailPoints::of_writer(),
            asking_for_noop: AtomicBool::new(false),
            role: OnceLock::new(),
            javascript: OnceLock::new(),
        });
        users::watch(&node.access, &node.replica.machine);
        node.user_writes.watch(&node.replica.machine);
        // A shard's are those of its cluster.
        if node.info.role != ClusterRole::Shard {
            signing_keys::watch(&node.access, &node.replica.machine);
            node.cluster_parameters.watch(&node.replica.machine);
        }
        let points = Arc::downgrade(&node);
        node.replica.machine.on_point(Box::new(move |point| {
            if let Some(node) = points.upgrade() {
                node.reached(point);
            }
        }));
        node.replication.start(&node.replica)?;
        Ok(node)
    }

    /// The state is as of this place in the log.
    fn reached(&self, point: &LogPoint) {
        match point {
            LogPoint::Snapshot => {
                let keep = self.parameters.snapshot_window();
                self.snapshots.reached_point(&self.replica, keep);
            }
            LogPoint::RangeRemoval(removal) => {
                let (min, max) = (&removal.min, &removal.max);
                let preservers = &self.range_preservers;
                preservers.removal_begins(&self.replica.store, removal.collection, min, max);
            }
            LogPoint::Installed => self.range_preservers.state_replaced(),
        }
    }

    /// Gives the node its part in a sharded cluster. Only the first one counts.
    pub fn set_role(&self, role: Arc<dyn Role>) {
        if self.role.set(role.clone()).is_ok() {
            if let Some(namespace) = role.watches() {
                let role = role.clone();
                let listener = move |change: Option<Change<'_>>| role.learned(change);
                self.replica
                    .machine
                    .watch_collection(namespace, Box::new(listener));
            }
            let observer = move |namespace: &Namespace, change: Change<'_>| {
                role.wrote(namespace, change);
            };
            self.replica.machine.observe(Box::new(observer));
        }
    }

    /// The users in this member's state.
    pub fn users(&self) -> NodeUsers<'_> {
        NodeUsers {
            access: &self.access,
            replica: &self.replica,
        }
    }

    pub fn role(&self) -> Option<&Arc<dyn Role>> {
        self.role.get()
    }

    /// The role, if it is of this type.
    pub fn role_as<R: Role>(&self) -> Option<&R> {
        (self.role()?.as_ref() as &dyn Any).downcast_ref()
    }

    /// As [`Node::role_as`], for work that outlives a command.
    pub fn shared_role<R: Role>(&self) -> Option<Arc<R>> {
        let role: Arc<dyn Any + Send + Sync> = self.role()?.clone();
        role.downcast().ok()
    }

    /// What the role demands of the collection's indexes.
    pub fn index_rules(&self, namespace: &Namespace) -> Option<Arc<dyn IndexRules>> {
        self.role()?.index_rules(namespace)
    }

    /// Plugs in what runs `$where`. Only the first one counts.
    pub fn set_javascript(&self, maker: JavaScriptMaker) {
        let _ = self.javascript.set(maker);
    }

    /// An engine for a command that `interrupt` ends.
    pub fn javascript(&self, interrupt: &Interrupt) -> Option<Arc<dyn JavaScript>> {
        self.javascript.get().map(|make| make(self, interrupt))
    }

    /// Ends everything in good order: what is applied becomes durable.
    pub fn close(&self) {
        self.operations.shut_down();
        self.cursors.kill_all();
        self.replica.group.stop();
        self.profiler.write_files();
        if let Err(error) = self.replica.store.persist() {
            tracing::error!(%error, "cannot sync the data");
        }
    }
}
