//! A member as a program: from its flags to its end.
//!
//! What differs between the programs (their own flags, the commands of their roles) is handed in.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use banyan_access::control::AccessOptions;
use banyan_access::{audit, flags};
use banyan_process::logging::REDACTION_PARAMETER;
use banyan_process::{
    CommonFlags, Exit, MemberFlags, Parsed, Started, fail, limits, machine, signals,
};
use banyan_storage::StoreOptions;
use banyan_wire::server::{Options, Server};
use banyan_wire::tls::{self, Tls};
use banyan_wire::{Apart, CommandError, Runtimes};
use bson::{RawBsonRef, rawdoc};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::commands::table::CommandSpec;
use crate::info::{ClusterRole, ServerInfo};
use crate::node::{Node, NodeError, NodeOptions};
use crate::service::NodeService;
use crate::{key_generation, ttl, upkeep};

/// What makes a program of a member.
pub struct Program<'a, P> {
    pub name: &'static str,
    pub parsed: &'a Parsed<P>,
    pub common: &'a CommonFlags,
    pub member: &'a MemberFlags,
    pub role: ClusterRole,
    pub port: u16,
    pub dbpath_default: &'static str,
    /// Flags of its own that were given and do nothing.
    pub without_effect: Vec<&'static str>,
    /// The commands of its role.
    pub commands: Vec<&'static CommandSpec>,
    /// Gives the service its role, once the node is open and before it listens.
    pub set_up: fn(&Arc<NodeService>),
}

impl<P> Program<'_, P> {
    /// The whole life of the process. Call it first thing in `main`: it may fork.
    pub fn run(self) {
        let dbpath = match &self.member.dbpath {
            Some(path) => path.clone(),
            None => PathBuf::from(self.dbpath_default),
        };
        if self.member.shutdown {
            match banyan_process::lock::shut_down(&dbpath) {
                Ok(()) => return,
                Err(error) => fail(Exit::BadOptions, &error.to_string()),
            }
        }
        let access = match self.access() {
            Ok(access) => access,
            Err(reason) => fail(Exit::BadOptions, &reason),
        };
        let title = format!("{} {}", self.name, env!("CARGO_PKG_VERSION"));
        let started = banyan_process::start(&title, self.parsed, self.common, &self.without_effect);
        match Tls::open(&self.common.tls) {
            Ok(tls) => tls.map_or((), tls::install),
            Err(error) => fail(Exit::BadOptions, &error.to_string()),
        }
        let runtimes = match Runtimes::start() {
            Ok(runtimes) => runtimes,
            Err(error) => fail(Exit::Abrupt, &format!("cannot start threads: {error}")),
        };
        let served = runtimes.block_on(self.serve(dbpath, access, runtimes.apart(), started));
        runtimes.shut_down();
        match served {
            Ok(()) => {}
            Err(error @ ProgramError::Listen { .. }) => fail(Exit::Network, &error.to_string()),
            Err(error @ (ProgramError::Parameter(_) | ProgramError::Audit(_))) => {
                fail(Exit::BadOptions, &error.to_string())
            }
            Err(error) => fail(Exit::Uncaught, &error.to_string()),
        }
    }

    /// What the flags say about who may do what. What members prove to each other implies that it matters.
    fn access(&self) -> Result<AccessOptions, String> {
        let member = self.member;
        let mut access = flags::read(self.common, member.transition_to_auth)?;
        if member.noauth && access.keys.is_some() {
            return Err("--noauth cannot be used with --keyFile, which implies --auth".to_owned());
        }
        if member.noauth && access.authorization {
            return Err(
                "--noauth cannot be used with --clusterAuthMode, which implies --auth".to_owned(),
            );
        }
        if member.auth && member.repl_set.is_some() && !access.authorization {
            return Err(
                "security.keyFile is required when authorization is enabled with replica sets"
                    .to_owned(),
            );
        }
        access.authorization |= member.auth;
        Ok(access)
    }

    async fn serve(
        self,
        dbpath: PathBuf,
        access: AccessOptions,
        apart: Apart,
        mut started: Started,
    ) -> Result<(), ProgramError> {
        let stop = signals::shutdown_token().map_err(ProgramError::Signals)?;
        let address = format!("{}:{}", host(self.common), self.port);
        let mut info = ServerInfo::new(self.name, address, self.port, dbpath);
        info.role = self.role;
        info.scripting = !self.member.noscripting;
        info.stop = stop;
        info.argv.clone_from(&self.parsed.argv);
        info.recent_log = || banyan_process::logging::log().map_or_else(Vec::new, |l| l.recent().0);
        info.startup_warnings =
            banyan_process::logging::log().map_or_else(Vec::new, |log| log.warnings());
        match bson::serialize_to_raw_document_buf(&self.parsed.settings) {
            Ok(parsed) => info.parsed = parsed,
            Err(error) => warn!(%error, "the options cannot be shown by getCmdLineOpts"),
        }
        audit::install(&self.common.audit).map_err(ProgramError::Audit)?;
        audit::note_own("startup", rawdoc! { "options": info.parsed.clone() });
        let mut options = NodeOptions::new(info);
        options.vital = Some(apart.vital.clone());
        flags::prove(&access);
        if !access.authorization {
            warn!("Access control is not enabled: whoever reaches the port may do everything");
        }
        options.access = access;
        options.replica_set.clone_from(&self.member.repl_set);
        options.self_initiate = self.member.self_initiate;
        options.log_hours_min = self.member.oplog_min_retention_hours.unwrap_or(0.0);
        if let Some(megabytes) = self.member.oplog_size {
            options.log_bytes_max = megabytes << 20;
        }
        if let Some(bytes) = machine::memory_limit_bytes() {
            options.store = StoreOptions::for_memory(bytes);
        }
        if let Some(gigabytes) = self.member.cache_gigabytes.filter(|size| *size > 0.0) {
            options.store.cache_bytes = (gigabytes * f64::from(1 << 30)) as u64;
        }
        self.listen(options, apart, &mut started).await
    }

    async fn listen(
        self,
        options: NodeOptions,
        apart: Apart,
        started: &mut Started,
    ) -> Result<(), ProgramError> {
        let mut server_options = Options {
            apart: Some(apart),
            ..Options::default()
        };
        server_options.connections_max = limits::connections_max(self.common.max_connections);
        // The port first: a second server on the same port should not even look at the data.
        let server = Server::bind(&self.common.hosts(), self.port, server_options)
            .await
            .map_err(|source| ProgramError::Listen {
                port: self.port,
                source,
            })?;
        let addresses = server.addresses();
        let (counters, presence) = (server.counters(), server.presence());
        let node = tokio::task::block_in_place(|| Node::open(options))?;
        upkeep::start(&node);
        if !node.replication.is_replica_set() {
            replayed(&node).await?;
        }
        // Set once, here.
        let _ = node.info.wire_counters.set(counters);
        let _ = node.info.presence.set(presence);
        self.set_parameters(&node)?;
        let service = Arc::new(NodeService::new(node.clone(), &self.commands));
        (self.set_up)(&service);
        tokio::spawn(reap_cursors(node.clone()));
        ttl::start(&service);
        key_generation::start(&service);
        let (stopping, closed) = (node.clone(), CancellationToken::new());
        let close = closed.clone();
        let raise = async move {
            stopping.info.stop.cancelled().await;
            info!("shutting down");
            let replication = stopping.replication.clone();
            replication
                .hand_over(&stopping.replica, HAND_OVER_MAX)
                .await;
            replication
                .quiesce(|| !stopping.operations.has_clients())
                .await;
            // Whatever runs ends at its next look, so that connections can be closed.
            stopping.operations.shut_down();
            stopping.cursors.kill_all();
            close.cancel();
        };
        info!(?addresses, "waiting for connections on port {}", self.port);
        started.ready();
        tokio::join!(server.serve(service, closed), raise);
        let closing = tokio::task::spawn_blocking(move || node.close());
        if tokio::time::timeout(CLOSE_TIME_MAX, closing).await.is_err() {
            warn!("closing the data takes longer than {CLOSE_TIME_MAX:?}; leaving it to the log");
        }
        audit::shutdown(None);
        info!("shutdown complete");
        Ok(())
    }

    /// `--setParameter`, and the flags that are parameters by another name.
    fn set_parameters(&self, node: &Node) -> Result<(), ProgramError> {
        if self.common.redact_client_log_data {
            node.parameters
                .set(REDACTION_PARAMETER, RawBsonRef::Boolean(true), true)
                .map_err(|error| ProgramError::Parameter(error.message))?;
        }
        for (name, value) in &self.common.set_parameter {
            node.parameters
                .set(name, RawBsonRef::String(value), true)
                .map_err(|error| ProgramError::Parameter(error.message))?;
        }
        if let Some(milliseconds) = self.member.slowms {
            node.parameters
                .set("slowMS", RawBsonRef::Int64(milliseconds), true)
                .map_err(|error| ProgramError::Parameter(error.message))?;
        }
        let idle_max_ms = node.parameters.value("cursorTimeoutMillis").unsigned_abs();
        node.cursors
            .set_idle_max(Duration::from_millis(idle_max_ms));
        Ok(())
    }
}

/// Waits until a standalone has applied what its log holds beyond its state, and has loaded the indexes
/// that are committed there: it must not answer from an older state than the one it acknowledged. A
/// member of a set has states for that.
async fn replayed(node: &Node) -> Result<(), ProgramError> {
    let started = Instant::now();
    let mut told = false;
    while !node.info.stop.is_cancelled() {
        if node.replica.is_primary() {
            let catalog = node.replica.store.catalog();
            let builds = catalog
                .collections()
                .flat_map(|known| known.builds.iter().map(move |build| (known, build)));
            let mut lacking = builds.filter(|(_, build)| build.is_committed).peekable();
            if lacking.peek().is_none() {
                break;
            }
            for (collection, build) in lacking {
                if let Some(source) = node.index_builds.failure(&build.id) {
                    let namespace = collection.namespace.to_string();
                    return Err(ProgramError::Index { namespace, source });
                }
            }
        }
        if !told && started.elapsed() > Duration::from_secs(1) {
            info!("applying the log to the state of the last stop");
            told = true;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// The host that other members and drivers are told: the machine's name, unless only some
/// addresses are listened on.
fn host(common: &CommonFlags) -> String {
    let hosts = common.hosts();
    if hosts.iter().any(|host| matches!(*host, "0.0.0.0" | "::")) {
        return machine::hostname();
    }
    let local = |host: &&&str| matches!(**host, "localhost" | "127.0.0.1" | "::1");
    let chosen = hosts.iter().find(|host| !local(host)).or(hosts.first());
    chosen.map_or_else(machine::hostname, |host| (*host).to_owned())
}

#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error("cannot listen on port {port}: {source}")]
    Listen { port: u16, source: io::Error },
    #[error("cannot take signals: {0}")]
    Signals(io::Error),
    #[error("an index of {namespace} cannot be loaded: {source}")]
    Index {
        namespace: String,
        source: CommandError,
    },
    #[error("--setParameter: {0}")]
    Parameter(String),
    #[error("{0}")]
    Audit(String),
}

/// How long a primary that is told to stop looks for somebody to take the lead.
const HAND_OVER_MAX: Duration = Duration::from_secs(10);

/// How long a shutdown may take before it is cut short.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(10);

/// Closes cursors that nobody has asked for in a long time.
async fn reap_cursors(node: Arc<Node>) {
    loop {
        let seconds = node
            .parameters
            .value("clientCursorMonitorFrequencySecs")
            .max(1);
        tokio::select! {
            () = node.info.stop.cancelled() => return,
            () = tokio::time::sleep(Duration::from_secs(seconds.unsigned_abs())) => {}
        }
        let reaped = node.cursors.reap();
        if reaped > 0 {
            info!(
                cursors = reaped,
                "closed cursors that were idle for too long"
            );
        }
    }
}
