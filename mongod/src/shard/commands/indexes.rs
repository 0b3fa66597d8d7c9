//! A change of a sharded collection's indexes: one shard plans it, all of them carry it out.

use banyan_configsvr::ConfigReader;
use banyan_configsvr::index_changes::{COLLECTION, Note};
use banyan_node::commands::table::{CommandResult, CommandSpec, boxed, primary_only};
use banyan_node::context::CommandContext;
use banyan_node::index_changes::align;
use banyan_node::index_plans::plan;
use banyan_storage::Namespace;
use banyan_wire::{CommandError, ErrorCode, Request};
use bson::{RawArrayBuf, RawDocumentBuf, rawdoc};

use crate::shard::errors::{bad_value, conflict, not_sharded};
use crate::shard::state::ShardRole;

pub static PLAN: CommandSpec = primary_only("_shardsvrPlanIndexes", |ctx| boxed(plan_change(ctx)));
pub static ALIGN: CommandSpec =
    primary_only("_shardsvrAlignIndexes", |ctx| boxed(align_indexes(ctx)));

fn namespace(ns: &str) -> Result<Namespace, CommandError> {
    let invalid = || CommandError::new(ErrorCode::InvalidNamespace, format!("'{ns}'"));
    Namespace::parse(ns).ok_or_else(invalid)
}

/// What the client's command would make of the list of indexes; nothing changes yet.
async fn plan_change(ctx: &CommandContext<'_>) -> CommandResult {
    let role = ShardRole::of(ctx)?;
    let ns = ctx.required("_shardsvrPlanIndexes")?.str()?;
    let command = ctx.required("command")?.document()?;
    // The rules are those of the shard key as the config servers have it.
    role.refresh(ns).await?;
    if role.collection(ns).filter().is_none() {
        return Err(not_sharded(ns));
    }
    let namespace = namespace(ns)?;
    let request = Request::command(namespace.database(), command.to_owned());
    let spec = ctx.table.find(&request.name).ok_or_else(|| {
        let text = format!("no such command: '{}'", request.name);
        CommandError::new(ErrorCode::CommandNotFound, text)
    })?;
    let generic = spec.generic(&request)?;
    let inner = CommandContext::new(ctx.node, ctx.conn, &request, spec, ctx.table, generic);
    let planned = plan(&inner)?;
    let list = |specs: Vec<RawDocumentBuf>| specs.into_iter().collect::<RawArrayBuf>();
    Ok(rawdoc! {
        "before": list(planned.before),
        "after": list(planned.after),
        "reply": planned.reply,
        "ok": 1.0,
    })
}

/// Makes the list of indexes what the change that is under way says, in this direction.
async fn align_indexes(ctx: &CommandContext<'_>) -> CommandResult {
    let role = ShardRole::of(ctx)?;
    let ns = ctx.required("_shardsvrAlignIndexes")?.str()?;
    let told = Note::parse(ctx.required("change")?.document()?).map_err(bad_value)?;
    let term = ctx.node.replica.writable_term()?;
    // One after another: whoever was told by a config server that has been deposed since is through
    // before its successor's word is acted on, or finds here that it is too late.
    let _turn = role.index_changes.lock(ns).await;
    let body = rawdoc! {
        "find": COLLECTION,
        "filter": { "_id": ns },
        "limit": 1_i64,
        "singleBatch": true,
        "readConcern": { "level": "linearizable" },
    };
    let open = role.identified()?.config.find(body).await?;
    let open = open.first().map(|note| Note::parse(note)).transpose();
    let open = open.map_err(bad_value)?;
    if open.is_none_or(|open| open.id != told.id || open.undo != told.undo) {
        return Err(conflict(format!("this change of {ns}'s indexes is over")));
    }
    let namespace = namespace(ns)?;
    align(ctx.node, &namespace, told.wanted(), term, ctx.interrupt()).await?;
    Ok(rawdoc! { "ok": 1.0 })
}
