//! `dropDatabase`: all collections of a database go at once.

use banyan_replication::write::catalog_ops;
use banyan_storage::{CatalogChange, Namespace};
use banyan_wire::{CommandError, ErrorCode};
use bson::rawdoc;

use super::table::{BoxFuture, CommandResult, CommandSpec, Run};
use crate::context::CommandContext;

pub static SPEC: CommandSpec = CommandSpec::new("dropDatabase", Run::Future(run))
    .aliases(&["dropdatabase"])
    .writes();

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move {
        let node = ctx.node;
        if matches!(ctx.database(), "admin" | "local" | "config") {
            return Err(CommandError::new(
                ErrorCode::IllegalOperation,
                format!("Dropping the '{}' database is prohibited.", ctx.database()),
            ));
        }
        let term = node.writable_term()?;
        loop {
            let catalog = node.store.catalog();
            let Some(database) = catalog.database(ctx.database()) else {
                break;
            };
            let names: Vec<Namespace> = database
                .collections()
                .map(|collection| collection.namespace.clone())
                .collect();
            let latched: Vec<&Namespace> = names.iter().collect();
            let _exclusive = node.namespaces.exclusive(&latched).await;
            let catalog = node.store.catalog();
            let present: Vec<_> = catalog
                .database(ctx.database())
                .into_iter()
                .flat_map(|database| database.collections())
                .collect();
            let changes: Vec<CatalogChange> = present
                .iter()
                .filter(|collection| names.contains(&collection.namespace))
                .map(|collection| CatalogChange::DropCollection { id: collection.id })
                .collect();
            if !changes.is_empty() {
                if changes.len() == present.len() {
                    catalog_ops::drop_database(node, &changes, ctx.database(), term).await?;
                } else {
                    catalog_ops::apply(node, &changes, term).await?;
                }
            }
            ctx.check_interrupt()?;
        }
        Ok(rawdoc! { "dropped": ctx.database(), "ok": 1.0 })
    })
}
