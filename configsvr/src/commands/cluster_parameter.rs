//! `setClusterParameter` in a cluster.

use banyan_node::commands::cluster_parameter::set_from;
use banyan_node::commands::table::{CommandSpec, boxed, primary_only};

pub static SPEC: CommandSpec = primary_only("_configsvrSetClusterParameter", |ctx| {
    boxed(async move {
        let field = ctx.required("_configsvrSetClusterParameter")?;
        set_from(ctx, field).await
    })
});
