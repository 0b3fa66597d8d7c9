//! Views that read what is not on this shard alone.
//!
//! A router sends what reads a view to the shard that is home to its database, as the view's name is
//! that of no sharded collection. If all that the view reads is there, the shard answers. If not, it
//! tells the router what the view comes to, and that runs it over all shards.

use banyan_query::pipeline::Pipeline;
use banyan_query::view::Resolved;
use banyan_storage::Namespace;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawDocumentBuf, cstr};

use super::foreign;
use crate::context::CommandContext;

/// Before a routed pipeline runs: lets the role learn what it has to know of all collections that
/// are taken to be on this shard, and hands over what reads others through a view. `view`: the one
/// that the client reads, of which the pipeline was made.
pub async fn check(
    ctx: &CommandContext<'_>,
    view: Option<(&str, &Resolved)>,
    pipeline: &Pipeline,
) -> Result<(), CommandError> {
    let Some(role) = ctx.node.role().filter(|_| ctx.is_routed()) else {
        return Ok(());
    };
    let others = foreign::of(ctx, pipeline)?;
    for other in &others {
        role.prepare_local(other.namespace.clone()).await;
    }
    if let Some((name, resolved)) = view {
        let below = Namespace::new(ctx.database(), &resolved.collection);
        role.prepare_local(below.clone()).await;
        let mut all = others.iter().map(|other| &other.namespace).chain([&below]);
        return match all.all(|one| role.check_local(one).is_ok()) {
            true => Ok(()),
            false => Err(refusal(ctx.database(), name, resolved)),
        };
    }
    for (at, other) in others.iter().enumerate() {
        // What the router can know of is judged where it is read.
        if let Some(named) = foreign::through(&others, at)
            && let Some(resolved) = &named.view
            && role.check_local(&other.namespace).is_err()
        {
            let (database, name) = (named.namespace.database(), named.namespace.collection());
            return Err(refusal(database, name, resolved));
        }
    }
    Ok(())
}

/// Tells a router what a view comes to.
fn refusal(database: &str, name: &str, resolved: &Resolved) -> CommandError {
    let mut told = resolved.to_document(database);
    told.append(cstr!("view"), format!("{database}.{name}"));
    let mut extra = RawDocumentBuf::new();
    extra.append(cstr!("resolvedView"), told);
    CommandError::new(
        ErrorCode::CommandOnShardedViewNotSupportedOnMongod,
        format!(
            "Resolved views on sharded collections must be executed by mongos: {database}.{name}"
        ),
    )
    .with_extra(extra)
}
