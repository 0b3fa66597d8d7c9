//! `replSetGetConfig`: the set's configuration.

use banyan_access::check::Access;
use banyan_security::Action;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, cstr, rawdoc};

use super::table::{CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;

pub static SPEC: CommandSpec = CommandSpec::new("replSetGetConfig", Run::Inline(run))
    .access(Access::Cluster(Action::ReplSetGetConfig))
    .aliases(&["replsetgetconfig"])
    .needs(Needs::Any)
    .admin_only()
    .lenient()
    .help("the replica set's configuration")
    .fields(&["commitmentStatus"])
    .ignored(&["$_internalIncludeNewlyAdded"]);

fn run(ctx: &CommandContext<'_>) -> CommandResult {
    let config = ctx.node.replication.require_shown_config()?;
    let wants_commitment = match ctx.field("commitmentStatus") {
        None => false,
        Some(field) => match field.value {
            RawBsonRef::String(_) | RawBsonRef::Document(_) | RawBsonRef::Array(_) => {
                return Err(CommandError::new(
                    ErrorCode::TypeMismatch,
                    format!(
                        "Expected boolean or number type for field \"commitmentStatus\", found {}",
                        banyan_document::kind::name(&field.value)
                    ),
                ));
            }
            _ => field.bool()?,
        },
    };
    if wants_commitment && !ctx.node.replica.is_primary() {
        return Err(CommandError::new(
            ErrorCode::NotWritablePrimary,
            "commitmentStatus is only supported on primary.",
        ));
    }
    let mut out = rawdoc! { "config": config.to_document() };
    if wants_commitment {
        // A configuration is in use once it's committed, never before.
        out.append(cstr!("commitmentStatus"), true);
    }
    out.append(cstr!("ok"), 1.0);
    Ok(out)
}
