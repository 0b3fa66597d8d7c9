//! `profile`: a router keeps nothing of what it runs; its shards do, each for itself.

use banyan_access::check::Access;
use banyan_access::reads_and_writes;
use banyan_wire::params::{Field, number};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, rawdoc};

use crate::context::{CommandResult, CommandSpec, Context, run};

pub const SPEC: CommandSpec = CommandSpec::new("profile", "not through a router", run!(run))
    .access(Access::Checked(reads_and_writes::profile));

async fn run(context: &Context<'_>) -> CommandResult {
    let value = context.request.first_value().unwrap_or(RawBsonRef::Null);
    let field = Field {
        command: "profile",
        name: "profile",
        value,
    };
    let Some(level) = number(value) else {
        return Err(field.wrong_type("types '[long, int, decimal, double']"));
    };
    if !(-1..=0).contains(&level) {
        return Err(CommandError::new(
            ErrorCode::BadValue,
            "Profiling is not permitted on mongoS: the 'profile' field should be 0 to change \
             'slowms', 'sampleRate' or 'filter' settings for logging, or -1 to view current values",
        ));
    }
    let asked = ["slowms", "sampleRate", "filter"];
    if asked.iter().any(|name| context.request.get(name).is_some()) {
        return Err(CommandError::new(
            ErrorCode::NotImplemented,
            "a router does not log slow operations; its shards do",
        ));
    }
    Ok(rawdoc! {"was": 0, "ok": 1.0})
}
