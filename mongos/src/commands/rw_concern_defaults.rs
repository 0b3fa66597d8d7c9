//! `getDefaultRWConcern`, `setDefaultRWConcern`: the config servers keep what is set.

use banyan_access::check::Access;
use banyan_security::Action;
use bson::{RawDocumentBuf, cstr};

use super::pass;
use crate::context::{CommandResult, CommandSpec, Context, run};
use crate::fields;

pub const GET: CommandSpec = CommandSpec::new(
    "getDefaultRWConcern",
    "shows the default read and write concern",
    run!(get),
)
.access(Access::Cluster(Action::GetDefaultRWConcern))
.admin_only();

pub const SET: CommandSpec = CommandSpec::new(
    "setDefaultRWConcern",
    "sets the default read and write concern",
    run!(set),
)
.access(Access::Cluster(Action::SetDefaultRWConcern))
.admin_only();

async fn get(context: &Context<'_>) -> CommandResult {
    let router = context.router;
    if !fields::get_flag(&context.request.body, "inMemory") {
        return Ok(router.refresh_defaults().await?.reply.clone());
    }
    let known = match router.defaults.known() {
        Some(known) => known,
        None => router.refresh_defaults().await?,
    };
    Ok(in_memory(&known.reply))
}

fn in_memory(reply: &bson::RawDocument) -> RawDocumentBuf {
    let mut out = RawDocumentBuf::new();
    for (name, value) in reply.iter().flatten() {
        if matches!(name.as_str(), "$clusterTime" | "operationTime") {
            continue;
        }
        if name.as_str() == "ok" {
            out.append(cstr!("inMemory"), true);
        }
        out.append(name, value);
    }
    out
}

async fn set(context: &Context<'_>) -> CommandResult {
    pass::change_settings(context, "setDefaultRWConcern").await
}
