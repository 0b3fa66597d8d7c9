//! `listCommands`: the table, told to a client.

use banyan_access::api_version;
use banyan_access::check::Access;
use bson::{RawArrayBuf, RawDocumentBuf, rawdoc};

use super::table::{CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;

pub static SPEC: CommandSpec = CommandSpec::new("listCommands", Run::Inline(run))
    .access(Access::Anyone)
    .needs(Needs::Any)
    .lenient();

fn run(ctx: &CommandContext<'_>) -> CommandResult {
    let mut commands = RawDocumentBuf::new();
    for spec in ctx.table.all() {
        // A leading underscore marks what members say to each other.
        let Ok(name) = bson::raw::CString::try_from(spec.name) else {
            continue;
        };
        let (versions, deprecated) = api_version::versions(spec.name);
        let aliases: RawArrayBuf = spec.aliases.iter().copied().collect();
        commands.append(
            name,
            rawdoc! {
                "help": spec.help,
                "aliases": aliases,
                "requiresAuth": spec.needs != Needs::Any,
                "secondaryOk": spec.needs != Needs::Primary,
                "adminOnly": spec.admin_only,
                "apiVersions": versions.iter().copied().collect::<RawArrayBuf>(),
                "deprecatedApiVersions": deprecated.iter().copied().collect::<RawArrayBuf>(),
            },
        );
    }
    Ok(rawdoc! { "commands": commands, "ok": 1.0 })
}
