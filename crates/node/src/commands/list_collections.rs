//! `listCollections`: the collections of a database, with their options.

use std::sync::Arc;

use banyan_access::check::Access;
use banyan_access::identity::{self, Identity};
use banyan_access::listing;
use banyan_access::reads_and_writes;
use banyan_document::time_series::visible_name;
use banyan_query::view;
use banyan_replication::time_series;
use banyan_storage::Collection;
use banyan_wire::{CommandError, OWN_CONNECTION_ID};
use bson::{RawDocument, RawDocumentBuf, cstr, rawdoc};

use super::clustered::CLUSTERED;
use super::table::{BoxFuture, CommandResult, CommandSpec, Run};
use crate::context::CommandContext;
use crate::cursors::first;
use crate::names::check_database_name;
use crate::params::{self, Field};
use crate::views;
use crate::virtual_collections::local;

pub static SPEC: CommandSpec = CommandSpec::new("listCollections", Run::Future(run))
    .access(Access::Checked(reads_and_writes::list_collections))
    .aliases(&["listcollections"])
    .fields(&["filter", "nameOnly", "cursor", "authorizedCollections"])
    .form(check_form)
    .ignored(&["includePendingDrops"])
    .computes();

/// What a field has to be, whatever the others are.
fn check_form(field: Field<'_>) -> Result<(), CommandError> {
    match field.name {
        "authorizedCollections" if !field.is_null() => field.strict_bool().map(drop),
        "includePendingDrops" => field.bool().map(drop),
        _ => Ok(()),
    }
}

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move {
        let catalog = ctx.node.replica.store.catalog();
        // Views lie in storage, and a filter may be a script.
        let looks_further = ctx.field("filter").is_some()
            || catalog.get(ctx.database(), view::COLLECTION).is_some();
        match looks_further {
            true => ctx.compute(|| list(ctx)).await,
            false => list(ctx),
        }
    })
}

fn list(ctx: &CommandContext<'_>) -> CommandResult {
    check_database_name(ctx.database())?;
    let filter = first::list_filter(ctx, &first::scripted(ctx))?;
    let name_only = ctx
        .field("nameOnly")
        .filter(|field| !field.is_null())
        .map(|field| field.strict_bool())
        .transpose()?
        .unwrap_or(false);
    let only_reached = only_reached(ctx);
    let is_hidden = |name: &str| {
        only_reached
            .as_ref()
            .is_some_and(|identity| !listing::reaches(identity, ctx.database(), name))
    };
    let mut listed = Vec::new();
    for described in all(ctx, ctx.database())? {
        let name = described.get_str("name").unwrap_or_default();
        if is_hidden(name) {
            continue;
        }
        // Who asks for names asks among those that are as they are then shown.
        let described = match name_only {
            true => brief(&described),
            false => described,
        };
        if first::is_listed(filter.as_ref(), &described)? {
            listed.push(described);
        }
    }
    first::reply_with_list(
        ctx,
        format!("{}.$cmd.listCollections", ctx.database()),
        listed,
    )
}

/// All collections of a database, with everything that is told of them: those with records, then views,
/// and those of the server.
pub(super) fn all(
    ctx: &CommandContext<'_>,
    database: &str,
) -> Result<Vec<RawDocumentBuf>, CommandError> {
    let (catalog, snapshot) = ctx.node.replica.view();
    let collections = catalog.database(database).into_iter();
    let collections = collections.flat_map(|database| database.collections());
    let mut all = Vec::new();
    for found in collections {
        // A time-series collection stands before its buckets.
        all.extend(time_series(found));
        all.push(describe(found));
    }
    for definition in views::definitions(&catalog, &snapshot, database, ctx.slot())? {
        if let Some(name) = view::name(&definition, database) {
            all.push(rawdoc! {
                "name": name,
                "type": "view",
                "options": view::options(&definition),
                "info": { "readOnly": true },
            });
        }
    }
    let own = local::collections(ctx.node, database).into_iter();
    all.extend(own.map(|(name, options)| {
        rawdoc! {
            "name": name,
            "type": "collection",
            "options": options,
            "info": { "readOnly": true },
        }
    }));
    Ok(all)
}

/// Whose collections alone are shown.
fn only_reached(ctx: &CommandContext<'_>) -> Option<Arc<Identity>> {
    if !ctx.node.access.is_enforced() || ctx.conn.id == OWN_CONNECTION_ID {
        return None;
    }
    listing::collections(identity::known(ctx.conn), ctx.database(), ctx.body())
}

/// For who asks for names only.
fn brief(described: &RawDocument) -> RawDocumentBuf {
    let mut brief = RawDocumentBuf::new();
    for field in [cstr!("name"), cstr!("type")] {
        if let Some(value) = banyan_document::field(described, field.as_str()) {
            brief.append(field, value);
        }
    }
    brief
}

/// The time-series collection whose buckets these are.
fn time_series(buckets: &Collection) -> Option<RawDocumentBuf> {
    time_series::of(buckets)?;
    let name = visible_name(buckets.namespace.collection())?;
    let mut options = RawDocumentBuf::new();
    for option in [
        cstr!("collation"),
        cstr!("expireAfterSeconds"),
        cstr!("timeseries"),
    ] {
        if let Ok(Some(value)) = buckets.options.get(option.as_str()) {
            options.append(option, value);
        }
    }
    Some(rawdoc! {
        "name": name,
        "type": "timeseries",
        "options": options,
        "info": { "readOnly": false },
    })
}

/// What a collection was made with. That buckets lie in the order of their `_id` needs no index of a
/// name.
fn options(collection: &Collection) -> RawDocumentBuf {
    if time_series::of(collection).is_none() {
        return collection.options.clone();
    }
    let mut options = RawDocumentBuf::new();
    for (option, value) in collection.options.iter().flatten() {
        match option.as_str() {
            CLUSTERED => options.append(option, true),
            _ => options.append(option, value),
        }
    }
    options
}

fn describe(collection: &Collection) -> RawDocumentBuf {
    let name = collection.namespace.collection();
    let mut document = rawdoc! { "name": name, "type": "collection" };
    document.append(cstr!("options"), options(collection));
    let uuid = params::uuid(&collection.uuid);
    document.append(cstr!("info"), rawdoc! { "readOnly": false, "uuid": uuid });
    let id_index = collection.id_index();
    if let Some(index) = id_index.filter(|index| !index.is_clustered()) {
        document.append(cstr!("idIndex"), index.spec.clone());
    }
    document
}
