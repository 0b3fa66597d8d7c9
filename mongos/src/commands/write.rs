//! `insert`, `update` and `delete`: see [`crate::writes`].

use crate::context::{CommandResult, CommandSpec, Context, run};
use crate::writes::{self, Kind};

pub const INSERT: CommandSpec = CommandSpec::new("insert", "inserts documents", run!(insert));
pub const UPDATE: CommandSpec = CommandSpec::new("update", "updates documents", run!(update));
pub const DELETE: CommandSpec = CommandSpec::new("delete", "deletes documents", run!(delete));

async fn insert(context: &Context<'_>) -> CommandResult {
    writes::run(context, Kind::Insert).await
}

async fn update(context: &Context<'_>) -> CommandResult {
    writes::run(context, Kind::Update).await
}

async fn delete(context: &Context<'_>) -> CommandResult {
    writes::run(context, Kind::Delete).await
}
