//! `dropDatabase`: all collections of a database go at once.

use banyan_access::check::Access;
use banyan_replication::write::catalog_ops;
use banyan_security::Action;
use banyan_storage::CatalogChange;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, rawdoc};

use super::table::{BoxFuture, CommandResult, CommandSpec, Run};
use crate::context::CommandContext;
use crate::params::Field;

pub static SPEC: CommandSpec = CommandSpec::new("dropDatabase", Run::Future(run))
    .access(Access::Database(Action::DropDatabase))
    .aliases(&["dropdatabase"])
    .writes();

/// It has to be meant: 1.
fn check_argument(ctx: &CommandContext<'_>) -> Result<(), CommandError> {
    let value = ctx.argument().unwrap_or(RawBsonRef::Null);
    let name = ctx.spec.name;
    let given = Field {
        command: name,
        name,
        value,
    };
    match given.i64()? {
        1 => Ok(()),
        _ => Err(CommandError::new(
            ErrorCode::Location(5255100),
            "Have to pass 1 as 'drop' parameter",
        )),
    }
}

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move {
        let node = ctx.node;
        check_argument(ctx)?;
        if matches!(ctx.database(), "admin" | "local" | "config") {
            return Err(CommandError::new(
                ErrorCode::IllegalOperation,
                format!("Dropping the '{}' database is prohibited.", ctx.database()),
            ));
        }
        let term = node.replica.writable_term()?;
        let collections = || -> Vec<_> {
            let catalog = node.replica.store.catalog();
            let database = catalog.database(ctx.database()).into_iter();
            database
                .flat_map(|database| database.collections().cloned())
                .collect()
        };
        let names = || {
            let collections = collections().into_iter();
            collections
                .map(|collection| collection.namespace.clone())
                .collect()
        };
        let locks = node.replica.locks.database_exclusive(ctx.database(), names);
        let _locks = ctx.write_context().lock(locks, None).await?;
        let changes: Vec<CatalogChange> = collections()
            .iter()
            .map(|collection| CatalogChange::DropCollection { id: collection.id })
            .collect();
        if !changes.is_empty() {
            catalog_ops::drop_database(&node.replica, &changes, ctx.database(), term).await?;
        }
        node.profiler.forget(ctx.database());
        Ok(rawdoc! { "dropped": ctx.database(), "ok": 1.0 })
    })
}
