//! `setParameter`: what can change while a router runs, the limits of memory, the mode of TLS, how
//! members prove who they are, for how long users are remembered, what the logs hold, and which
//! queries count in the statistics.

use std::sync::atomic::Ordering;

use banyan_access::api_version::REQUIRE_PARAMETER;
use banyan_access::audit;
use banyan_access::audit_config;
use banyan_access::check::Access;
use banyan_access::cluster_time::DRIFT_PARAMETER;
use banyan_process::TlsMode;
use banyan_process::logging::{self, REDACTION_PARAMETER};
use banyan_query::memory::DISK_BY_DEFAULT;
use banyan_query::query_stats;
use banyan_security::Action;
use banyan_wire::tls::{self, operating};
use banyan_wire::{CommandError, ErrorCode, login};
use bson::{RawBson, RawBsonRef, rawdoc};

use crate::context::{CommandResult, CommandSpec, Context, run};
use crate::fields;
use crate::router::Router;
use crate::users::INTERVAL_SECONDS_MAX;

pub const SPEC: CommandSpec = CommandSpec::new("setParameter", "changes a parameter", run!(run))
    .access(Access::Cluster(Action::SetParameter))
    .aliases(&["setparameter"])
    .admin_only();

/// Generic fields that are no parameter's name.
const GENERIC: &[&str] = &[
    "lsid",
    "comment",
    "apiVersion",
    "apiStrict",
    "apiDeprecationErrors",
    "maxTimeMS",
    "writeConcern",
    "readConcern",
];

async fn run(context: &Context<'_>) -> CommandResult {
    let mut was = None;
    for element in banyan_document::elements(&context.request.body).skip(1) {
        let name = element.name();
        if name.starts_with('$') || GENERIC.contains(&name) {
            continue;
        }
        let before = set(context.router, name, element.value())?;
        was.get_or_insert(before);
    }
    match was {
        Some(was) => Ok(rawdoc! { "was": was, "ok": 1.0 }),
        None => Err(CommandError::new(
            ErrorCode::InvalidOptions,
            "no option found to set, use '*' to get list of available",
        )),
    }
}

/// How long the config servers may say nothing of users until they are asked again, in seconds.
pub(super) const USER_CACHE_INTERVAL: &str = "userCacheInvalidationIntervalSecs";
/// Commands for tests are answered.
pub(super) const TEST_COMMANDS: &str = "enableTestCommands";
const LOCALHOST_BYPASS: &str = "enableLocalhostAuthBypass";

/// `--setParameter`, as far as it is about users, cluster times, logs and tests.
pub fn at_start(router: &Router, name: &str, value: &str) -> Result<(), CommandError> {
    match name {
        USER_CACHE_INTERVAL => {
            let bad = |_| not_integral(name);
            set(router, name, RawBsonRef::Int64(value.parse().map_err(bad)?)).map(drop)
        }
        LOCALHOST_BYPASS => {
            let flag = switch(name, value)?;
            router.users.localhost_bypass.store(flag, Ordering::Relaxed);
            Ok(())
        }
        TEST_COMMANDS => {
            let flag = switch(name, value)?;
            router.has_test_commands.store(flag, Ordering::Relaxed);
            Ok(())
        }
        query_stats::RATE_PARAMETER => {
            let bad = |_| not_integral(name);
            set(router, name, RawBsonRef::Int64(value.parse().map_err(bad)?)).map(drop)
        }
        query_stats::SIZE_PARAMETER => set(router, name, RawBsonRef::String(value)).map(drop),
        audit::SUCCESS_PARAMETER | REDACTION_PARAMETER | REQUIRE_PARAMETER => {
            set(router, name, RawBsonRef::Boolean(switch(name, value)?)).map(drop)
        }
        DRIFT_PARAMETER => {
            let bad = |_| not_integral(name);
            let seconds = RawBsonRef::Int64(value.parse().map_err(bad)?);
            let seconds = within(name, seconds, 1, i64::MAX)?;
            let drift = &router.gossip.drift_seconds_max;
            drift.store(seconds, Ordering::Relaxed);
            Ok(())
        }
        _ => Ok(()),
    }
}

fn switch(name: &str, value: &str) -> Result<bool, CommandError> {
    match value {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => {
            let text = format!("Invalid value for parameter {name}: {value}");
            Err(CommandError::new(ErrorCode::BadValue, text))
        }
    }
}

fn not_integral(name: &str) -> CommandError {
    let text = format!("Failed validating {name}: Unable to coerce value to integral type");
    CommandError::new(ErrorCode::BadValue, text)
}

/// Changes a parameter and answers what it was.
fn set(router: &Router, name: &str, value: RawBsonRef<'_>) -> Result<RawBson, CommandError> {
    let memory = &router.memory;
    if let Some(was) = operating::set_parameter(name, value)? {
        return Ok(RawBson::String(was.to_owned()));
    }
    if name == login::MODE_PARAMETER {
        let tls = tls::process().map_or(TlsMode::Disabled, |tls| tls.mode());
        return Ok(RawBson::String(login::change_mode(value, tls)?.to_owned()));
    }
    if name == DISK_BY_DEFAULT {
        let before = memory.disk_by_default();
        memory.set_parameter(name, i64::from(banyan_document::is_true(value)));
        return Ok(RawBson::Boolean(before));
    }
    audit_config::check_parameter(name)?;
    if name == audit::SUCCESS_PARAMETER {
        let flag = banyan_document::is_true(value);
        let before = router.audits_successes.swap(flag, Ordering::Relaxed);
        return Ok(RawBson::Boolean(before));
    }
    if name == REQUIRE_PARAMETER {
        let flag = banyan_document::is_true(value);
        let before = router.requires_api_version.swap(flag, Ordering::Relaxed);
        return Ok(RawBson::Boolean(before));
    }
    if name == REDACTION_PARAMETER {
        let before = logging::redacts_client_data();
        logging::redact_client_data(banyan_document::is_true(value));
        return Ok(RawBson::Boolean(before));
    }
    if name == query_stats::RATE_PARAMETER {
        let rate = within(name, value, -1, i32::MAX.into())?;
        return Ok(shown(router.query_stats.set_rate(rate)));
    }
    if name == query_stats::SIZE_PARAMETER {
        let was = value
            .as_str()
            .and_then(|size| router.query_stats.set_size(size));
        return was.map(RawBson::String).ok_or_else(|| {
            let text = format!("parameter {name} takes a size such as '1%', '100MB' or '1GB'");
            CommandError::new(ErrorCode::BadValue, text)
        });
    }
    if name == USER_CACHE_INTERVAL {
        let seconds = within(name, value, 1, INTERVAL_SECONDS_MAX)?;
        let before = &router.users.interval_seconds;
        return Ok(shown(before.swap(seconds, Ordering::Relaxed)));
    }
    if matches!(name, DRIFT_PARAMETER | TEST_COMMANDS) {
        let text = format!("not allowed to change [{name}] at runtime");
        return Err(CommandError::new(ErrorCode::IllegalOperation, text));
    }
    let row = memory.parameters().find(|(row, _)| row.parameter == name);
    let Some((row, before)) = row else {
        let text = format!(
            "attempted to set unrecognized parameter [{name}], use help:true to see options"
        );
        return Err(CommandError::new(ErrorCode::InvalidOptions, text));
    };
    let number = within(name, value, row.min, row.max)?;
    memory.set_parameter(name, number);
    Ok(shown(before))
}

fn within(name: &str, value: RawBsonRef<'_>, min: i64, max: i64) -> Result<i64, CommandError> {
    let number = fields::number(value).ok_or_else(|| not_integral(name))?;
    if (min..=max).contains(&number) {
        return Ok(number);
    }
    Err(CommandError::new(
        ErrorCode::BadValue,
        format!("Invalid value for parameter {name}: {number} is not between {min} and {max}"),
    ))
}

/// As small an integer as holds it.
pub(super) fn shown(value: i64) -> RawBson {
    match i32::try_from(value) {
        Ok(small) => RawBson::Int32(small),
        Err(_) => RawBson::Int64(value),
    }
}
