//! What a command would make of a collection's list of indexes.

use banyan_storage::Namespace;
use banyan_wire::{CommandError, ErrorCode};
use bson::RawDocumentBuf;

use crate::commands::{coll_mod, create_indexes, drop_indexes};
use crate::context::CommandContext;
use crate::index_changes::{list, missing};

/// What a command would make of a list.
pub struct Planned {
    pub before: Vec<RawDocumentBuf>,
    pub after: Vec<RawDocumentBuf>,
    /// What the command answers.
    pub reply: RawDocumentBuf,
}

/// Computes what `createIndexes`, `dropIndexes` or `collMod` would do, with all that they check
/// but the documents.
pub fn plan(ctx: &CommandContext<'_>) -> Result<Planned, CommandError> {
    let namespace = Namespace::new(ctx.database(), ctx.collection()?);
    let catalog = ctx.node.replica.store.catalog();
    let collection = catalog
        .find(&namespace)
        .ok_or_else(|| missing(&namespace))?;
    let (after, reply) = match ctx.spec.name {
        "createIndexes" => create_indexes::plan(ctx, collection)?,
        "dropIndexes" => drop_indexes::plan(ctx, collection)?,
        "collMod" => coll_mod::plan(ctx, collection)?,
        other => {
            let text = format!("{other} does not change indexes");
            return Err(CommandError::new(ErrorCode::IllegalOperation, text));
        }
    };
    Ok(Planned {
        before: list(collection),
        after,
        reply,
    })
}
