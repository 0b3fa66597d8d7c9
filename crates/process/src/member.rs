//! Flags of the programs that hold data: `mongod` and `configsvr`.

use std::path::PathBuf;

use clap::Args;

/// Next to [`crate::CommonFlags`].
#[derive(Args, Clone, Debug, Default)]
pub struct MemberFlags {
    /// Directory for the data
    #[arg(long, value_name = "DIR")]
    pub dbpath: Option<PathBuf>,
    /// Name of the replica set to be a member of
    #[arg(long = "replSet", value_name = "NAME")]
    pub repl_set: Option<String>,
    /// Make a set of this member alone on the first start, instead of waiting for rs.initiate()
    #[arg(long = "selfInitiate")]
    pub self_initiate: bool,
    /// Most megabytes of log kept for members that are behind
    #[arg(long = "oplogSize", value_name = "MB", value_parser = clap::value_parser!(u64).range(1..))]
    pub oplog_size: Option<u64>,
    /// Keep the log of at least this many hours, whatever it takes
    #[arg(long = "oplogMinRetentionHours", value_name = "HOURS", value_parser = hours)]
    pub oplog_min_retention_hours: Option<f64>,
    /// Gigabytes of cache; without it a quarter of the memory beyond the first, at least 0.25
    #[arg(
        id = "wiredTigerCacheSizeGB",
        long = "wiredTigerCacheSizeGB",
        visible_alias = "cacheSizeGB",
        value_name = "GB"
    )]
    pub cache_gigabytes: Option<f64>,
    /// End the server that runs on --dbpath
    #[arg(long)]
    pub shutdown: bool,
    /// Run no JavaScript
    #[arg(long)]
    pub noscripting: bool,
    /// Commands slower than this are logged
    #[arg(long, value_name = "MS")]
    pub slowms: Option<i64>,

    /// Clients have to prove who they are, and may do what their roles allow
    #[arg(long)]
    pub auth: bool,
    /// Clients need not prove who they are; the default
    #[arg(long, conflicts_with = "auth")]
    pub noauth: bool,
    /// With --keyFile: accept clients and members that do not prove who they are, while a set is
    /// changed over to access control member by member
    #[arg(long = "transitionToAuth")]
    pub transition_to_auth: bool,

    /// Accepted for scripts that give it
    #[arg(long, hide_short_help = true)]
    pub directoryperdb: bool,
    /// Accepted for scripts that give it; there is always a log
    #[arg(long, hide_short_help = true)]
    pub nojournal: bool,
    /// Accepted for scripts that give it; there is always a log
    #[arg(long, hide_short_help = true)]
    pub journal: bool,
    /// Accepted for scripts that give it
    #[arg(
        id = "storageEngine",
        long = "storageEngine",
        value_name = "NAME",
        hide_short_help = true
    )]
    pub storage_engine: Option<String>,
    /// Accepted for scripts that give it
    #[arg(long, hide_short_help = true)]
    pub nounixsocket: bool,
    /// Accepted for scripts that give it
    #[arg(long, hide_short_help = true)]
    pub smallfiles: bool,
    /// Accepted for scripts that give it
    #[arg(long, hide_short_help = true)]
    pub noprealloc: bool,
    /// Accepted for scripts that give it
    #[arg(long, value_name = "LEVEL", hide_short_help = true)]
    pub profile: Option<i32>,
}

fn hours(text: &str) -> Result<f64, String> {
    const HOURS_MAX: f64 = 24.0 * 366.0 * 100.0;
    match text.parse::<f64>() {
        Ok(hours) if (0.0..=HOURS_MAX).contains(&hours) => Ok(hours),
        _ => Err("expected a number of hours, from 0 on".to_owned()),
    }
}

impl MemberFlags {
    /// The flags that were given and do nothing.
    pub fn without_effect(&self) -> Vec<&'static str> {
        let given = [
            (self.directoryperdb, "--directoryperdb"),
            (self.nojournal, "--nojournal"),
            (self.journal, "--journal"),
            (self.storage_engine.is_some(), "--storageEngine"),
            (self.nounixsocket, "--nounixsocket"),
            (self.smallfiles, "--smallfiles"),
            (self.noprealloc, "--noprealloc"),
            (self.profile.is_some(), "--profile"),
        ];
        given
            .into_iter()
            .filter(|(given, _)| *given)
            .map(|(_, name)| name)
            .collect()
    }
}
