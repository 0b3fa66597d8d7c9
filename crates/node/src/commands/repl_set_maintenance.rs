//! `replSetMaintenance`: a secondary goes to RECOVERING and back.

use banyan_access::check::Access;
use banyan_security::Action;
use bson::{RawBsonRef, rawdoc};

use super::table::{CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;
use crate::params;

pub static SPEC: CommandSpec = CommandSpec::new("replSetMaintenance", Run::Inline(run))
    .access(Access::Cluster(Action::ReplSetStateChange))
    .needs(Needs::Any)
    .admin_only()
    .lenient()
    .help("takes a secondary out of service, or puts it back");

fn run(ctx: &CommandContext<'_>) -> CommandResult {
    // By what MongoDB takes for true.
    let begin = match ctx.argument() {
        None | Some(RawBsonRef::Null | RawBsonRef::Undefined) => false,
        Some(RawBsonRef::Boolean(value)) => value,
        Some(RawBsonRef::Double(value)) => value != 0.0,
        Some(value) => params::number(value) != Some(0),
    };
    ctx.node.replication.maintain(begin)?;
    Ok(rawdoc! { "ok": 1.0 })
}
