//! `listCommands`.

use std::sync::atomic::Ordering;

use banyan_access::api_version;
use banyan_access::check::Access;
use banyan_document::DocumentWriter;
use bson::RawBsonRef;

use crate::context::{CommandResult, CommandSpec, Context, run};

pub const SPEC: CommandSpec = CommandSpec::new(
    "listCommands",
    "the commands that are answered here",
    run!(run),
)
.access(Access::Anyone)
.aliases(&["listcommands"]);

async fn run(context: &Context<'_>) -> CommandResult {
    let mut out = DocumentWriter::new();
    out.begin_document("commands");
    let tests = context.router.has_test_commands.load(Ordering::Relaxed);
    for spec in context.commands.all() {
        if spec.for_tests && !tests {
            continue;
        }
        out.begin_document(spec.name);
        out.append_str("help", spec.help);
        out.begin_array("aliases");
        for (place, alias) in spec.aliases.iter().enumerate() {
            out.append_str(&place.to_string(), alias);
        }
        out.end();
        let (versions, deprecated) = api_version::versions(spec.name);
        for (field, versions) in [
            ("apiVersions", versions),
            ("deprecatedApiVersions", deprecated),
        ] {
            out.begin_array(field);
            for version in versions {
                out.push(RawBsonRef::String(version));
            }
            out.end();
        }
        out.append_bool("adminOnly", spec.admin_only);
        out.append_bool("requiresAuth", !matches!(spec.access, Access::Anyone));
        out.end();
    }
    out.end();
    out.append_f64("ok", 1.0);
    Ok(out.finish())
}
