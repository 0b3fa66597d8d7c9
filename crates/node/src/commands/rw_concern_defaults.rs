//! `getDefaultRWConcern`, `setDefaultRWConcern`: the concerns of commands that name none.

use banyan_access::check::Access;
use banyan_security::Action;
use bson::{DateTime, RawArrayBuf, RawDocumentBuf, cstr, rawdoc};

use super::table::{BoxFuture, CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;
use crate::rw_defaults::{self, Defaults};
use crate::stored_defaults;

pub static GET: CommandSpec = CommandSpec::new("getDefaultRWConcern", Run::Inline(get))
    .access(Access::Cluster(Action::GetDefaultRWConcern))
    .needs(Needs::Readable)
    .admin_only()
    .help("shows the default read and write concern")
    .fields(&["inMemory"]);

pub static SET: CommandSpec = CommandSpec::new("setDefaultRWConcern", Run::Future(set))
    .access(Access::Cluster(Action::SetDefaultRWConcern))
    .writes()
    .admin_only()
    .help("sets the default read and write concern")
    .fields(&["defaultReadConcern", "defaultWriteConcern"]);

fn get(ctx: &CommandContext<'_>) -> CommandResult {
    let node = ctx.node;
    stored_defaults::check_supported(node, GET.name)?;
    let in_memory = ctx
        .field("inMemory")
        .map_or(Ok(false), |field| field.bool())?;
    let defaults = if in_memory {
        stored_defaults::known(node)
    } else {
        stored_defaults::refresh(node)?
    };
    Ok(reply(&defaults, in_memory, node.defaults.read_at()))
}

fn reply(defaults: &Defaults, in_memory: bool, read_at: DateTime) -> RawDocumentBuf {
    let mut out = defaults.describe(in_memory, read_at);
    out.append(cstr!("ok"), 1.0);
    out
}

fn set<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move {
        let node = ctx.node;
        stored_defaults::check_supported(node, SET.name)?;
        let document = |name| {
            let field = ctx.field(name).filter(|field| !field.is_null());
            field.map(|field| field.document()).transpose()
        };
        let read = document("defaultReadConcern")?;
        let write = document("defaultWriteConcern")?;
        let mut next = stored_defaults::refresh(node)?.changed(read, write)?;
        if let Some(concern) = &next.write
            && let Some(config) = node.replication.config()
        {
            concern.check_mode(&config)?;
        }
        next.updated = Some((node.replica.machine.operation_time(), DateTime::now()));
        let stored = next.to_document();
        let statement = rawdoc! {
            "q": { "_id": rw_defaults::ID },
            "u": stored,
            "upsert": true,
        };
        let update = rawdoc! {
            "update": rw_defaults::COLLECTION,
            "updates": RawArrayBuf::from_iter([statement]),
        };
        ctx.nested("config", update).await?;
        let now = stored_defaults::refresh(node)?;
        Ok(reply(&now, false, node.defaults.read_at()))
    })
}
