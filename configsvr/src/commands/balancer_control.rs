//! `balancerStart`, `balancerStop`, `balancerStatus`.

use std::sync::atomic::Ordering;
use std::time::Duration;

use banyan_node::commands::table::{CommandResult, CommandSpec, boxed, primary_only};
use banyan_node::context::CommandContext;
use banyan_wire::{CommandError, ErrorCode};
use bson::rawdoc;

use crate::balancer::mode;
use crate::role::ConfigRole;

pub static START: CommandSpec = primary_only("_configsvrBalancerStart", |ctx| boxed(start(ctx)));
pub static STOP: CommandSpec = primary_only("_configsvrBalancerStop", |ctx| boxed(stop(ctx)));
pub static STATUS: CommandSpec = primary_only("_configsvrBalancerStatus", |ctx| boxed(status(ctx)));

/// How long a stop waits for the moves that are under way, unless `maxTimeMS` says less.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);

async fn start(ctx: &CommandContext<'_>) -> CommandResult {
    let role = ConfigRole::of(ctx)?;
    let change = rawdoc! { "$set": { "mode": "full", "stopped": false } };
    role.metadata
        .update("settings", "balancer", change, true)
        .await?;
    role.note("balancer.start", "", rawdoc! {}).await;
    Ok(rawdoc! { "ok": 1.0 })
}

async fn stop(ctx: &CommandContext<'_>) -> CommandResult {
    let role = ConfigRole::of(ctx)?;
    let change = rawdoc! { "$set": { "mode": "off", "stopped": true } };
    role.metadata
        .update("settings", "balancer", change, true)
        .await?;
    role.note("balancer.stop", "", rawdoc! {}).await;
    let patience = ctx
        .generic
        .max_time_ms
        .filter(|ms| *ms > 0)
        .map(Duration::from_millis);
    if !role
        .slots
        .wait_until_idle(patience.unwrap_or(STOP_TIMEOUT))
        .await
    {
        let message = "the balancer is stopped, but a migration is still under way";
        return Err(CommandError::new(ErrorCode::MaxTimeMSExpired, message));
    }
    Ok(rawdoc! { "ok": 1.0 })
}

async fn status(ctx: &CommandContext<'_>) -> CommandResult {
    let role = ConfigRole::of(ctx)?;
    let setting = role.metadata.setting("balancer").await?;
    let mode = setting.as_deref().map_or("full", mode);
    let rounds = role.balancer_rounds.load(Ordering::Relaxed);
    Ok(rawdoc! {
        "mode": mode,
        "inBalancerRound": role.balancer_in_round.load(Ordering::Relaxed),
        "numBalancerRounds": i64::try_from(rounds).unwrap_or(i64::MAX),
        "ok": 1.0,
    })
}
