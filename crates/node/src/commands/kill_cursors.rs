//! `killCursors`: the client wants no more of them.

use banyan_wire::{CommandError, ErrorCode};
use bson::{RawArrayBuf, RawBsonRef, rawdoc};

use super::table::{CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;

pub static SPEC: CommandSpec = CommandSpec::new("killCursors", Run::Inline(run))
    .aliases(&["killcursors"])
    .needs(Needs::Any)
    .in_transaction()
    .fields(&["cursors"]);

fn run(ctx: &CommandContext<'_>) -> CommandResult {
    let collection = match ctx.argument() {
        Some(RawBsonRef::String(collection)) => collection,
        _ => {
            return Err(CommandError::new(
                ErrorCode::InvalidNamespace,
                "collection name has invalid type",
            ));
        }
    };
    let namespace = format!("{}.{collection}", ctx.database());
    // The legacy opcode knows ids alone.
    let anywhere = namespace == "admin.$cmd";
    let mut killed = RawArrayBuf::new();
    let mut not_found = RawArrayBuf::new();
    for id in ctx.required("cursors")?.array()? {
        let id = match id {
            Ok(RawBsonRef::Int64(id)) => id,
            Ok(RawBsonRef::Int32(id)) => i64::from(id),
            _ => {
                return Err(CommandError::new(
                    ErrorCode::TypeMismatch,
                    "BSON field 'killCursors.cursors' must hold values of type 'long'",
                ));
            }
        };
        let found = match anywhere {
            true => ctx.node.cursors.kill_any(id),
            false => ctx.node.cursors.kill(id, &namespace),
        };
        if found {
            killed.push(id)
        } else {
            not_found.push(id)
        }
    }
    Ok(rawdoc! {
        "cursorsKilled": killed,
        "cursorsNotFound": not_found,
        "cursorsAlive": RawArrayBuf::new(),
        "cursorsUnknown": RawArrayBuf::new(),
        "ok": 1.0,
    })
}
