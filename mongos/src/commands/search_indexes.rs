//! The commands of search indexes: they need a search service, and no shard has one.

use banyan_access::check::Access;
use banyan_access::search;
use banyan_security::Action;

use crate::context::{CommandResult, CommandSpec, Context, run};

pub const SPECS: &[CommandSpec] = &[
    CommandSpec::new("createSearchIndexes", HELP, run!(refuse))
        .access(Access::Collection(Action::CreateSearchIndexes)),
    CommandSpec::new("dropSearchIndex", HELP, run!(refuse))
        .access(Access::Collection(Action::DropSearchIndex)),
    CommandSpec::new("listSearchIndexes", HELP, run!(refuse))
        .access(Access::Collection(Action::ListSearchIndexes)),
    CommandSpec::new("updateSearchIndex", HELP, run!(refuse))
        .access(Access::Collection(Action::UpdateSearchIndex)),
];

const HELP: &str = "needs a search service";

async fn refuse(_: &Context<'_>) -> CommandResult {
    Err(search::not_enabled())
}
