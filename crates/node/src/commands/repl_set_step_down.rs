//! `replSetStepDown`: the primary gives the lead to another member.

use std::time::Duration;

use banyan_access::check::Access;
use banyan_security::Action;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, rawdoc};

use super::table::{BoxFuture, CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;
use crate::params;

pub static SPEC: CommandSpec = CommandSpec::new("replSetStepDown", Run::Future(run))
    .access(Access::Cluster(Action::ReplSetStateChange))
    .aliases(&["replsetstepdown"])
    .needs(Needs::Any)
    .admin_only()
    .lenient()
    .help("gives the lead to another member")
    .fields(&["secondaryCatchUpPeriodSecs", "force"]);

const AWAY_SECONDS: i64 = 60;
const CATCH_UP_SECONDS: i64 = 10;
const SECONDS_MAX: i64 = i32::MAX as i64;

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move {
        let replication = &ctx.node.replication;
        replication.require_config()?;
        // By what MongoDB takes for true.
        let force = match ctx.field("force").map(|field| field.value) {
            None | Some(RawBsonRef::Null | RawBsonRef::Undefined) => false,
            Some(RawBsonRef::Boolean(force)) => force,
            Some(other) => params::number(other) != Some(0),
        };
        let away = match ctx.argument().and_then(params::number) {
            // As in MongoDB, 0 and what is not a number are the usual time.
            None | Some(0) => AWAY_SECONDS,
            Some(seconds) => seconds,
        };
        let catch_up = match ctx.field("secondaryCatchUpPeriodSecs") {
            Some(field) => params::number(field.value).ok_or_else(|| {
                CommandError::new(
                    ErrorCode::TypeMismatch,
                    format!(
                        "Expected field \"secondaryCatchUpPeriodSecs\" to have numeric type, but \
                         found {}",
                        banyan_document::kind::name(&field.value)
                    ),
                )
            })?,
            None if force => 0,
            None => CATCH_UP_SECONDS,
        };
        let away = away.min(SECONDS_MAX);
        if away < 1 {
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
            .step_down(&ctx.node.replica, seconds(away), seconds(catch_up), force)
            .await?;
        Ok(rawdoc! { "ok": 1.0 })
    })
}

fn bad(message: &str) -> CommandError {
    CommandError::new(ErrorCode::BadValue, message)
}
