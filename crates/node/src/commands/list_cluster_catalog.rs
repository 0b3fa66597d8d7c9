//! `$listClusterCatalog` on a member: a set is a cluster of its own, in which nothing is sharded.

use banyan_query::cluster_catalog::{self, Options, Placement, STAGE};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawDocument, RawDocumentBuf};

use super::list_collections::all;
use crate::context::CommandContext;
use crate::errors;

/// Of the collections of a database, or, of `admin`, of all but the members' own.
pub fn documents(
    ctx: &CommandContext<'_>,
    collection: Option<&str>,
    argument: &RawDocument,
) -> Result<Vec<RawDocumentBuf>, CommandError> {
    let options = Options::parse(argument).map_err(errors::query)?;
    if collection.is_some() {
        return Err(CommandError::new(
            ErrorCode::InvalidNamespace,
            format!("{STAGE} must be run against a database with {{aggregate: 1}}"),
        ));
    }
    let databases = match ctx.database() {
        "admin" => {
            let catalog = ctx.node.replica.store.catalog();
            let names = catalog
                .databases()
                .map(|database| database.name.to_string());
            names.filter(|name| name != "local").collect()
        }
        name => vec![name.to_owned()],
    };
    let placement = Placement::default();
    let mut shown = Vec::new();
    for database in &databases {
        let described = all(ctx, database)?;
        let documents = described
            .iter()
            .map(|described| cluster_catalog::document(database, described, &placement, options));
        shown.extend(documents);
    }
    Ok(shown)
}
