//! `setFeatureCompatibilityVersion`: there is one version, and it is always in force. To ask for it is
//! granted, to ask for another refused.

use banyan_access::check::Access;
use banyan_security::Action;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, rawdoc};

use super::table::{CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;
use crate::parameters::FEATURE_VERSION;
use crate::params::Field;

pub static SPEC: CommandSpec = CommandSpec::new("setFeatureCompatibilityVersion", Run::Inline(run))
    .access(Access::Cluster(Action::SetFeatureCompatibilityVersion))
    .writes()
    .needs(Needs::Primary)
    .admin_only()
    .help("sets the version whose features may be used")
    .fields(&["confirm", "fromConfigServer"]);

fn run(ctx: &CommandContext<'_>) -> CommandResult {
    let asked = match ctx.argument() {
        Some(RawBsonRef::String(version)) => version,
        value => {
            let field = Field {
                command: SPEC.name,
                name: SPEC.name,
                value: value.unwrap_or(RawBsonRef::Null),
            };
            return Err(field.wrong_type("type 'string'"));
        }
    };
    for flag in ["confirm", "fromConfigServer"] {
        ctx.field(flag)
            .map(|field| field.strict_bool())
            .transpose()?;
    }
    if asked != FEATURE_VERSION {
        return Err(CommandError::new(
            ErrorCode::Location(4_926_900),
            format!(
                "Invalid feature compatibility version value '{asked}'; expected '{FEATURE_VERSION}'"
            ),
        ));
    }
    Ok(rawdoc! { "ok": 1.0 })
}
