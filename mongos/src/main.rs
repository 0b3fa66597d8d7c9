//! The router's program.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use banyan_access::control::AccessOptions;
use banyan_access::{audit, flags};
use banyan_mongos::commands::{COMMANDS, set_parameter};
use banyan_mongos::config_servers::{self, ConfigDb, ConfigDbError};
use banyan_mongos::flags::{Flags, PORT_DEFAULT};
use banyan_mongos::registration;
use banyan_mongos::router::{Identity, Router};
use banyan_process::{Exit, Parsed, Started, fail};
use banyan_wire::tls::{self, Tls};
use banyan_wire::{Apart, Options, Runtimes, Server};
use bson::oid::ObjectId;
use bson::{RawDocumentBuf, rawdoc};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

fn main() -> ExitCode {
    let parsed = banyan_process::options::parse::<Flags>();
    let access = match flags::read(&parsed.flags.common, parsed.flags.transition_to_auth) {
        Ok(access) => access,
        Err(reason) => fail(Exit::BadOptions, &reason),
    };
    let Some(configdb) = &parsed.flags.configdb else {
        fail(Exit::BadOptions, "error: no args for --configdb");
    };
    let configdb = match ConfigDb::parse(configdb) {
        Ok(configdb) => configdb,
        Err(error) => fail(Exit::BadOptions, &error.to_string()),
    };
    let program = concat!("mongos ", env!("CARGO_PKG_VERSION"));
    let without_effect = parsed.flags.without_effect();
    let started = banyan_process::start(program, &parsed, &parsed.flags.common, &without_effect);
    match Tls::open(&parsed.flags.common.tls) {
        Ok(tls) => tls.map_or((), tls::install),
        Err(error) => fail(Exit::BadOptions, &error.to_string()),
    }
    let runtimes = match Runtimes::start() {
        Ok(runtimes) => runtimes,
        Err(error) => fail(Exit::Abrupt, &format!("cannot start threads: {error}")),
    };
    flags::prove(&access);
    if !access.authorization {
        warn!("Access control is not enabled: whoever reaches the port may do everything");
    }
    if let Err(reason) = audit::install(&parsed.flags.common.audit) {
        fail(Exit::BadOptions, &reason);
    }
    audit::note_own("startup", rawdoc! { "options": settings(&parsed) });
    runtimes.block_on(serve(parsed, configdb, access, runtimes.apart(), started));
    audit::shutdown(None);
    info!("the router has ended");
    ExitCode::SUCCESS
}

async fn serve(
    parsed: Parsed<Flags>,
    configdb: ConfigDb,
    access: AccessOptions,
    apart: Apart,
    mut started: Started,
) {
    let stop = match banyan_process::signals::shutdown_token() {
        Ok(stop) => stop,
        Err(error) => fail(Exit::Abrupt, &format!("cannot handle signals: {error}")),
    };
    let common = &parsed.flags.common;
    let port = common.port.unwrap_or(PORT_DEFAULT);
    let mut options = Options {
        apart: Some(apart),
        ..Options::default()
    };
    options.connections_max = banyan_process::limits::connections_max(common.max_connections);
    // Bound before the config servers are looked for, so that a taken port is known at once.
    let server = match Server::bind(&common.hosts(), port, options).await {
        Ok(server) => server,
        Err(error) => {
            let reason = format!("Failed to set up listener: SocketException: {error}");
            fail(Exit::Network, &reason);
        }
    };
    let (config, address) = match config_servers::connect(&configdb, &stop).await {
        Ok(found) => found,
        Err(ConfigDbError::Stopped) => {
            info!("stopped before the config servers could be reached");
            return;
        }
        Err(error) => fail(Exit::BadOptions, &error.to_string()),
    };
    let port = server
        .addresses()
        .first()
        .map_or(port, |address| address.port());
    let identity = identity(&parsed, port, stop.clone());
    let commands = COMMANDS.all().len();
    let counters = server.counters();
    let router = Arc::new(Router::new(
        identity, config, &address, counters, commands, access,
    ));
    tokio::spawn(registration::keep(router.clone()));
    tokio::spawn(banyan_mongos::upkeep::keep_defaults(router.clone()));
    for (name, value) in &parsed.flags.common.set_parameter {
        if let Err(error) = set_parameter::at_start(&router, name, value) {
            fail(Exit::BadOptions, &error.message);
        }
    }
    tokio::spawn(banyan_mongos::upkeep::keep_signing_keys(router.clone()));
    let (follower, follower_stop) = (router.clone(), stop.clone());
    tokio::spawn(async move { follower.users.follow_changes(follower_stop).await });
    let reaper = router.clone();
    let reaper_stop = stop.clone();
    tokio::spawn(async move { reaper.cursors.reap(reaper_stop).await });
    info!(port, "waiting for connections");
    started.ready();
    server.serve(router, stop).await;
}

/// The options by the names of the configuration file.
fn settings(parsed: &Parsed<Flags>) -> RawDocumentBuf {
    serde_json::to_value(&parsed.settings)
        .ok()
        .and_then(|value| bson::serialize_to_raw_document_buf(&value).ok())
        .unwrap_or_default()
}

fn identity(parsed: &Parsed<Flags>, port: u16, stop: CancellationToken) -> Identity {
    Identity {
        address: format!("{}:{port}", banyan_process::machine::hostname()),
        port,
        argv: parsed.argv.clone(),
        settings: settings(parsed),
        started: SystemTime::now(),
        started_instant: Instant::now(),
        process_id: ObjectId::new(),
        scripting: !parsed.flags.noscripting,
        stop,
    }
}
