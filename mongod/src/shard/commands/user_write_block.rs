//! `setUserWriteBlockMode` in a cluster, on one of its shards.

use banyan_node::commands::set_user_write_block_mode::set_here;
use banyan_node::commands::table::{CommandSpec, boxed, primary_only};

pub static SPEC: CommandSpec = primary_only("_shardsvrSetUserWriteBlockMode", |ctx| {
    boxed(async move {
        let blocks = ctx.required("global")?.strict_bool()?;
        set_here(ctx, blocks).await
    })
});
