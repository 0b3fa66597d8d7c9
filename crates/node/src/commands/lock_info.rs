//! `lockInfo`: the locks on databases and collections that are held, and who waits for them.

use std::collections::HashMap;

use banyan_access::check::Access;
use banyan_replication::locks::{HeldLock, LockManager, Mode, Resource};
use banyan_security::Action;
use banyan_storage::Catalog;
use bson::{RawArrayBuf, RawDocumentBuf, rawdoc};

use super::table::{CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;

pub static SPEC: CommandSpec = CommandSpec::new("lockInfo", Run::Inline(run))
    .access(Access::Cluster(Action::ServerStatus))
    .needs(Needs::Any)
    .admin_only()
    .help("the locks that are held or waited for")
    .lenient();

fn run(ctx: &CommandContext<'_>) -> CommandResult {
    let locks = &ctx.node.replica.locks;
    let held = locks.listing();
    let names = match held.is_empty() {
        true => HashMap::new(),
        false => names(locks, &ctx.node.replica.store.catalog()),
    };
    let listed: RawArrayBuf = held.iter().map(|lock| describe(lock, &names)).collect();
    Ok(rawdoc! { "lockInfo": listed, "ok": 1.0 })
}

/// Locks are kept by hashes of names: these are the names of what exists.
fn names(locks: &LockManager, catalog: &Catalog) -> HashMap<Resource, String> {
    let mut names = HashMap::new();
    for database in catalog.databases() {
        names.insert(locks.database(&database.name), database.name.to_string());
        for collection in database.collections() {
            let namespace = &collection.namespace;
            names.insert(locks.collection(namespace), namespace.as_str().to_owned());
        }
    }
    names
}

fn describe(lock: &HeldLock, names: &HashMap<Resource, String>) -> RawDocumentBuf {
    let kind = match lock.resource.is_database() {
        true => "Database",
        false => "Collection",
    };
    let number = lock.resource.number();
    let resource = match names.get(&lock.resource) {
        Some(name) => format!("{{{number}: {kind}, {number}, {name}}}"),
        // It is being made, or was just dropped.
        None => format!("{{{number}: {kind}, {number}}}"),
    };
    let request = |mode: &Mode| {
        rawdoc! {
            "mode": mode.short_name(),
            "convertMode": "NONE",
            "enqueueAtFront": false,
            "compatibleFirst": false,
            "debugInfo": "",
        }
    };
    rawdoc! {
        "resourceId": resource,
        "granted": lock.granted.iter().map(request).collect::<RawArrayBuf>(),
        "pending": lock.waiting.iter().map(request).collect::<RawArrayBuf>(),
    }
}
