//! `autoCompact`: turns compaction in the background on or off.

use banyan_access::check::Access;
use banyan_security::Action;
use banyan_wire::{CommandError, ErrorCode};
use bson::rawdoc;

use super::table::{CommandResult, CommandSpec, Needs, Run};
use crate::auto_compaction::Options;
use crate::context::CommandContext;

pub static SPEC: CommandSpec = CommandSpec::new("autoCompact", Run::Inline(run))
    .access(Access::Cluster(Action::Compact))
    .needs(Needs::Data)
    .help("gives disk space back that is not used, again and again in the background")
    .fields(&["freeSpaceTargetMB", "runOnce"]);

const MEGABYTE: u64 = 1 << 20;
const TARGET_MEGABYTES: u64 = 20;

fn run(ctx: &CommandContext<'_>) -> CommandResult {
    let is_wanted = ctx.required("autoCompact")?.bool()?;
    let megabytes = match ctx.field("freeSpaceTargetMB") {
        Some(field) => at_least_one(field.i64()?)?,
        None => TARGET_MEGABYTES,
    };
    let once = match ctx.field("runOnce") {
        Some(field) => field.bool()?,
        None => false,
    };
    let node = ctx.node;
    if !is_wanted {
        node.auto_compaction.stop();
        return Ok(rawdoc! { "ok": 1.0 });
    }
    let options = Options {
        target_bytes: megabytes.saturating_mul(MEGABYTE),
        once,
    };
    let store = node.replica.store.clone();
    match node.auto_compaction.start(store, options, &node.info.stop) {
        true => Ok(rawdoc! { "ok": 1.0 }),
        false => Err(CommandError::new(
            ErrorCode::ObjectIsBusy,
            "background compaction is active already; it has to be disabled before it is enabled \
             with other options",
        )),
    }
}

fn at_least_one(megabytes: i64) -> Result<u64, CommandError> {
    match u64::try_from(megabytes) {
        Ok(megabytes) if megabytes > 0 => Ok(megabytes),
        _ => Err(CommandError::new(
            ErrorCode::Location(51024),
            format!(
                "BSON field 'freeSpaceTargetMB' value must be >= 1, actual value '{megabytes}'"
            ),
        )),
    }
}
