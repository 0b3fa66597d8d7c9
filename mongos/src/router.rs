//! A router, assembled.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Instant, SystemTime};

use banyan_access::control::AccessOptions;
use banyan_process::figures::Sharded;
use banyan_process::machine;
use banyan_query::Memory;
use banyan_query::query_stats::QueryStats;
use banyan_wire::fail_points::FailPoints;
use banyan_wire::{Counters, ReplicaSet};
use bson::RawDocumentBuf;
use bson::oid::ObjectId;
use tokio_util::sync::CancellationToken;

use crate::catalog::Catalog;
use crate::cluster_parameters::ClusterParameters;
use crate::cursors::Cursors;
use crate::defaults::Defaults;
use crate::figures::Figures;
use crate::gossip::Gossip;
use crate::shards::Shards;
use crate::users::ClusterUsers;

/// What the process is, for the commands that tell.
pub struct Identity {
    /// `name:port`, as other processes reach this one.
    pub address: String,
    pub port: u16,
    pub argv: Vec<String>,
    /// The options by the names of the configuration file.
    pub settings: RawDocumentBuf,
    pub started: SystemTime,
    pub started_instant: Instant,
    /// Names this life of the process in `topologyVersion`.
    pub process_id: ObjectId,
    /// Clients may send JavaScript; not with `--noscripting`.
    pub scripting: bool,
    /// Cancelled when the process is to end.
    pub stop: CancellationToken,
}

pub struct Router {
    pub identity: Identity,
    pub config: ReplicaSet,
    pub shards: Shards,
    pub catalog: Catalog,
    pub cursors: Cursors,
    pub counters: Arc<Counters>,
    pub figures: Sharded<Figures>,
    pub gossip: Gossip,
    pub defaults: Defaults,
    pub cluster_parameters: ClusterParameters,
    pub users: ClusterUsers,
    /// Where tests have it fail.
    pub fail_points: FailPoints,
    /// `enableTestCommands`.
    pub has_test_commands: AtomicBool,
    /// `requireApiVersion`.
    pub requires_api_version: AtomicBool,
    /// `auditAuthorizationSuccess`.
    pub audits_successes: AtomicBool,
    /// For what the router computes itself.
    pub memory: Arc<Memory>,
    pub query_stats: Arc<QueryStats>,
}

/// Where it is not known how much memory the machine has.
const MEMORY_BYTES_DEFAULT: u64 = 1 << 30;

impl Router {
    /// `commands`: how many there are, for the counts of each.
    pub fn new(
        identity: Identity,
        config: ReplicaSet,
        config_address: &str,
        counters: Arc<Counters>,
        commands: usize,
        access: AccessOptions,
    ) -> Router {
        Router {
            identity,
            shards: Shards::new(config.clone(), config_address),
            catalog: Catalog::new(config.clone()),
            cursors: Cursors::default(),
            users: ClusterUsers::new(access, config.clone()),
            fail_points: FailPoints::default(),
            has_test_commands: AtomicBool::new(false),
            requires_api_version: AtomicBool::new(false),
            audits_successes: AtomicBool::new(false),
            config,
            counters,
            figures: Sharded::new(|| Figures::new(commands)),
            gossip: Gossip::default(),
            defaults: Defaults::default(),
            cluster_parameters: ClusterParameters::default(),
            memory: banyan_spill::memory(&std::env::temp_dir()),
            query_stats: Arc::new(QueryStats::new(
                usize::try_from(machine::memory_limit_bytes().unwrap_or(MEMORY_BYTES_DEFAULT))
                    .unwrap_or(usize::MAX),
            )),
        }
    }
}
