//! `getParameter`: `{getParameter: 1, name: 1}`, or `"*"` for all.

use banyan_access::check::Access;
use banyan_security::Action;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBson, RawBsonRef, RawDocument, RawDocumentBuf, cstr};

use super::table::{CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;
use crate::params;

pub static SPEC: CommandSpec = CommandSpec::new("getParameter", Run::Inline(run))
    .access(Access::Cluster(Action::GetParameter))
    .aliases(&["getparameter"])
    .needs(Needs::Any)
    .admin_only()
    .lenient();

fn run(ctx: &CommandContext<'_>) -> CommandResult {
    let parameters = &ctx.node.parameters;
    let mut reply = RawDocumentBuf::new();
    let everything = match ctx.argument() {
        Some(RawBsonRef::String(star)) => star == "*",
        Some(RawBsonRef::Document(options)) => wants_all(options)?,
        _ => false,
    };
    let mut found = 0;
    if everything {
        for (name, value) in parameters.all() {
            append(&mut reply, name, value);
            found += 1;
        }
    } else {
        for (name, _) in ctx.body().iter().flatten() {
            let name = name.as_str();
            let point = || ctx.node.fail_points.parameter(name).map(RawBson::Document);
            if let Some(value) = parameters.get(name).or_else(point) {
                append(&mut reply, name, value);
                found += 1;
            }
        }
    }
    if found == 0 {
        return Err(CommandError::new(
            ErrorCode::InvalidOptions,
            "no option found to get",
        ));
    }
    reply.append(cstr!("ok"), 1.0);
    Ok(reply)
}

/// Whether options ask for all parameters.
fn wants_all(options: &RawDocument) -> Result<bool, CommandError> {
    let mut all = false;
    for field in params::fields("getParameter", options) {
        match field.name {
            "allParameters" if !field.is_null() => all = field.bool()?,
            "showDetails" if !field.is_null() => drop(field.bool()?),
            "allParameters" | "showDetails" => {}
            unknown => return Err(params::unknown_field("getParameter", unknown)),
        }
    }
    Ok(all)
}

fn append(reply: &mut RawDocumentBuf, name: &str, value: RawBson) {
    // A parameter's name is one of ours, and none of them holds a NUL.
    if let Ok(name) = bson::raw::CString::try_from(name) {
        reply.append(name, value);
    }
}
