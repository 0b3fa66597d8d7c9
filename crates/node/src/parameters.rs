//! Server parameters: what `getParameter` shows and `setParameter` changes.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use banyan_access::api_version::REQUIRE_PARAMETER;
use banyan_access::audit;
use banyan_access::audit_config;
use banyan_access::cluster_time::{
    DRIFT_PARAMETER, DRIFT_SECONDS_DEFAULT, ROTATION_PARAMETER, ROTATION_SECONDS_DEFAULT,
};
use banyan_process::logging::{self, QUIET_PARAMETER, REDACTION_PARAMETER, VERBOSITY_PARAMETER};
use banyan_process::{TlsMode, machine};
use banyan_query::Memory;
use banyan_query::memory::{DISK_BY_DEFAULT, LIMITS};
use banyan_query::query_stats::{self, QueryStats};
use banyan_wire::tls::{self, operating};
use banyan_wire::{CommandError, ErrorCode, login};
use bson::{RawBson, RawBsonRef, rawdoc};

use crate::params;

/// The version of MongoDB whose features there are.
pub const FEATURE_VERSION: &str = "7.0";

/// A parameter that is a number and can be changed while running.
#[derive(Clone, Copy)]
struct Setting {
    name: &'static str,
    default: i64,
    min: i64,
    max: i64,
    /// Shown as a boolean.
    boolean: bool,
    /// Only settable on the command line.
    startup_only: bool,
}

const fn integer(name: &'static str, default: i64, min: i64, max: i64) -> Setting {
    Setting {
        name,
        default,
        min,
        max,
        boolean: false,
        startup_only: false,
    }
}

const fn boolean(name: &'static str, default: bool) -> Setting {
    Setting {
        name,
        default: default as i64,
        min: 0,
        max: 1,
        boolean: true,
        startup_only: false,
    }
}

impl Setting {
    const fn startup_only(mut self) -> Setting {
        self.startup_only = true;
        self
    }
}

static SETTINGS: &[Setting] = &[
    integer("slowMS", 100, -1, i64::MAX),
    integer("clientCursorMonitorFrequencySecs", 4, 1, 3600),
    integer("cursorTimeoutMillis", 600_000, 1, i64::MAX),
    boolean(audit::SUCCESS_PARAMETER, false),
    boolean(REDACTION_PARAMETER, false),
    boolean("enableLocalhostAuthBypass", true).startup_only(),
    integer("scramIterationCount", 10_000, 5_000, i32::MAX as i64),
    integer("scramSHA256IterationCount", 15_000, 5_000, i32::MAX as i64),
    boolean("enableTestCommands", false).startup_only(),
    // 0 leaves both to the script hosts: an isolate for each core, and their own heap limit.
    integer("jsHeapLimitMB", 0, 0, 65_536).startup_only(),
    integer("scriptIsolates", 0, 0, 64).startup_only(),
    integer("localLogicalSessionTimeoutMinutes", 30, 1, 100_000).startup_only(),
    integer("logicalSessionRefreshMillis", 300_000, 1, i64::MAX).startup_only(),
    integer(DRIFT_PARAMETER, DRIFT_SECONDS_DEFAULT, 1, i64::MAX).startup_only(),
    integer(
        ROTATION_PARAMETER,
        ROTATION_SECONDS_DEFAULT,
        1,
        i32::MAX as i64,
    )
    .startup_only(),
    integer("maxSessions", 1_000_000, 1, 10_000_000).startup_only(),
    integer("minSnapshotHistoryWindowInSeconds", 300, 0, i32::MAX as i64),
    integer(query_stats::RATE_PARAMETER, 0, -1, i32::MAX as i64),
    integer("periodicNoopIntervalSecs", 10, 1, 10_000).startup_only(),
    boolean("writePeriodicNoops", true),
    integer("orphanCleanupDelaySecs", 900, 0, i32::MAX as i64),
    integer("rangeDeleterBatchDelayMS", 20, 0, i32::MAX as i64),
    integer("rangeDeleterBatchSize", i32::MAX as i64, 1, i32::MAX as i64),
    integer(VERBOSITY_PARAMETER, 0, 0, 5),
    boolean(DISK_BY_DEFAULT, true),
    boolean(QUIET_PARAMETER, false),
    boolean(REQUIRE_PARAMETER, false),
    integer("transactionLifetimeLimitSeconds", 60, 1, i64::MAX),
    boolean("ttlMonitorEnabled", true),
    integer("ttlMonitorSleepSecs", 60, 1, i64::MAX),
];

/// All of them: the limits of memory have a table of their own.
static ALL: LazyLock<Vec<Setting>> = LazyLock::new(|| {
    let limits = LIMITS
        .iter()
        .map(|row| integer(row.parameter, row.default, row.min, row.max));
    SETTINGS.iter().copied().chain(limits).collect()
});

/// Where `slowMS` stands in [`SETTINGS`].
const SLOW_MS: usize = 0;

/// The parameters of one process.
pub struct Parameters {
    values: Box<[AtomicI64]>,
    /// Has its limits from them.
    pub memory: Arc<Memory>,
    /// Has its rate and its size from them.
    pub query_stats: Arc<QueryStats>,
}

/// Where it is not known how much memory the machine has.
const MEMORY_BYTES_DEFAULT: u64 = 1 << 30;

impl Parameters {
    pub fn new(memory: Arc<Memory>) -> Parameters {
        Parameters {
            values: ALL.iter().map(|s| AtomicI64::new(beginning(s))).collect(),
            memory,
            query_stats: Arc::new(QueryStats::new(
                usize::try_from(machine::memory_limit_bytes().unwrap_or(MEMORY_BYTES_DEFAULT))
                    .unwrap_or(usize::MAX),
            )),
        }
    }

    /// The value of a numeric or boolean parameter; 0 for one that does not exist.
    pub fn value(&self, name: &str) -> i64 {
        position(name).map_or(0, |at| self.values[at].load(Ordering::Relaxed))
    }

    /// How long a snapshot is kept whose time a client was told.
    pub fn snapshot_window(&self) -> Duration {
        let seconds = self.value("minSnapshotHistoryWindowInSeconds");
        Duration::from_secs(seconds.max(0).unsigned_abs())
    }

    /// `slowMS`, which every command asks for: commands that take longer are logged.
    pub fn slow_ms(&self) -> i64 {
        self.values[SLOW_MS].load(Ordering::Relaxed)
    }

    pub fn flag(&self, name: &str) -> bool {
        self.value(name) != 0
    }

    /// Every parameter's name and value.
    pub fn all(&self) -> Vec<(&'static str, RawBson)> {
        let settings = ALL.iter().map(|s| s.name);
        let fixed = [
            "featureCompatibilityVersion",
            "authenticationMechanisms",
            login::MODE_PARAMETER,
            query_stats::SIZE_PARAMETER,
        ];
        settings
            .chain(fixed)
            .chain(operating::PARAMETERS)
            .filter_map(|name| Some((name, self.get(name)?)))
            .collect()
    }

    pub fn get(&self, name: &str) -> Option<RawBson> {
        match name {
            "featureCompatibilityVersion" => Some(rawdoc! { "version": FEATURE_VERSION }.into()),
            "authenticationMechanisms" => Some(banyan_access::login::enabled_mechanisms().into()),
            login::MODE_PARAMETER => Some(RawBson::String(login::shown_mode().to_owned())),
            query_stats::SIZE_PARAMETER => Some(RawBson::String(self.query_stats.size())),
            _ => {
                if let Some(mode) = operating::parameter(name) {
                    return Some(RawBson::String(mode.to_owned()));
                }
                let at = position(name)?;
                let value = self.values[at].load(Ordering::Relaxed);
                Some(shown(&ALL[at], value))
            }
        }
    }

    /// Changes a parameter and answers what it was. `starting` allows those of the command line.
    pub fn set(
        &self,
        name: &str,
        value: RawBsonRef<'_>,
        starting: bool,
    ) -> Result<RawBson, CommandError> {
        audit_config::check_parameter(name)?;
        if let Some(was) = operating::set_parameter(name, value)? {
            return Ok(RawBson::String(was.to_owned()));
        }
        if name == login::MODE_PARAMETER {
            let tls = tls::process().map_or(TlsMode::Disabled, |tls| tls.mode());
            return Ok(RawBson::String(login::change_mode(value, tls)?.to_owned()));
        }
        if name == query_stats::SIZE_PARAMETER {
            let was = value
                .as_str()
                .and_then(|size| self.query_stats.set_size(size));
            return was.map(RawBson::String).ok_or_else(|| {
                CommandError::new(
                    ErrorCode::BadValue,
                    format!("parameter {name} takes a size such as '1%', '100MB' or '1GB'"),
                )
            });
        }
        let Some(at) = position(name) else {
            return Err(CommandError::new(
                ErrorCode::InvalidOptions,
                format!(
                    "attempted to set unrecognized parameter [{name}], use help:true to see options "
                ),
            ));
        };
        let setting = &ALL[at];
        if setting.startup_only && !starting {
            return Err(CommandError::new(
                ErrorCode::IllegalOperation,
                format!("not allowed to change [{name}] at runtime"),
            ));
        }
        let number = match value {
            // What is no flag on a command line is one in a command.
            value if setting.boolean && !starting => {
                Some(i64::from(banyan_document::is_true(value)))
            }
            RawBsonRef::Boolean(flag) => Some(i64::from(flag)),
            RawBsonRef::String(text) => match text {
                "true" => Some(1),
                "false" => Some(0),
                text => text.parse().ok(),
            },
            value => params::number(value),
        };
        let Some(number) = number else {
            return Err(CommandError::new(
                ErrorCode::TypeMismatch,
                format!("parameter {name} takes a number or a boolean"),
            ));
        };
        if !(setting.min..=setting.max).contains(&number) {
            return Err(CommandError::new(
                ErrorCode::BadValue,
                format!(
                    "Invalid value for parameter {name}: {number} is not between {} and {}",
                    setting.min, setting.max
                ),
            ));
        }
        let before = self.values[at].swap(number, Ordering::Relaxed);
        self.memory.set_parameter(name, number);
        if name == query_stats::RATE_PARAMETER {
            self.query_stats.set_rate(number);
        }
        match name {
            REDACTION_PARAMETER => logging::redact_client_data(number != 0),
            QUIET_PARAMETER => logging::set_quiet(number != 0),
            // Its greatest is 5.
            VERBOSITY_PARAMETER => logging::set_verbosity(number as u8),
            _ => {}
        }
        Ok(shown(setting, before))
    }
}

/// What a parameter is before anybody sets it: as flags say, which the log was opened by.
fn beginning(setting: &Setting) -> i64 {
    match setting.name {
        QUIET_PARAMETER => i64::from(logging::is_quiet()),
        VERBOSITY_PARAMETER => i64::from(logging::verbosity()).min(setting.max),
        _ => setting.default,
    }
}

fn position(name: &str) -> Option<usize> {
    ALL.iter().position(|setting| setting.name == name)
}

fn shown(setting: &Setting, value: i64) -> RawBson {
    match i32::try_from(value) {
        _ if setting.boolean => RawBson::Boolean(value != 0),
        Ok(small) => RawBson::Int32(small),
        Err(_) => RawBson::Int64(value),
    }
}

#[cfg(test)]
mod tests {
    use banyan_query::memory::Limit;

    use super::*;

    #[test]
    fn a_parameter_is_set_within_its_limits() {
        let memory = Arc::new(Memory::new(None, usize::MAX));
        let parameters = Parameters::new(memory.clone());
        let was = parameters
            .set("logLevel", RawBsonRef::Int32(2), false)
            .unwrap();
        assert_eq!(was, RawBson::Int32(0));
        assert_eq!(parameters.value("logLevel"), 2);
        let error = parameters
            .set("logLevel", RawBsonRef::Double(9.0), false)
            .unwrap_err();
        assert_eq!(error.code, ErrorCode::BadValue);
        assert_eq!(parameters.value("logLevel"), 2);
        for (value, flag) in [
            (RawBsonRef::Int32(2), true),
            (RawBsonRef::String("false"), true),
            (RawBsonRef::Null, false),
        ] {
            parameters.set("quiet", value, false).unwrap();
            assert_eq!(parameters.flag("quiet"), flag);
        }
        let error = parameters
            .set("logLevel", RawBsonRef::Null, false)
            .unwrap_err();
        assert_eq!(error.code, ErrorCode::TypeMismatch);
        let error = parameters
            .set("nope", RawBsonRef::Int32(1), false)
            .unwrap_err();
        assert_eq!(error.code, ErrorCode::InvalidOptions);
        let error = parameters
            .set("enableTestCommands", RawBsonRef::Boolean(true), false)
            .unwrap_err();
        assert_eq!(error.code, ErrorCode::IllegalOperation);
        parameters
            .set("enableTestCommands", RawBsonRef::String("true"), true)
            .unwrap();
        assert_eq!(
            parameters.get("enableTestCommands"),
            Some(RawBson::Boolean(true))
        );
        let name = "internalDocumentSourceGroupMaxMemoryBytes";
        let was = parameters.set(name, RawBsonRef::Int32(7), false).unwrap();
        assert_eq!(was, RawBson::Int32(104_857_600));
        assert_eq!(memory.limit(Limit::Group), 7);
    }
}
