//! `_awaitWrites`: what `getLastError` waits with. The connection's last write may have gone to any
//! shard, so all of them are asked.

use banyan_access::check::Access;
use std::sync::Arc;

use banyan_wire::RequestOptions;
use bson::{RawBsonRef, RawDocumentBuf, cstr, rawdoc};

use crate::context::{CommandResult, CommandSpec, Context, run};
use crate::fields;

pub const SPEC: CommandSpec = CommandSpec::new(
    "_awaitWrites",
    "internal: waits for a write concern",
    run!(wait),
)
.access(Access::LoggedIn)
.admin_only();

async fn wait(context: &Context<'_>) -> CommandResult {
    let router = context.router;
    let mut command = rawdoc! { "_awaitWrites": 1 };
    if let Some(RawBsonRef::Document(concern)) = fields::get(&context.request.body, "writeConcern")
    {
        command.append(cstr!("writeConcern"), concern);
    }
    let shards: Vec<Arc<str>> = router.shards.all().keys().cloned().collect();
    let request_options = RequestOptions::write()
        .idempotent()
        .deadline(context.deadline);
    let mut unmet: Option<RawDocumentBuf> = None;
    for (_, reply) in router
        .broadcast(&shards, request_options, "admin", &command)
        .await
    {
        let reply = reply?;
        if let Some(RawBsonRef::Document(error)) = fields::get(&reply, "writeConcernError") {
            unmet.get_or_insert_with(|| error.to_owned());
        }
    }
    let mut out = RawDocumentBuf::new();
    if let Some(error) = unmet {
        out.append(cstr!("writeConcernError"), error);
    }
    out.append(cstr!("ok"), 1.0);
    Ok(out)
}
