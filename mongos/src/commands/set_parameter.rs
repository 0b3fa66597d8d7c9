//! `setParameter`: what can change while a router runs, the limits of memory and the mode of TLS.

use banyan_query::Memory;
use banyan_query::memory::DISK_BY_DEFAULT;
use banyan_wire::tls::operating;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBson, RawBsonRef, rawdoc};

use crate::context::{CommandResult, CommandSpec, Context, run};
use crate::fields;

pub const SPEC: CommandSpec = CommandSpec::new("setParameter", "changes a parameter", run!(run))
    .aliases(&["setparameter"])
    .admin_only();

/// Generic fields that are no parameter's name.
const GENERIC: &[&str] = &[
    "lsid",
    "comment",
    "maxTimeMS",
    "writeConcern",
    "readConcern",
];

async fn run(context: &Context<'_>) -> CommandResult {
    let memory = &context.router.memory;
    let mut was = None;
    for element in banyan_document::elements(&context.request.body).skip(1) {
        let name = element.name();
        if name.starts_with('$') || GENERIC.contains(&name) {
            continue;
        }
        let before = set(memory, name, element.value())?;
        was.get_or_insert(before);
    }
    match was {
        Some(was) => Ok(rawdoc! { "was": was, "ok": 1.0 }),
        None => Err(CommandError::new(
            ErrorCode::InvalidOptions,
            "no option found to set, use '*' to get list of available",
        )),
    }
}

/// Changes a parameter and answers what it was.
fn set(memory: &Memory, name: &str, value: RawBsonRef<'_>) -> Result<RawBson, CommandError> {
    if let Some(was) = operating::set_parameter(name, value)? {
        return Ok(RawBson::String(was.to_owned()));
    }
    if name == DISK_BY_DEFAULT {
        let before = memory.disk_by_default();
        memory.set_parameter(name, i64::from(banyan_document::is_true(value)));
        return Ok(RawBson::Boolean(before));
    }
    let row = memory.parameters().find(|(row, _)| row.parameter == name);
    let Some((row, before)) = row else {
        let text = format!(
            "attempted to set unrecognized parameter [{name}], use help:true to see options"
        );
        return Err(CommandError::new(ErrorCode::InvalidOptions, text));
    };
    let bad = |text: String| Err(CommandError::new(ErrorCode::BadValue, text));
    let Some(number) = fields::number(value) else {
        return bad(format!(
            "Failed validating {name}: Unable to coerce value to integral type"
        ));
    };
    if !(row.min..=row.max).contains(&number) {
        return bad(format!(
            "Invalid value for parameter {name}: {number} is not between {} and {}",
            row.min, row.max
        ));
    }
    memory.set_parameter(name, number);
    Ok(shown(before))
}

/// As small an integer as holds it.
pub(super) fn shown(value: i64) -> RawBson {
    match i32::try_from(value) {
        Ok(small) => RawBson::Int32(small),
        Err(_) => RawBson::Int64(value),
    }
}
