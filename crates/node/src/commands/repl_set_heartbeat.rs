//! `replSetHeartbeat`: another member, or one to be, asks how this one is.

use banyan_access::check::Access;
use banyan_replication::set::heartbeat::Asker;
use banyan_replication::set::status::not_a_set;
use banyan_wire::{CommandError, ErrorCode};

use super::table::{CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;

pub static SPEC: CommandSpec = CommandSpec::new("replSetHeartbeat", Run::Inline(run))
    .access(Access::Member)
    .needs(Needs::Any)
    .admin_only()
    .help("internal: how a member is")
    .fields(&[
        "from",
        "fromPeer",
        "to",
        "config",
        "arbiterOnly",
        "buildIndexes",
    ])
    .ignored(&["configVersion", "term"])
    .vital();

fn run(ctx: &CommandContext<'_>) -> CommandResult {
    let replication = &ctx.node.replication;
    if !replication.is_replica_set() {
        return Err(not_a_set());
    }
    let asking = ctx
        .argument()
        .and_then(|value| value.as_str())
        .unwrap_or_default();
    let own = replication.set_name().unwrap_or_default();
    if !asking.is_empty() && !own.is_empty() && asking != own {
        return Err(CommandError::new(
            ErrorCode::InconsistentReplicaSetNames,
            format!("Our set name of {own} does not match name {asking} from remote node"),
        ));
    }
    let from = match ctx.field("from") {
        Some(field) => Some(field.str()?),
        None => None,
    };
    if let Some(from) = from {
        replication.note_question(from);
    }
    if let Some((arbiter_only, build_indexes)) =
        ctx.field("arbiterOnly").zip(ctx.field("buildIndexes"))
    {
        replication.note_part(arbiter_only.bool()?, build_indexes.bool()?);
    }
    if let Some(to) = ctx.field("to") {
        let host = to.str()?;
        replication.note_name(host);
        if let Some(config) = ctx.field("config") {
            replication.note_announcement(config.document()?, host);
        }
    }
    let peer = ctx.field("fromPeer").map(|field| field.i64()).transpose()?;
    let asker = Asker {
        host: from,
        peer: peer.map(i64::cast_unsigned),
    };
    let heartbeat = replication.heartbeat(asker).ok_or_else(|| {
        CommandError::new(
            ErrorCode::NotYetInitialized,
            "this member is still starting",
        )
    })?;
    Ok(heartbeat.to_reply())
}
