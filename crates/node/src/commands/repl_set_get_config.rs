//! `replSetGetConfig`: the set's configuration.

use bson::rawdoc;

use super::table::{CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;

pub static SPEC: CommandSpec = CommandSpec::new("replSetGetConfig", Run::Inline(run))
    .aliases(&["replsetgetconfig"])
    .needs(Needs::Any)
    .admin_only()
    .help("the replica set's configuration")
    .fields(&["commitmentStatus"])
    .ignored(&["$_internalIncludeNewlyAdded"]);

fn run(ctx: &CommandContext<'_>) -> CommandResult {
    let config = ctx.node.replication.require_config()?;
    let mut out = rawdoc! { "config": config.to_document() };
    let wants_commitment = match ctx.field("commitmentStatus") {
        Some(field) => field.bool()?,
        None => false,
    };
    if wants_commitment {
        // A configuration is in use once it's committed, never before.
        out.append(bson::cstr!("commitmentStatus"), true);
    }
    out.append(bson::cstr!("ok"), 1.0);
    Ok(out)
}
