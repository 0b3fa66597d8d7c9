//! `connectionStatus`: who is logged in. Nobody is: there is no access control.

use bson::raw::cstr;
use bson::{RawArrayBuf, rawdoc};

use crate::context::{CommandResult, CommandSpec, Context, run};
use crate::fields;

pub const SPEC: CommandSpec = CommandSpec::new("connectionStatus", "who is logged in", run!(run));

async fn run(context: &Context<'_>) -> CommandResult {
    let mut who = rawdoc! {
        "authenticatedUsers": RawArrayBuf::new(),
        "authenticatedUserRoles": RawArrayBuf::new(),
    };
    if fields::get_flag(&context.request.body, "showPrivileges") {
        who.append(cstr!("authenticatedUserPrivileges"), RawArrayBuf::new());
    }
    Ok(rawdoc! {"authInfo": who, "ok": 1.0})
}
