//! What a command's file says of it: its line in the table.

use std::future::Future;

use banyan_access::check::Access;

use crate::context::CommandContext;
pub use crate::context::{CommandResult, CommandSpec, Needs, Run, Table};
pub use crate::role::BoxFuture;

/// A command that the members of a cluster give to each other's primaries. Routers pass fields on
/// that mean nothing to it.
pub const fn primary_only(
    name: &'static str,
    run: for<'a> fn(&'a CommandContext<'a>) -> BoxFuture<'a, CommandResult>,
) -> CommandSpec {
    CommandSpec::new(name, Run::Future(run))
        .needs(Needs::Primary)
        .admin_only()
        .access(Access::Member)
        .lenient()
}

pub fn boxed<'a>(
    future: impl Future<Output = CommandResult> + Send + 'a,
) -> BoxFuture<'a, CommandResult> {
    Box::pin(future)
}
