//! `listCommands`.

use banyan_access::check::Access;
use banyan_document::DocumentWriter;

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
    for spec in context.commands.all() {
        out.begin_document(spec.name);
        out.append_str("help", spec.help);
        out.append_bool("adminOnly", spec.admin_only);
        out.append_bool("requiresAuth", !matches!(spec.access, Access::Anyone));
        out.end();
    }
    out.end();
    out.append_f64("ok", 1.0);
    Ok(out.finish())
}
