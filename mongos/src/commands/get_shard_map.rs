//! `getShardMap`: every shard's address, and every member's shard.

use banyan_access::check::Access;
use banyan_security::Action;
use std::collections::BTreeMap;

use banyan_document::DocumentWriter;

use crate::context::{CommandResult, CommandSpec, Context, run};

pub const SPEC: CommandSpec = CommandSpec::new("getShardMap", "the shards' addresses", run!(run))
    .access(Access::Cluster(Action::GetShardMap))
    .aliases(&["getshardmap"])
    .admin_only();

async fn run(context: &Context<'_>) -> CommandResult {
    context.router.shards.reload().await?;
    let map: BTreeMap<String, String> = context.router.shards.addresses().into_iter().collect();
    let mut out = DocumentWriter::new();
    out.begin_document("map");
    map.iter()
        .for_each(|(shard, address)| out.append_str(shard, address));
    out.end();
    out.begin_document("hosts");
    for (shard, address) in &map {
        let hosts = address
            .split_once('/')
            .map_or(address.as_str(), |(_, hosts)| hosts);
        hosts
            .split(',')
            .for_each(|host| out.append_str(host, shard));
    }
    out.end();
    out.append_f64("ok", 1.0);
    Ok(out.finish())
}
