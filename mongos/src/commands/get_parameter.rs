//! `getParameter`: the few that a router has.

use std::sync::atomic::Ordering;

use banyan_access::api_version::REQUIRE_PARAMETER;
use banyan_access::check::Access;
use banyan_access::cluster_time::DRIFT_PARAMETER;
use banyan_access::{audit, login};
use banyan_process::logging::{REDACTION_PARAMETER, redacts_client_data};
use banyan_query::memory::DISK_BY_DEFAULT;
use banyan_query::query_stats;
use banyan_security::Action;
use banyan_wire::login::{MODE_PARAMETER, shown_mode};
use banyan_wire::tls::operating;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBson, RawBsonRef, RawDocumentBuf, rawdoc};

use super::set_parameter;
use crate::context::{CommandResult, CommandSpec, Context, run};
use crate::fields;

pub const SPEC: CommandSpec = CommandSpec::new("getParameter", "parameters and values", run!(run))
    .access(Access::Cluster(Action::GetParameter))
    .aliases(&["getparameter"])
    .admin_only();

async fn run(context: &Context<'_>) -> CommandResult {
    let everything = match context.request.first_value() {
        Some(RawBsonRef::String(star)) => star == "*",
        Some(RawBsonRef::Document(options)) => fields::get_flag(options, "allParameters"),
        _ => false,
    };
    let known = [
        (
            bson::raw::cstr!("featureCompatibilityVersion"),
            RawBson::Document(rawdoc! {"version": "7.0"}),
        ),
        (
            bson::raw::cstr!("localLogicalSessionTimeoutMinutes"),
            RawBson::Int32(30),
        ),
        (
            bson::raw::cstr!("cursorTimeoutMillis"),
            RawBson::Int64(600_000),
        ),
    ];
    let mut out = RawDocumentBuf::new();
    for (name, value) in known {
        if everything || context.request.get(name.as_str()).is_some() {
            out.append(name, value);
        }
    }
    let memory = &context.router.memory;
    let by_default = RawBson::Boolean(memory.disk_by_default());
    let limits = memory.parameters();
    let limits = limits.map(|(row, value)| (row.parameter, set_parameter::shown(value)));
    let modes = operating::PARAMETERS.into_iter().filter_map(|name| {
        Some((
            name,
            RawBson::String(operating::parameter(name)?.to_owned()),
        ))
    });
    let interval = context
        .router
        .users
        .interval_seconds
        .load(Ordering::Relaxed);
    let interval = set_parameter::shown(interval);
    let drift = &context.router.gossip.drift_seconds_max;
    let drift = set_parameter::shown(drift.load(Ordering::Relaxed));
    let others = [
        (DRIFT_PARAMETER, drift),
        (DISK_BY_DEFAULT, by_default),
        (set_parameter::USER_CACHE_INTERVAL, interval),
        (
            "authenticationMechanisms",
            login::enabled_mechanisms().into(),
        ),
        (
            audit::SUCCESS_PARAMETER,
            RawBson::Boolean(context.router.audits_successes.load(Ordering::Relaxed)),
        ),
        (
            REQUIRE_PARAMETER,
            RawBson::Boolean(context.router.requires_api_version.load(Ordering::Relaxed)),
        ),
        (
            set_parameter::TEST_COMMANDS,
            RawBson::Boolean(context.router.has_test_commands.load(Ordering::Relaxed)),
        ),
        (REDACTION_PARAMETER, RawBson::Boolean(redacts_client_data())),
        (
            query_stats::RATE_PARAMETER,
            set_parameter::shown(context.router.query_stats.rate()),
        ),
        (
            query_stats::SIZE_PARAMETER,
            RawBson::String(context.router.query_stats.size()),
        ),
        (MODE_PARAMETER, RawBson::String(shown_mode().to_owned())),
    ];
    for (name, value) in limits.chain(others).chain(modes) {
        if (everything || context.request.get(name).is_some())
            && let Ok(name) = bson::raw::CString::try_from(name)
        {
            out.append(name, value);
        }
    }
    for element in banyan_document::elements(&context.request.body) {
        let name = element.name();
        if let Some(point) = context.router.fail_points.parameter(name)
            && let Ok(name) = bson::raw::CString::try_from(name)
        {
            out.append(name, point);
        }
    }
    if out.is_empty() {
        return Err(CommandError::new(
            ErrorCode::InvalidOptions,
            "no option found to get",
        ));
    }
    out.append(bson::raw::cstr!("ok"), 1.0);
    Ok(out)
}
