//! A program's first steps.

use tracing::{info, warn};

use crate::audit;
use crate::cluster_auth::ClusterAuthMode;
use crate::daemon::{self, Readiness};
use crate::exit::{Exit, fail};
use crate::limits;
use crate::logging::{self, LogOptions, Rotation};
use crate::memory;
use crate::options::{CommonFlags, Parsed};
use crate::pid_file::PidFile;
use crate::tls::TlsMode;

/// What has to live as long as the program.
pub struct Started {
    readiness: Readiness,
    _pid_file: Option<PidFile>,
}

impl Started {
    /// The server listens: a parent that waits in the foreground may end.
    pub fn ready(&mut self) {
        self.readiness.tell();
    }
}

/// What is wrong with flags that each are right by themselves.
fn refusal(common: &CommonFlags) -> Option<String> {
    if let Some(reason) = common.tls.refusal() {
        return Some(reason);
    }
    if let Some(mode) = common.cluster_auth_mode
        && let Some(reason) = refused_cluster_auth(mode, common)
    {
        return Some(reason.to_owned());
    }
    let refused = refused_otherwise(common).or_else(|| common.audit.refusal(&common.set_parameter));
    if let Some(reason) = refused {
        return Some(reason.to_owned());
    }
    let query = common.audit.query().err();
    query.map(|error| format!("--auditFilter: {error}"))
}

fn refused_cluster_auth(mode: ClusterAuthMode, common: &CommonFlags) -> Option<&'static str> {
    if mode.takes_key_file() && common.key_file.is_none() {
        return Some("--clusterAuthMode has to be used with --keyFile, unless it is x509");
    }
    if !mode.takes_certificates() {
        return None;
    }
    let authorities = common.tls.ca_file.is_some() || common.tls.cluster_ca_file.is_some();
    match common.tls.mode() {
        TlsMode::Disabled => Some("need to enable TLS via the tlsMode flag"),
        TlsMode::Allow if mode.shows_certificate() => {
            Some("cannot have x.509 cluster authentication in allowTLS mode")
        }
        _ if !authorities => Some("--clusterAuthMode with certificates needs a tlsCAFile"),
        _ => None,
    }
}

fn refused_otherwise(common: &CommonFlags) -> Option<&'static str> {
    if common.fork && common.logpath.is_none() {
        return Some("--fork has to be used with --logpath");
    }
    if common.log_rotate == Some(Rotation::Reopen) && !common.logappend {
        return Some("logAppend must equal true if logRotate is set to reopen");
    }
    None
}

/// Forks if asked to, opens the log, writes the pid file, and logs what was given without effect:
/// the settings of the configuration file, and `without_effect`, the program's own flags. Must run
/// before any thread is started. `program` is the name and version for the log's first line.
pub fn start<P>(
    program: &str,
    parsed: &Parsed<P>,
    common: &CommonFlags,
    without_effect: &[&str],
) -> Started {
    if let Some(reason) = refusal(common) {
        fail(Exit::BadOptions, &reason);
    }
    // Opened once before the fork, so that the reason is seen on the terminal.
    if let Some(path) = &common.logpath
        && let Err(error) = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
    {
        fail(
            Exit::BadOptions,
            &format!("cannot open the log file {}: {error}", path.display()),
        );
    }
    let readiness = if common.fork {
        match daemon::go_to_background() {
            Ok(readiness) => readiness,
            Err(error) => fail(Exit::Abrupt, &format!("cannot fork: {error}")),
        }
    } else {
        Readiness::nobody_waits()
    };
    let log = LogOptions {
        path: common.logpath.clone(),
        append: common.logappend,
        rotation: common.log_rotate.unwrap_or_default(),
        verbosity: common.verbosity,
        quiet: common.quiet,
    };
    if let Err(error) = logging::init(&log) {
        fail(Exit::BadOptions, &format!("cannot open the log: {error}"));
    }
    logging::redact_client_data(common.redact_client_log_data);
    if let Err(error) = audit::open(&common.audit, log.rotation) {
        let reason = format!("cannot open the audit log: {error}");
        fail(Exit::BadOptions, &reason);
    }
    info!(pid = std::process::id(), options = %parsed.settings, "{program} starting");
    limits::raise_open_files();
    if let Err(error) = memory::use_ordinary_pages() {
        warn!(%error, "the system may hand out memory in huge pages");
    }
    for name in parsed
        .without_effect
        .iter()
        .map(String::as_str)
        .chain(without_effect.iter().copied())
    {
        warn!("{name} is accepted and has no effect");
    }
    let pid_file = common
        .pidfilepath
        .as_ref()
        .map(|path| match PidFile::create(path) {
            Ok(file) => file,
            Err(error) => fail(
                Exit::BadOptions,
                &format!("cannot write pid file {}: {error}", path.display()),
            ),
        });
    Started {
        readiness,
        _pid_file: pid_file,
    }
}
