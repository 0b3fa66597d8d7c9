//! `replSetReconfig`: puts another configuration in place. `rs.add`, `rs.addArb` and `rs.remove`
//! are made of it.

use std::time::Duration;

use banyan_access::check::Access;
use banyan_security::Action;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, cstr, rawdoc};

use super::table::{BoxFuture, CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;

pub static SPEC: CommandSpec = CommandSpec::new("replSetReconfig", Run::Future(run))
    .access(Access::Cluster(Action::ReplSetConfigure))
    .aliases(&["replsetreconfig"])
    .needs(Needs::Any)
    .admin_only()
    .lenient()
    .help("changes the replica set's configuration")
    .fields(&["force"]);

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move {
        let replication = &ctx.node.replication;
        replication.require_config()?;
        let Some(RawBsonRef::Document(document)) = ctx.argument() else {
            return Err(CommandError::new(
                ErrorCode::InvalidReplicaSetConfig,
                "no configuration specified",
            ));
        };
        let force = match ctx.field("force").map(|field| field.value) {
            None | Some(RawBsonRef::Null | RawBsonRef::Undefined) => false,
            Some(RawBsonRef::Boolean(force)) => force,
            // Anything else is a yes, as in MongoDB, unless it's a zero.
            Some(other) => crate::params::number(other) != Some(0),
        };
        let changing = replication.reconfigure(&ctx.node.replica, document, force);
        let changed = match ctx
            .generic
            .max_time_ms
            .filter(|&milliseconds| milliseconds > 0)
        {
            None => changing.await?,
            Some(milliseconds) => {
                let limit = Duration::from_millis(milliseconds);
                tokio::time::timeout(limit, changing).await.map_err(|_| {
                    CommandError::new(
                        ErrorCode::MaxTimeMSExpired,
                        "operation exceeded time limit; the configuration may still be put in \
                         place",
                    )
                })??
            }
        };
        let mut out = rawdoc! {};
        if let Some(warning) = changed.warning {
            out.append(cstr!("warning"), warning);
        }
        out.append(cstr!("ok"), 1.0);
        Ok(out)
    })
}
