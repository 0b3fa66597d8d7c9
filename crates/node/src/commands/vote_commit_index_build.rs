//! `voteCommitIndexBuild`: a secondary tells the primary that it has loaded an index.

use banyan_access::check::Access;
use bson::{RawBsonRef, rawdoc};

use super::table::{CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;

pub static SPEC: CommandSpec = CommandSpec::new("voteCommitIndexBuild", Run::Inline(run))
    .access(Access::Member)
    .needs(Needs::Primary)
    .admin_only()
    .help("among members: one has loaded the keys of an index build")
    .fields(&["hostAndPort"]);

fn run(ctx: &CommandContext<'_>) -> CommandResult {
    let field = ctx.required("voteCommitIndexBuild")?;
    let build = match field.value {
        RawBsonRef::Binary(binary) => binary.bytes.try_into().ok(),
        _ => None,
    };
    let build = build.ok_or_else(|| field.wrong_type("type 'binData'"))?;
    let host = ctx.required("hostAndPort")?.str()?;
    ctx.node.index_builds.vote(&build, host);
    Ok(rawdoc! { "ok": 1.0 })
}
