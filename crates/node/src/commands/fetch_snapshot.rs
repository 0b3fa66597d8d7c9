//! `_fetchSnapshot`: a member that is far behind fetches the state, chunk by chunk.

use banyan_storage::Part;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, rawdoc};

use super::table::{BoxFuture, CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;
use crate::replication::status::not_a_set;

pub static SPEC: CommandSpec = CommandSpec::new("_fetchSnapshot", Run::Future(run))
    .needs(Needs::Any)
    .admin_only()
    .privilege("internal")
    .help("internal: the state for a member that is far behind")
    .fields(&["token", "part", "after", "close"]);

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move {
        let replication = &ctx.node.replication;
        if !replication.is_replica_set() {
            return Err(not_a_set());
        }
        let Some(token) = ctx.field("token") else {
            return open(ctx);
        };
        let token = token.i64()?;
        if ctx.body().get_bool("close").unwrap_or(false) {
            replication.snapshots().close(token);
            return Ok(rawdoc! { "ok": 1.0 });
        }
        let part = ctx.required("part")?.i64()?;
        let part = u8::try_from(part)
            .ok()
            .and_then(Part::from_tag)
            .ok_or_else(|| {
                CommandError::new(ErrorCode::BadValue, format!("a store has no part {part}"))
            })?;
        let after = match ctx.field("after").map(|field| field.value) {
            None => None,
            Some(RawBsonRef::Binary(binary)) => Some(binary.bytes.to_vec()),
            Some(_) => {
                return Err(CommandError::new(
                    ErrorCode::TypeMismatch,
                    "'after' must be binary",
                ));
            }
        };
        tokio::task::block_in_place(|| replication.snapshots().chunk(token, part, after.as_deref()))
    })
}

fn open(ctx: &CommandContext<'_>) -> CommandResult {
    if !ctx.node.is_primary() {
        return Err(CommandError::new(
            ErrorCode::NotWritablePrimary,
            "only the primary offers its state",
        ));
    }
    // Before the snapshot is taken: the state in it is at this position or later.
    let position = ctx.node.group.status().applied;
    let snapshot = ctx.node.store.snapshot();
    let token = ctx.node.replication.snapshots().open(position, snapshot)?;
    Ok(rawdoc! {
        "token": token,
        "term": position.term as i64,
        "index": position.index as i64,
        "ok": 1.0,
    })
}
