//! Logical sessions: they exist by being named, so there is nothing to keep here.

use bson::spec::BinarySubtype;
use bson::{Binary, rawdoc};

use super::{CommandResult, CommandSpec, Context, run};

pub const SPECS: &[CommandSpec] = &[
    CommandSpec::new("startSession", "names a new session", run!(start)),
    CommandSpec::new("refreshSessions", "keeps sessions alive", run!(acknowledge)),
    CommandSpec::new("endSessions", "forgets sessions", run!(acknowledge)),
    CommandSpec::new("killSessions", "forgets sessions", run!(acknowledge)),
    CommandSpec::new("logout", "forgets who is logged in", run!(acknowledge)),
];

async fn start(_: &Context<'_>) -> CommandResult {
    let mut bytes: [u8; 16] = rand::random();
    // The marks of a random UUID.
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let id = Binary {
        subtype: BinarySubtype::Uuid,
        bytes: bytes.to_vec(),
    };
    Ok(rawdoc! {"id": {"id": id}, "timeoutMinutes": 30, "ok": 1.0})
}

async fn acknowledge(_: &Context<'_>) -> CommandResult {
    Ok(rawdoc! {"ok": 1.0})
}
