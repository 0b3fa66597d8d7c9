//! `shardingState`: what this shard believes, for people.

use banyan_access::check::Access;
use banyan_node::commands::table::{CommandResult, CommandSpec, Needs, Run, boxed};
use banyan_node::context::CommandContext;
use banyan_security::Action;
use bson::{RawDocumentBuf, cstr, rawdoc};

use crate::shard::state::ShardRole;

pub static SHARDING_STATE: CommandSpec =
    CommandSpec::new("shardingState", Run::Future(|ctx| boxed(run(ctx))))
        .access(Access::Cluster(Action::ShardingState))
        .needs(Needs::Any)
        .admin_only();

async fn run(ctx: &CommandContext<'_>) -> CommandResult {
    let role = ShardRole::of(ctx)?;
    let Some(identity) = role.identity() else {
        return Ok(rawdoc! { "enabled": false, "ok": 1.0 });
    };
    let mut versions = RawDocumentBuf::new();
    for (ns, version) in role.versions() {
        if let Ok(ns) = bson::raw::CString::try_from(ns.as_str()) {
            versions.append(ns, version.to_document());
        }
    }
    let set = &identity.config.set;
    let seeds = set.seeds().join(",");
    let config = set
        .name()
        .map_or_else(|| seeds.clone(), |name| format!("{name}/{seeds}"));
    let mut reply = rawdoc! {
        "enabled": true,
        "configServer": config,
        "shardName": &*identity.name,
        "clusterId": identity.cluster,
        "versions": versions,
    };
    reply.append(cstr!("ok"), 1.0);
    Ok(reply)
}
