//! `whatsmyuri`: the client's own address.

use banyan_access::check::Access;
use bson::rawdoc;

use crate::context::{CommandResult, CommandSpec, Context, run};

pub const SPEC: CommandSpec =
    CommandSpec::new("whatsmyuri", "the client's address", run!(run)).access(Access::Anyone);

async fn run(context: &Context<'_>) -> CommandResult {
    Ok(rawdoc! {"you": context.connection.peer.to_string(), "ok": 1.0})
}
