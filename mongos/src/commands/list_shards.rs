//! `listShards`.

use banyan_access::check::Access;
use banyan_security::Action;
use bson::{RawArrayBuf, rawdoc};

use crate::context::{CommandResult, CommandSpec, Context, run};
use crate::shards::find_all;

pub const SPEC: CommandSpec = CommandSpec::new("listShards", "the cluster's shards", run!(run))
    .access(Access::Cluster(Action::ListShards))
    .aliases(&["listshards"])
    .admin_only();

async fn run(context: &Context<'_>) -> CommandResult {
    let (filter, sort) = (rawdoc! {}, rawdoc! {"_id": 1});
    let shards = find_all(&context.router.config, "shards", &filter, &sort).await?;
    Ok(rawdoc! {"shards": RawArrayBuf::from_iter(shards), "ok": 1.0})
}
