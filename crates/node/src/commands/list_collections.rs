//! `listCollections`: the collections of a database, with their options.

use std::sync::Arc;

use banyan_access::check::Access;
use banyan_access::identity::{self, Identity};
use banyan_access::listing;
use banyan_access::reads_and_writes;
use banyan_document::time_series::visible_name;
use banyan_query::view;
use banyan_replication::time_series;
use banyan_storage::{Catalog, Collection};
use banyan_wire::{CommandError, OWN_CONNECTION_ID};
use bson::{RawDocumentBuf, cstr, rawdoc};

use super::clustered::CLUSTERED;
use super::table::{BoxFuture, CommandResult, CommandSpec, Run};
use crate::context::{CommandContext, check_database_name};
use crate::cursors::first;
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
        _ => Ok(()),
    }
}

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move {
        let catalog = ctx.node.replica.store.catalog();
        // Views lie in storage.
        match catalog.get(ctx.database(), view::COLLECTION) {
            Some(_) => ctx.compute(|| list(ctx)).await,
            None => list(ctx),
        }
    })
}

fn list(ctx: &CommandContext<'_>) -> CommandResult {
    check_database_name(ctx.database())?;
    let filter = first::list_filter(ctx)?;
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
    let (catalog, snapshot) = ctx.node.replica.view();
    let collections = catalog
        .database(ctx.database())
        .into_iter()
        .flat_map(|d| d.collections());
    let mut listed = Vec::new();
    for collection in collections {
        let described = describe(collection);
        if is_hidden(collection.namespace.collection()) {
            continue;
        }
        if !first::is_listed(filter.as_ref(), &described)? {
            continue;
        }
        listed.push(if name_only {
            brief(collection)
        } else {
            described
        });
    }
    for (name, described) in time_series(&catalog, ctx.database()) {
        if is_hidden(name) || !first::is_listed(filter.as_ref(), &described)? {
            continue;
        }
        listed.push(match name_only {
            true => rawdoc! { "name": name, "type": "timeseries" },
            false => described,
        });
    }
    for definition in views::definitions(&catalog, &snapshot, ctx.database(), ctx.slot())? {
        let Some(name) = view::name(&definition, ctx.database()) else {
            continue;
        };
        let mut described = rawdoc! { "name": name, "type": "view" };
        let brief = described.clone();
        described.append(cstr!("options"), view::options(&definition));
        described.append(cstr!("info"), rawdoc! { "readOnly": true });
        if !is_hidden(name) && first::is_listed(filter.as_ref(), &described)? {
            listed.push(if name_only { brief } else { described });
        }
    }
    for (name, options) in local::collections(ctx.node, ctx.database()) {
        let mut described = rawdoc! { "name": name, "type": "collection" };
        if !name_only {
            described.append(cstr!("options"), options);
            described.append(cstr!("info"), rawdoc! { "readOnly": true });
        }
        if !is_hidden(name) && first::is_listed(filter.as_ref(), &described)? {
            listed.push(described);
        }
    }
    first::reply_with_list(
        ctx,
        format!("{}.$cmd.listCollections", ctx.database()),
        listed,
    )
}

/// Whose collections alone are shown.
fn only_reached(ctx: &CommandContext<'_>) -> Option<Arc<Identity>> {
    if !ctx.node.access.is_enforced() || ctx.conn.id == OWN_CONNECTION_ID {
        return None;
    }
    listing::collections(identity::known(ctx.conn), ctx.database(), ctx.body())
}

fn brief(collection: &Collection) -> RawDocumentBuf {
    rawdoc! { "name": collection.namespace.collection(), "type": "collection" }
}

/// The time-series collections of a database, by their buckets.
fn time_series<'c>(
    catalog: &'c Catalog,
    database: &str,
) -> impl Iterator<Item = (&'c str, RawDocumentBuf)> {
    let collections = catalog.database(database).into_iter();
    let collections = collections.flat_map(|database| database.collections());
    collections.filter_map(|buckets| {
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
        let described = rawdoc! {
            "name": name,
            "type": "timeseries",
            "options": options,
            "info": { "readOnly": false },
        };
        Some((name, described))
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
    let mut document = brief(collection);
    document.append(cstr!("options"), options(collection));
    let uuid = params::uuid(&collection.uuid);
    document.append(cstr!("info"), rawdoc! { "readOnly": false, "uuid": uuid });
    let id_index = collection.id_index();
    if let Some(index) = id_index.filter(|index| !index.is_clustered()) {
        document.append(cstr!("idIndex"), index.spec.clone());
    }
    document
}
