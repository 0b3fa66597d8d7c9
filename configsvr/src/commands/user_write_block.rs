//! `setUserWriteBlockMode` in a cluster.

use banyan_node::commands::table::{CommandSpec, boxed, primary_only};
use banyan_wire::{CommandError, ErrorCode};
use bson::rawdoc;

use crate::role::ConfigRole;
use crate::user_writes::set;

pub static SPEC: CommandSpec = primary_only("_configsvrSetUserWriteBlockMode", |ctx| {
    boxed(async move {
        let role = ConfigRole::shared(ctx)?;
        let blocks = ctx.required("global")?.strict_bool()?;
        // On a task of its own: a connection that breaks must not leave it half done.
        let task = tokio::spawn(async move { set(&role, blocks).await });
        task.await
            .map_err(|error| CommandError::new(ErrorCode::InternalError, error.to_string()))??;
        Ok(rawdoc! { "ok": 1.0 })
    })
});
