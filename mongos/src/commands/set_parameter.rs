//! `setParameter`: a router has none that can change while it runs.

use banyan_wire::{CommandError, ErrorCode};

use super::{CommandResult, CommandSpec, Context, run};

pub const SPEC: CommandSpec = CommandSpec::new("setParameter", "changes a parameter", run!(run))
    .aliases(&["setparameter"])
    .admin_only();

async fn run(context: &Context<'_>) -> CommandResult {
    let elements = banyan_document::elements(&context.request.body).skip(1);
    let named = elements
        .map(|element| element.name())
        .find(|name| !name.starts_with('$'));
    let text = match named {
        None => "no option found to set, use '*' to get list of available".to_owned(),
        Some(name) => format!(
            "attempted to set unrecognized parameter [{name}], use help:true to see options"
        ),
    };
    Err(CommandError::new(ErrorCode::InvalidOptions, text))
}
