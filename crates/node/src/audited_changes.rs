//! What a command has changed, as MongoDB's audit log tells it.
//!
//! Collections and indexes are held against the catalog as it was before: an insert that has made its
//! collection is noted as that, too.

use std::collections::VecDeque;
use std::sync::Arc;

use banyan_access::audit::{self, Actor};
use banyan_access::identity;
use banyan_security::RoleName;
use banyan_security::audit::CONFIGURED;
use banyan_storage::{Catalog, Collection, CollectionId, Namespace};
use banyan_wire::CommandError;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};
use parking_lot::Mutex;
use tracing::warn;

use crate::access::direct::DirectWrite;
use crate::access::stored::{DATABASE, ROLES, USERS};
use crate::cluster_parameters::AUDIT;
use crate::commands::table::CommandResult;
use crate::context::CommandContext;

/// The state before a command that may change it.
pub struct Before<'a> {
    catalog: Arc<Catalog>,
    config: Option<RawDocumentBuf>,
    /// Which audit events were wanted.
    audit_config: Option<RawDocumentBuf>,
    direct: Option<DirectWrite<'a>>,
}

impl<'a> Before<'a> {
    /// `None`: there is no audit log, or the command changes nothing.
    ///
    /// # Errors
    /// It was told to end while others wrote users and roles.
    pub async fn of(ctx: &CommandContext<'a>) -> Result<Option<Before<'a>>, CommandError> {
        if !audit::is_on() {
            return Ok(None);
        }
        let name = ctx.spec.name;
        let changes = ctx.spec.writes
            || matches!(name, "aggregate" | "replSetReconfig" | "shutdown")
            || matches!(name, "setAuditConfig" | "setClusterParameter")
            || name.starts_with("_configsvr")
            || name.starts_with("_shardMapReduce")
            || name == "mapReduce";
        if !changes {
            return Ok(None);
        }
        let config = (name == "replSetReconfig").then(|| {
            let config = ctx.node.replication.config();
            config.map(|config| config.to_document())
        });
        let direct = match written_directly(ctx) {
            Some(collection) => Some(Box::pin(DirectWrite::begin(ctx, collection)).await?),
            None => None,
        };
        Ok(Some(Before {
            catalog: ctx.node.replica.store.catalog(),
            config: config.flatten(),
            audit_config: audit_config(ctx),
            direct,
        }))
    }
}

/// Which of the collections of users and roles a command writes documents to.
fn written_directly(ctx: &CommandContext<'_>) -> Option<&'static str> {
    match ctx.spec.name {
        "insert"
        | "update"
        | "delete"
        | "findAndModify"
        | "aggregate"
        | "mapReduce"
        | "_shardMapReduceFinish" => {}
        _ => return None,
    }
    let namespace = touched(ctx).filter(|namespace| namespace.database() == DATABASE)?;
    [USERS, ROLES]
        .into_iter()
        .find(|name| namespace.collection() == *name)
}

/// Notes what a command has done, or why it has not.
pub fn settle(ctx: &CommandContext<'_>, before: &Before<'_>, result: &CommandResult) {
    let code = result.as_ref().err().map_or(0, |error| error.code.code());
    let note = |action: &str, param: RawDocumentBuf| note_for(ctx, action, param, code);
    if let Some((action, param)) = of_users_and_roles(ctx) {
        return note(action, param);
    }
    match ctx.spec.name {
        "shutdown" if code == 0 => audit::shutdown(Some(ctx.conn)),
        "shutdown" => note("shutdown", rawdoc! {}),
        "replSetReconfig" => {
            let new = ctx.argument().and_then(|config| config.as_document());
            let mut param = rawdoc! { "old": before.config.clone().unwrap_or_default() };
            param.append(
                cstr!("new"),
                new.map(RawDocument::to_owned).unwrap_or_default(),
            );
            note("replSetReconfig", param);
        }
        "renameCollection" => {
            let mut param = RawDocumentBuf::new();
            append(&mut param, "old", ctx.argument());
            append(&mut param, "new", get(ctx, "to"));
            note("renameCollection", param);
        }
        "setAuditConfig" | "setClusterParameter" | "_configsvrSetClusterParameter" => {
            let new = audit_config(ctx);
            if new != before.audit_config {
                let mut param = rawdoc! { "old": before.audit_config.clone().unwrap_or_default() };
                param.append(cstr!("new"), new.unwrap_or_default());
                note(CONFIGURED, param);
            }
        }
        name if name.starts_with("_configsvr") => of_cluster(ctx, code),
        _ => {
            if let Some(direct) = &before.direct {
                note_direct(ctx, direct, code);
            }
            of_collections(ctx, before, code);
        }
    }
}

/// Which audit events are wanted, where commands may change that.
fn audit_config(ctx: &CommandContext<'_>) -> Option<RawDocumentBuf> {
    let known = ctx.node.cluster_parameters.known(&ctx.node.replica);
    known.find(AUDIT).map(RawDocument::to_owned)
}

/// An event of whoever the command is for: on a shard, the client of the router that sends it.
fn note_for(ctx: &CommandContext<'_>, action: &str, param: RawDocumentBuf, result: i32) {
    let owner = ctx.owner.as_deref();
    let actor = Actor::behind(&identity::known(ctx.conn), owner, ctx.generic.audit);
    audit::note_of(ctx.conn, &actor, action, param, result);
}

fn get<'a>(ctx: &CommandContext<'a>, field: &str) -> Option<RawBsonRef<'a>> {
    banyan_document::field(ctx.body(), field)
}

fn append(param: &mut RawDocumentBuf, name: &str, value: Option<RawBsonRef<'_>>) {
    if let (Ok(name), Some(value)) = (bson::raw::CString::try_from(name), value) {
        param.append(&name, value);
    }
}

/// Roles with their databases, as they were meant; what is none as it was sent.
fn append_roles(param: &mut RawDocumentBuf, ctx: &CommandContext<'_>) {
    match get(ctx, "roles") {
        Some(RawBsonRef::Array(roles)) => {
            match RoleName::parse_all(roles, ctx.database()) {
                Ok(roles) => param.append(cstr!("roles"), RoleName::array(&roles)),
                Err(_) => param.append(cstr!("roles"), RawBsonRef::Array(roles)),
            };
        }
        other => append(param, "roles", other),
    }
}

/// The event of a command that changes users or roles.
fn of_users_and_roles(ctx: &CommandContext<'_>) -> Option<(&'static str, RawDocumentBuf)> {
    let mut param = RawDocumentBuf::new();
    let name = ctx.spec.name;
    let subject = match name {
        "createUser" | "updateUser" | "dropUser" | "grantRolesToUser" | "revokeRolesFromUser" => {
            "user"
        }
        "createRole"
        | "updateRole"
        | "dropRole"
        | "grantRolesToRole"
        | "revokeRolesFromRole"
        | "grantPrivilegesToRole"
        | "revokePrivilegesFromRole" => "role",
        "dropAllUsersFromDatabase" | "dropAllRolesFromDatabase" => {
            param.append(cstr!("db"), ctx.database());
            return Some((name, param));
        }
        _ => return None,
    };
    append(&mut param, subject, ctx.argument());
    param.append(cstr!("db"), ctx.database());
    if name == "updateUser" {
        param.append(cstr!("passwordChanged"), get(ctx, "pwd").is_some());
    }
    for field in [
        "customData",
        "mechanisms",
        "authenticationRestrictions",
        "privileges",
    ] {
        append(&mut param, field, get(ctx, field));
    }
    append_roles(&mut param, ctx);
    Some((name, param))
}

/// What a router asks of the config servers.
fn of_cluster(ctx: &CommandContext<'_>, code: i32) {
    let mut param = RawDocumentBuf::new();
    let action = match ctx.spec.name {
        "_configsvrAddShard" => {
            append(&mut param, "shard", get(ctx, "name"));
            append(&mut param, "connectionString", ctx.argument());
            "addShard"
        }
        "_configsvrRemoveShard" => {
            append(&mut param, "shard", ctx.argument());
            "removeShard"
        }
        "_configsvrCreateDatabase" => {
            append(&mut param, "ns", ctx.argument());
            "enableSharding"
        }
        "_configsvrShardCollection" => {
            append(&mut param, "ns", ctx.argument());
            append(&mut param, "key", get(ctx, "key"));
            let unique = matches!(get(ctx, "unique"), Some(RawBsonRef::Boolean(true)));
            param.append(cstr!("options"), rawdoc! { "unique": unique });
            "shardCollection"
        }
        _ => return,
    };
    note_for(ctx, action, param, code);
}

/// Users and roles that are written past the commands for them.
fn note_direct(ctx: &CommandContext<'_>, direct: &DirectWrite<'_>, code: i32) {
    let note = |operation: &str, document: Option<RawDocumentBuf>, result: i32| {
        let mut param = RawDocumentBuf::new();
        append(
            &mut param,
            "document",
            document.as_deref().map(RawBsonRef::Document),
        );
        param.append(cstr!("ns"), format!("{DATABASE}.{}", direct.collection));
        param.append(cstr!("operation"), operation);
        note_for(ctx, "directAuthMutation", param, result);
    };
    let tried = match ctx.spec.name {
        "insert" => "insert",
        "delete" => "remove",
        _ => "update",
    };
    match direct.changes(ctx) {
        Ok(changes) => {
            if changes.is_empty() && code != 0 {
                note(tried, None, code);
            }
            for (operation, document) in changes {
                note(operation, Some(document), 0);
            }
        }
        Err(error) => {
            warn!(%error, "what was written to users or roles cannot be told");
            note(tried, None, code);
        }
    }
}

/// The collection that a command may have made, changed or removed.
fn touched(ctx: &CommandContext<'_>) -> Option<Namespace> {
    match ctx.spec.name {
        "aggregate" => output_of_pipeline(ctx),
        "mapReduce" | "_shardMapReduceFinish" => output_of_map_reduce(ctx),
        _ => {
            let own = ctx.argument().and_then(|value| value.as_str());
            own.map(|name| Namespace::new(ctx.database(), name))
        }
    }
}

fn output_of_pipeline(ctx: &CommandContext<'_>) -> Option<Namespace> {
    let RawBsonRef::Array(stages) = get(ctx, "pipeline")? else {
        return None;
    };
    let last = stages.into_iter().flatten().last()?.as_document()?;
    let stage = banyan_document::elements(last).next()?;
    let target = match (stage.name(), stage.value()) {
        ("$out", value) => value,
        ("$merge", RawBsonRef::Document(merge)) => banyan_document::field(merge, "into")?,
        ("$merge", value) => value,
        _ => return None,
    };
    match target {
        RawBsonRef::String(name) => Some(Namespace::new(ctx.database(), name)),
        RawBsonRef::Document(target) => {
            let database = target.get_str("db").ok().filter(|name| !name.is_empty());
            let database = database.unwrap_or(ctx.database());
            Some(Namespace::new(database, target.get_str("coll").ok()?))
        }
        _ => None,
    }
}

fn output_of_map_reduce(ctx: &CommandContext<'_>) -> Option<Namespace> {
    match get(ctx, "out")? {
        RawBsonRef::String(name) => Some(Namespace::new(ctx.database(), name)),
        RawBsonRef::Document(out) => {
            let name = ["replace", "merge", "reduce"]
                .iter()
                .find_map(|mode| out.get_str(mode).ok())?;
            Some(Namespace::new(
                out.get_str("db").unwrap_or(ctx.database()),
                name,
            ))
        }
        _ => None,
    }
}

fn of_collections(ctx: &CommandContext<'_>, before: &Before<'_>, code: i32) {
    if code != 0 {
        return refused(ctx, code);
    }
    let after = ctx.node.replica.store.catalog();
    if Arc::ptr_eq(&before.catalog, &after) {
        return;
    }
    let note = |action: &str, param: RawDocumentBuf| note_for(ctx, action, param, 0);
    if ctx.spec.name == "dropDatabase" {
        let database = before.catalog.database(ctx.database());
        for collection in database.iter().flat_map(|database| database.collections()) {
            note(
                "dropCollection",
                rawdoc! { "ns": collection.namespace.as_str() },
            );
        }
        return note("dropDatabase", rawdoc! { "ns": ctx.database() });
    }
    if let Some(namespace) = touched(ctx) {
        let was = before.catalog.find(&namespace);
        let is = after.find(&namespace);
        match (was, is) {
            (None, Some(made)) if is_news(made.id) => {
                if before.catalog.database(namespace.database()).is_none() {
                    note("createDatabase", rawdoc! { "ns": namespace.database() });
                }
                note("createCollection", creation(made));
                note_indexes(ctx, None, made);
            }
            (Some(was), Some(is)) => note_indexes(ctx, Some(was), is),
            (Some(was), None) => {
                note("dropCollection", rawdoc! { "ns": was.namespace.as_str() });
            }
            _ => {}
        }
    }
}

/// Whether nobody has told of it yet: of several commands that find a new collection, one has made it.
fn is_news(id: CollectionId) -> bool {
    const TOLD_MAX: usize = 256;
    static TOLD: Mutex<VecDeque<CollectionId>> = Mutex::new(VecDeque::new());
    let mut told = TOLD.lock();
    if told.contains(&id) {
        return false;
    }
    if told.len() == TOLD_MAX {
        told.pop_front();
    }
    told.push_back(id);
    true
}

fn creation(collection: &Collection) -> RawDocumentBuf {
    let mut param = rawdoc! { "ns": collection.namespace.as_str() };
    for field in ["viewOn", "pipeline"] {
        append(
            &mut param,
            field,
            banyan_document::field(&collection.options, field),
        );
    }
    param
}

fn note_indexes(ctx: &CommandContext<'_>, was: Option<&Arc<Collection>>, is: &Collection) {
    let namespace = is.namespace.as_str();
    for index in &is.indexes {
        let known = was.is_some_and(|was| was.index(&index.name).is_some());
        if !known && index.name != "_id_" {
            let param = rawdoc! {
                "ns": namespace, "indexName": index.name.as_str(), "indexSpec": index.spec.clone(),
                "indexBuildState": "IndexBuildSucceeded",
            };
            note_for(ctx, "createIndex", param, 0);
        }
    }
    for index in was.iter().flat_map(|was| &was.indexes) {
        if is.index(&index.name).is_none() {
            let param = rawdoc! { "ns": namespace, "indexName": index.name.as_str() };
            note_for(ctx, "dropIndex", param, 0);
        }
    }
}

/// A command about collections that was not carried out.
fn refused(ctx: &CommandContext<'_>, code: i32) {
    let note = |action: &str, param: RawDocumentBuf| note_for(ctx, action, param, code);
    let Some(RawBsonRef::String(name)) = ctx.argument() else {
        return;
    };
    let namespace = Namespace::new(ctx.database(), name);
    let ns = namespace.as_str();
    match ctx.spec.name {
        "create" => note("createCollection", rawdoc! { "ns": ns }),
        "drop" => note("dropCollection", rawdoc! { "ns": ns }),
        "createIndexes" => {
            let specs = get(ctx, "indexes").and_then(|specs| specs.as_array());
            for spec in specs.into_iter().flatten().flatten() {
                let Some(spec) = spec.as_document() else {
                    continue;
                };
                let mut param = rawdoc! { "ns": ns };
                append(
                    &mut param,
                    "indexName",
                    banyan_document::field(spec, "name"),
                );
                param.append(cstr!("indexSpec"), RawDocument::to_owned(spec));
                param.append(cstr!("indexBuildState"), "IndexBuildFailed");
                note("createIndex", param);
            }
        }
        "dropIndexes" => {
            let mut param = rawdoc! { "ns": ns };
            append(&mut param, "indexName", get(ctx, "index"));
            note("dropIndex", param);
        }
        _ => {}
    }
}
