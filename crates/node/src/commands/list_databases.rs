//! `listDatabases`: what there is, and how large.

use std::collections::BTreeMap;
use std::sync::Arc;

use banyan_access::check::Access;
use banyan_access::identity::{self, Identity};
use banyan_access::listing;
use banyan_wire::{CommandError, OWN_CONNECTION_ID};
use bson::{RawArrayBuf, RawDocumentBuf, rawdoc};

use super::table::{BoxFuture, CommandResult, CommandSpec, Run};
use crate::context::CommandContext;
use crate::cursors::first::{is_listed, list_filter, scripted};
use crate::node::Node;
use crate::virtual_collections::local;

pub static SPEC: CommandSpec = CommandSpec::new("listDatabases", Run::Future(run))
    .access(Access::LoggedIn)
    .aliases(&["listdatabases"])
    .admin_only()
    .fields(&["filter", "nameOnly", "authorizedDatabases"])
    .computes();

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move {
        match ctx.field("filter") {
            // It may be a script.
            Some(_) => ctx.compute(|| list(ctx)).await,
            None => list(ctx),
        }
    })
}

fn list(ctx: &CommandContext<'_>) -> CommandResult {
    let filter = list_filter(ctx, &scripted(ctx))?;
    let name_only = ctx
        .field("nameOnly")
        .map(|field| field.bool())
        .transpose()?
        .unwrap_or(false);
    let only_reached = only_reached(ctx)?;
    let mut databases = RawArrayBuf::new();
    let mut total = 0;
    for (name, Database { size, empty }) in databases_of(ctx.node) {
        if only_reached
            .as_ref()
            .is_some_and(|identity| !listing::reaches_into(identity, &name))
        {
            continue;
        }
        let mut described: RawDocumentBuf = rawdoc! { "name": name.as_str() };
        if !name_only {
            described.append(bson::cstr!("sizeOnDisk"), size);
            described.append(bson::cstr!("empty"), empty);
        }
        if is_listed(filter.as_ref(), &described)? {
            total += size;
            databases.push(described);
        }
    }
    if name_only {
        return Ok(rawdoc! { "databases": databases, "ok": 1.0 });
    }
    Ok(rawdoc! {
        "databases": databases,
        "totalSize": total,
        "totalSizeMb": total / (1024 * 1024),
        "ok": 1.0,
    })
}

/// Whose databases alone are shown.
fn only_reached(ctx: &CommandContext<'_>) -> Result<Option<Arc<Identity>>, CommandError> {
    let asked = ctx
        .field("authorizedDatabases")
        .filter(|field| !field.is_null())
        .map(|field| field.strict_bool())
        .transpose()?;
    if !ctx.node.access.is_enforced() || ctx.conn.id == OWN_CONNECTION_ID {
        return Ok(None);
    }
    listing::databases(identity::known(ctx.conn), asked)
}

struct Database {
    size: i64,
    empty: bool,
}

/// Those that are stored, those that a set's member has in views only, and the server's own.
fn databases_of(node: &Node) -> BTreeMap<String, Database> {
    let long = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    let mut databases = BTreeMap::new();
    let mut names = node.profiler.databases();
    names.extend(["config", "local"].map(str::to_owned));
    for name in names {
        let views = local::collections(node, &name);
        if !views.is_empty() {
            let bytes = views
                .iter()
                .filter_map(|(view, _)| local::stats(node, &name, view))
                .filter_map(|stats| stats.get_i64("size").ok());
            let size = bytes.sum();
            databases.insert(name, Database { size, empty: false });
        }
    }
    for database in node.replica.store.catalog().databases() {
        let collections = database.collections();
        let bytes = collections.map(|c| c.bytes() + index_bytes(c)).sum();
        let is_empty = database.collections().all(|c| c.documents() == 0);
        let known = databases.entry(database.name.to_string());
        let known = known.or_insert(Database {
            size: 0,
            empty: true,
        });
        known.size = known.size.saturating_add(long(bytes));
        known.empty &= is_empty;
    }
    // Every server has these, whether or not it has kept something there.
    for name in ["admin", "config", "local"] {
        let nothing = Database {
            size: 0,
            empty: true,
        };
        databases.entry(name.to_owned()).or_insert(nothing);
    }
    databases
}

pub fn index_bytes(collection: &banyan_storage::Collection) -> u64 {
    collection
        .indexes
        .iter()
        .map(|index| index.key_bytes())
        .sum()
}
