//! `insert`, `update` and `delete`: see [`crate::writes`].

use crate::context::{CommandResult, CommandSpec, Context, run};
use crate::writes::{self, Kind};
use banyan_access::check::Access;
use banyan_access::reads_and_writes;
use banyan_security::Action;

pub const INSERT: CommandSpec = CommandSpec::new("insert", "inserts documents", run!(insert))
    .access(Access::Checked(reads_and_writes::insert))
    .retryable();
pub const UPDATE: CommandSpec = CommandSpec::new("update", "updates documents", run!(update))
    .access(Access::Checked(reads_and_writes::update))
    .retryable();
pub const DELETE: CommandSpec = CommandSpec::new("delete", "deletes documents", run!(delete))
    .access(Access::Collection(Action::Remove))
    .retryable();

async fn insert(context: &Context<'_>) -> CommandResult {
    writes::run(context, Kind::Insert).await
}

async fn update(context: &Context<'_>) -> CommandResult {
    writes::run(context, Kind::Update).await
}

async fn delete(context: &Context<'_>) -> CommandResult {
    writes::run(context, Kind::Delete).await
}
