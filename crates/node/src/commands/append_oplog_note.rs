//! `appendOplogNote`: a note in the log that changes nothing. With a write concern it's a way to
//! wait until the members have everything before it.

use bson::{RawDocument, cstr, rawdoc};

use super::table::{BoxFuture, CommandResult, CommandSpec, Run};
use crate::context::CommandContext;
use crate::write::WriteConcern;

pub static SPEC: CommandSpec = CommandSpec::new("appendOplogNote", Run::Future(run))
    .writes()
    .admin_only()
    .help("writes a note into the log")
    .fields(&["data"])
    .ignored(&["maxClusterTime"]);

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move {
        let note: &RawDocument = ctx.required("data")?.document()?;
        let concern = WriteConcern::parse(ctx.generic.write_concern)?;
        concern.check(ctx.node)?;
        let written = ctx.node.write_note(note).await?;
        let mut out = rawdoc! {};
        if let Some(error) = concern.wait(ctx.node, written.position).await {
            out.append(cstr!("writeConcernError"), error);
        }
        out.append(cstr!("ok"), 1.0);
        Ok(out)
    })
}
