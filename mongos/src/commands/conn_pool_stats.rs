//! `connPoolStats` and `dropConnections`: the router's connections to the members of the cluster.

use banyan_access::check::Access;
use banyan_security::Action;
use banyan_wire::{ReplicaSet, pool_commands};
use bson::raw::CString;
use bson::{RawArrayBuf, RawDocumentBuf, cstr, rawdoc};

use crate::context::{CommandResult, CommandSpec, Context, run};

pub const SPECS: &[CommandSpec] = &[
    CommandSpec::new(
        "connPoolStats",
        "the router's connections to others",
        run!(run),
    )
    .access(Access::Cluster(Action::ConnPoolStats)),
    CommandSpec::new(
        "dropConnections",
        "drops connections of the router to others",
        run!(drop_connections),
    )
    .access(Access::Cluster(Action::DropConnections))
    .admin_only(),
];

async fn run(context: &Context<'_>) -> CommandResult {
    let shards = context.router.shards.all();
    let sets = std::iter::once(&context.router.config).chain(shards.values().map(|one| &one.set));
    let mut listed = RawDocumentBuf::new();
    let mut count = 0;
    for set in sets {
        let Some(Ok(name)) = set.name().map(CString::try_from) else {
            continue;
        };
        listed.append(&name, rawdoc! {"hosts": hosts(set)});
        count += 1;
    }
    let mut reply = pool_commands::stats();
    reply.append(cstr!("numReplicaSetMonitorsCreated"), count);
    reply.append(cstr!("replicaSets"), listed);
    reply.append(cstr!("ok"), 1.0);
    Ok(reply)
}

fn hosts(set: &ReplicaSet) -> RawArrayBuf {
    let primary = set.primary();
    let members = set.members().into_iter();
    members
        .map(|address| {
            let leads = primary.as_ref() == Some(&address);
            rawdoc! {"addr": address, "ismaster": leads}
        })
        .collect()
}

async fn drop_connections(context: &Context<'_>) -> CommandResult {
    pool_commands::drop_connections(&context.request.body)
}
