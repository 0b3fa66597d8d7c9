//! `setQuerySettings`, `removeQuerySettings` in a cluster.

use banyan_node::commands::query_settings::{remove_from, set_from};
use banyan_node::commands::table::{CommandSpec, boxed, primary_only};

pub static SET: CommandSpec =
    primary_only("_configsvrSetQuerySettings", |ctx| boxed(set_from(ctx))).fields(&["settings"]);

pub static REMOVE: CommandSpec = primary_only("_configsvrRemoveQuerySettings", |ctx| {
    boxed(remove_from(ctx))
});
