//! The commands of search indexes: they need a search service, and this server has none.

use banyan_access::check::Access;
use banyan_access::search;
use banyan_security::Action;

use super::table::{CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;

pub static CREATE: CommandSpec = refused("createSearchIndexes", Action::CreateSearchIndexes);
pub static DROP: CommandSpec = refused("dropSearchIndex", Action::DropSearchIndex);
pub static LIST: CommandSpec = refused("listSearchIndexes", Action::ListSearchIndexes);
pub static UPDATE: CommandSpec = refused("updateSearchIndex", Action::UpdateSearchIndex);

const fn refused(name: &'static str, action: Action) -> CommandSpec {
    CommandSpec::new(name, Run::Inline(refuse))
        .access(Access::Collection(action))
        .needs(Needs::Any)
        .help("needs a search service")
        .lenient()
}

fn refuse(_: &CommandContext<'_>) -> CommandResult {
    Err(search::not_enabled())
}
