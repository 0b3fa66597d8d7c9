//! `listCommands`.

use banyan_document::DocumentWriter;

use super::{CommandResult, CommandSpec, Context, TABLE, run};

pub const SPEC: CommandSpec = CommandSpec::new(
    "listCommands",
    "the commands that are answered here",
    run!(run),
)
.aliases(&["listcommands"]);

async fn run(_: &Context<'_>) -> CommandResult {
    let mut out = DocumentWriter::new();
    out.begin_document("commands");
    for spec in TABLE.iter().flat_map(|group| group.iter()) {
        out.begin_document(spec.name);
        out.append_str("help", spec.help);
        out.append_bool("adminOnly", spec.admin_only);
        out.append_bool("requiresAuth", false);
        out.end();
    }
    out.end();
    out.append_f64("ok", 1.0);
    Ok(out.finish())
}
