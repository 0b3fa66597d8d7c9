//! `replSetInitiate`: begins a replica set.
//!
//! Without a configuration it makes one that names this member alone, and says so in the words of
//! the 2.x server.

use banyan_access::check::Access;
use banyan_document::kind::name_of as type_name;
use banyan_replication::set::config::SetConfig;
use banyan_security::Action;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, cstr, rawdoc};

use super::table::{BoxFuture, CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;

pub static SPEC: CommandSpec = CommandSpec::new("replSetInitiate", Run::Future(run))
    .access(Access::Cluster(Action::ReplSetConfigure))
    .aliases(&["replsetinitiate"])
    .needs(Needs::Any)
    .admin_only()
    .help("begins a replica set");

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move {
        let replication = &ctx.node.replication;
        if !replication.is_replica_set() {
            return Err(CommandError::new(
                ErrorCode::NoReplicationEnabled,
                "This node was not started with the replSet option",
            ));
        }
        let given = match ctx.argument() {
            Some(RawBsonRef::Document(document)) if !document.is_empty() => Some(document),
            // `rs.initiate()` sends an empty document, the 2.x shell a number or a null.
            Some(
                RawBsonRef::Document(_)
                | RawBsonRef::Null
                | RawBsonRef::Undefined
                | RawBsonRef::Int32(_)
                | RawBsonRef::Int64(_)
                | RawBsonRef::Double(_)
                | RawBsonRef::Boolean(_),
            )
            | None => None,
            Some(other) => {
                return Err(CommandError::new(
                    ErrorCode::InvalidReplicaSetConfig,
                    format!(
                        "a replica set configuration is an object, found {}",
                        type_name(other.element_type())
                    ),
                ));
            }
        };
        let config = match given {
            Some(document) => SetConfig::read(document)?,
            None => {
                // Asked for before anything is made, so that the reply tells what was made.
                replication.require_uninitialized()?;
                replication.default_config()?
            }
        };
        replication.initiate(&ctx.node.replica, config).await?;
        let mut out = rawdoc! {};
        if given.is_none() {
            out.append(
                cstr!("info2"),
                "no configuration explicitly specified -- making one",
            );
            out.append(cstr!("me"), replication.address());
        }
        out.append(
            cstr!("info"),
            "Config now saved locally.  Should come online in about a minute.",
        );
        out.append(cstr!("ok"), 1.0);
        Ok(out)
    })
}
