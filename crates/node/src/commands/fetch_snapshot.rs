//! `_fetchSnapshot`: a member that is far behind fetches the state, chunk by chunk.

use banyan_access::check::Access;
use banyan_replication::set::status::not_a_set;
use banyan_storage::Part;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, rawdoc};

use super::table::{BoxFuture, CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;

pub static SPEC: CommandSpec = CommandSpec::new("_fetchSnapshot", Run::Future(run))
    .access(Access::Member)
    .needs(Needs::Any)
    .admin_only()
    .help("internal: the state for a member that is far behind")
    .fields(&["token", "plan", "part", "after", "until", "count", "close"]);

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
        let snapshots = replication.snapshots();
        if ctx.body().get_bool("plan").unwrap_or(false) {
            return tokio::task::block_in_place(|| snapshots.plan(token));
        }
        let part = ctx.required("part")?.i64()?;
        let part = u8::try_from(part)
            .ok()
            .and_then(Part::from_tag)
            .ok_or_else(|| {
                CommandError::new(ErrorCode::BadValue, format!("a store has no part {part}"))
            })?;
        if let Some(id) = ctx.field("count") {
            let id = u32::try_from(id.i64()?).map_err(|_| {
                CommandError::new(ErrorCode::BadValue, "'count' must be an id".to_owned())
            })?;
            return tokio::task::block_in_place(|| snapshots.count(token, part, id));
        }
        let (after, until) = (key(ctx, "after")?, key(ctx, "until")?);
        tokio::task::block_in_place(|| {
            snapshots.chunk(token, part, after.as_deref(), until.as_deref())
        })
    })
}

fn key(ctx: &CommandContext<'_>, name: &'static str) -> Result<Option<Vec<u8>>, CommandError> {
    match ctx.field(name).map(|field| field.value) {
        None => Ok(None),
        Some(RawBsonRef::Binary(binary)) => Ok(Some(binary.bytes.to_vec())),
        Some(_) => Err(CommandError::new(
            ErrorCode::TypeMismatch,
            format!("'{name}' must be binary"),
        )),
    }
}

fn open(ctx: &CommandContext<'_>) -> CommandResult {
    if !ctx.node.replica.is_primary() {
        return Err(CommandError::new(
            ErrorCode::NotWritablePrimary,
            "only the primary offers its state",
        ));
    }
    // Before the snapshot is taken: the state in it is at this position or later.
    let position = ctx.node.replica.group.status().applied;
    let hold = ctx.node.replica.group.hold_log(position.index + 1);
    let snapshot = ctx.node.replica.store.snapshot();
    let snapshots = ctx.node.replication.snapshots();
    let token = snapshots.open(position, snapshot, Some(Box::new(hold)))?;
    tokio::task::block_in_place(|| snapshots.plan(token))
}
