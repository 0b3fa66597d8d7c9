//! Commands about a whole database, or about collections in ways that only the shard that is home
//! to the database answers.

use banyan_access::check::Access;
use banyan_access::reads_and_writes;
use banyan_security::Action;
use std::sync::Arc;

use banyan_wire::{CommandError, ErrorCode};
use bson::{RawDocument, rawdoc};

use super::{forward, index_changes, pass};
use crate::catalog::Database;
use crate::context::{CommandResult, CommandSpec, Context, run};

pub const SPECS: &[CommandSpec] = &[
    CommandSpec::new("collMod", "changes a collection's options", run!(coll_mod))
        .access(Access::Checked(reads_and_writes::coll_mod)),
    CommandSpec::new("validate", "checks a collection", run!(validate))
        .access(Access::Collection(Action::Validate)),
    CommandSpec::new(
        "convertToCapped",
        "makes a collection a capped one",
        run!(convert_to_capped),
    )
    .access(Access::Checked(reads_and_writes::convert_to_capped)),
    CommandSpec::new(
        "cloneCollectionAsCapped",
        "copies a collection into a capped one",
        run!(convert_to_capped),
    )
    .access(Access::Checked(reads_and_writes::clone_as_capped)),
    CommandSpec::new("renameCollection", "renames a collection", run!(rename))
        .access(Access::Checked(reads_and_writes::rename))
        .admin_only(),
];

/// The database that the request is for; `None` if there is none of that name.
pub async fn route(context: &Context<'_>) -> Result<Option<Arc<Database>>, CommandError> {
    context
        .router
        .catalog
        .database(&context.request.database)
        .await
}

/// Passes the request, which opens a cursor, on to the database's shard.
pub async fn forward_cursor(
    context: &Context<'_>,
    database: &Database,
    dropped: &[&str],
    added: &RawDocument,
) -> CommandResult {
    let request = context.request;
    let outgoing = forward::passed_on(&request.body, dropped, added);
    let request_options = context.request_options(false);
    let answer = context
        .router
        .send(&database.primary, request_options, &outgoing)
        .await?;
    Ok(forward::adopt_cursor(context, answer))
}

/// Hiding an index of a sharded collection is a change of its indexes.
async fn coll_mod(context: &Context<'_>) -> CommandResult {
    let ns = context.namespace()?;
    let hides = context.request.get("index").is_some();
    let hidden = context.router.with_route(&ns, false, |route| async move {
        match route.filter(|route| hides && route.is_sharded()) {
            Some(route) => index_changes::coordinate(context, &route).await.map(Some),
            None => Ok(None),
        }
    });
    match hidden.await? {
        Some((reply, _)) => Ok(reply),
        None => on_all_owners(context, true).await,
    }
}

async fn validate(context: &Context<'_>) -> CommandResult {
    on_all_owners(context, false).await
}

/// Where the collection's indexes are built.
pub async fn on_owners(context: &Context<'_>) -> CommandResult {
    on_all_owners(context, true).await
}

/// Runs on every shard that holds a part of the collection; the first one's reply stands for all.
async fn on_all_owners(context: &Context<'_>, writes: bool) -> CommandResult {
    let ns = context.namespace()?;
    context
        .router
        .with_route(&ns, false, |route| async move {
            let Some(route) = route else {
                let text = format!("ns does not exist: {}", context.namespace()?);
                return Err(CommandError::new(ErrorCode::NamespaceNotFound, text));
            };
            let answers = forward::gather_from_owners(context, &route, writes).await?;
            Ok(answers
                .into_iter()
                .next()
                .map_or_else(|| rawdoc! {"ok": 1.0}, |a| a.reply))
        })
        .await
}

/// A copy lies where its source does; capped collections are not sharded.
async fn convert_to_capped(context: &Context<'_>) -> CommandResult {
    let ns = context.namespace()?;
    context
        .router
        .with_route(&ns, false, |route| async move {
            let Some(route) = route else {
                let text = format!("source collection {} does not exist", context.namespace()?);
                return Err(CommandError::new(ErrorCode::NamespaceNotFound, text));
            };
            if route.is_sharded() || copies_onto_sharded(context).await? {
                let name = &context.request.name;
                let text = format!("can't do command: {name} on a sharded collection");
                return Err(CommandError::new(ErrorCode::IllegalOperation, text));
            }
            let shard = route.database.primary.clone();
            Ok(forward::forward(context, &route, &shard, true).await?.reply)
        })
        .await
}

async fn copies_onto_sharded(context: &Context<'_>) -> Result<bool, CommandError> {
    let Some(bson::RawBsonRef::String(to)) = context.request.get("toCollection") else {
        return Ok(false);
    };
    let ns = format!("{}.{to}", context.request.database);
    let route = context.router.catalog.route(&ns).await?;
    Ok(route.is_some_and(|route| route.is_sharded()))
}

async fn rename(context: &Context<'_>) -> CommandResult {
    let request = context.request;
    let from = crate::fields::full_name(request)?;
    let to = match crate::fields::required(request, "to")? {
        bson::RawBsonRef::String(to) => to.to_owned(),
        _ => {
            let text = "BSON field 'renameCollection.to' is the wrong type, expected type 'string'";
            return Err(CommandError::new(ErrorCode::TypeMismatch, text));
        }
    };
    let reply = pass::to_config(context, "_configsvrRenameCollection", &[]).await;
    context.router.catalog.forget(&from);
    context.router.catalog.forget(&to);
    reply
}
