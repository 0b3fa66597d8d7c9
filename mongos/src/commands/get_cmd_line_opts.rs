//! `getCmdLineOpts`: how the program was started.

use banyan_access::check::Access;
use banyan_security::Action;
use bson::{RawArrayBuf, rawdoc};

use crate::context::{CommandResult, CommandSpec, Context, run};

pub const SPEC: CommandSpec =
    CommandSpec::new("getCmdLineOpts", "how the program was started", run!(run))
        .access(Access::Cluster(Action::GetCmdLineOpts))
        .admin_only();

async fn run(context: &Context<'_>) -> CommandResult {
    let identity = &context.router.identity;
    Ok(rawdoc! {
        "argv": RawArrayBuf::from_iter(identity.argv.iter().map(String::as_str)),
        "parsed": identity.settings.clone(),
        "ok": 1.0,
    })
}
