//! `replSetStepDown`: the primary gives the lead to another member.

use std::time::Duration;

use banyan_wire::{CommandError, ErrorCode};
use bson::rawdoc;

use super::table::{BoxFuture, CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;
use crate::params;

pub static SPEC: CommandSpec = CommandSpec::new("replSetStepDown", Run::Future(run))
    .aliases(&["replsetstepdown"])
    .needs(Needs::Any)
    .admin_only()
    .help("gives the lead to another member")
    .fields(&["secondaryCatchUpPeriodSecs", "force"]);

const AWAY_SECONDS: i64 = 60;
const CATCH_UP_SECONDS: i64 = 10;
const SECONDS_MAX: i64 = i32::MAX as i64;

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move {
        let replication = &ctx.node.replication;
        replication.require_config()?;
        let force = match ctx.field("force") {
            Some(field) => field.bool()?,
            None => false,
        };
        let away = match ctx.argument().and_then(params::number) {
            // `{replSetStepDown: 1}` means one second, as in MongoDB; 0 is refused there too.
            None | Some(0) => AWAY_SECONDS,
            Some(seconds) => seconds,
        };
        let catch_up = match ctx.field("secondaryCatchUpPeriodSecs") {
            Some(field) => field.i64()?,
            None if force => 0,
            None => CATCH_UP_SECONDS,
        };
        if !(1..=SECONDS_MAX).contains(&away) {
            return Err(bad("stepdown period must be a positive integer"));
        }
        if !(0..=SECONDS_MAX).contains(&catch_up) {
            return Err(bad(
                "secondaryCatchUpPeriodSecs period must be a positive or absent",
            ));
        }
        if away < catch_up {
            return Err(bad(
                "stepdown period must be longer than secondaryCatchUpPeriodSecs",
            ));
        }
        let seconds = |value: i64| Duration::from_secs(value.unsigned_abs());
        replication
            .step_down(ctx.node, seconds(away), seconds(catch_up), force)
            .await?;
        Ok(rawdoc! { "ok": 1.0 })
    })
}

fn bad(message: &str) -> CommandError {
    CommandError::new(ErrorCode::BadValue, message)
}
