//! `connectionStatus`: who the client is; without access control, nobody.

use bson::{RawArrayBuf, cstr, rawdoc};

use super::table::{CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;

pub static SPEC: CommandSpec = CommandSpec::new("connectionStatus", Run::Inline(run))
    .needs(Needs::Any)
    .fields(&["showPrivileges"]);

fn run(ctx: &CommandContext<'_>) -> CommandResult {
    let mut auth = rawdoc! {
        "authenticatedUsers": RawArrayBuf::new(),
        "authenticatedUserRoles": RawArrayBuf::new(),
    };
    if ctx
        .field("showPrivileges")
        .map(|field| field.bool())
        .transpose()?
        .unwrap_or(false)
    {
        auth.append(cstr!("authenticatedUserPrivileges"), RawArrayBuf::new());
    }
    Ok(rawdoc! { "authInfo": auth, "ok": 1.0 })
}
