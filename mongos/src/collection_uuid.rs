//! `collectionUUID`: the command is for the collection with this id, and for no other one that has
//! come by its name.
//!
//! A collection has the same id on all of its shards. Which one a sharded collection has is read from
//! its route; of others their shard knows it, to which the command goes. A shard knows the names of
//! its own collections only, so what another name the id has is completed here.

use banyan_document::DocumentWriter;
use banyan_wire::{CommandError, ErrorCode, Outgoing, Request, params};
use bson::spec::BinarySubtype;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};

use crate::answer::Answer;
use crate::catalog::Route;
use crate::context::{CommandResult, CommandSpec, Context};
use crate::fields;
use crate::shards::find_all;

const FIELD: &str = "collectionUUID";
const WRITE_ERRORS: &str = "writeErrors";

/// The commands that take it.
const COMMANDS: &[&str] = &[
    "aggregate",
    "collMod",
    "createIndexes",
    "delete",
    "drop",
    "dropIndexes",
    "find",
    "insert",
    "update",
];

/// The statements of a write, which fail one by one.
fn statements(command: &str) -> Option<&'static str> {
    match command {
        "insert" => Some("documents"),
        "update" => Some("updates"),
        "delete" => Some("deletes"),
        _ => None,
    }
}

/// The id that is asked for. A wrong one is refused by whoever runs the command.
fn asked(context: &Context<'_>, command: &str) -> Option<[u8; 16]> {
    if !COMMANDS.contains(&command) {
        return None;
    }
    match context.request.get(FIELD)? {
        RawBsonRef::Binary(binary) if binary.subtype == BinarySubtype::Uuid => {
            binary.bytes.try_into().ok()
        }
        _ => None,
    }
}

/// Whether the request says which collection it is for.
pub fn is_asked(request: &Request) -> bool {
    request.get(FIELD).is_some()
}

/// Runs a command that may name the collection that it is for.
pub async fn run(context: &Context<'_>, spec: &CommandSpec) -> CommandResult {
    let Some(uuid) = asked(context, spec.name) else {
        return (spec.run)(context).await;
    };
    // A pipeline over no collection is told of that.
    if !matches!(context.request.first_value(), Some(RawBsonRef::String(_))) {
        return (spec.run)(context).await;
    }
    if let Err(error) = check(context, spec.name, &uuid).await {
        return match statements(spec.name) {
            Some(field) if error.code == ErrorCode::CollectionUUIDMismatch => {
                refuse_all(context, spec.name, field, &error)
            }
            _ => Err(error),
        };
    }
    match (spec.run)(context).await {
        Ok(reply) => completed(context, &uuid, reply).await,
        Err(error) if error.code == ErrorCode::CollectionUUIDMismatch => {
            completed(context, &uuid, error.to_reply()).await
        }
        Err(error) => Err(error),
    }
}

/// Refuses the command if it is not for the sharded collection of its name. What concerns others
/// their shard says, unless it is not asked with the id.
async fn check(context: &Context<'_>, command: &str, uuid: &[u8; 16]) -> Result<(), CommandError> {
    let ns = context.namespace()?;
    let catalog = &context.router.catalog;
    let mut route = catalog.route(&ns).await?;
    let is_other = |route: &Route| {
        let table = route.table.as_ref();
        table.is_some_and(|table| table.uuid() != *uuid)
    };
    if let Some(seen) = route.as_ref().filter(|route| is_other(route)) {
        // Another one may have come by the name since it was looked up.
        catalog.refresh(seen).await?;
        route = catalog.route(&ns).await?;
    }
    let agrees = match &route {
        None => false,
        Some(route) if route.is_sharded() => !is_other(route),
        Some(_) if command == "drop" => {
            let own = name_on_primary(context, uuid).await?;
            let is_view = || is_view(context);
            own.is_some_and(|own| ns.ends_with(&format!(".{own}"))) || is_view().await?
        }
        Some(_) => true,
    };
    match agrees {
        true => Ok(()),
        false => Err(mismatch(context, uuid).await?),
    }
}

async fn mismatch(context: &Context<'_>, uuid: &[u8; 16]) -> Result<CommandError, CommandError> {
    let actual = match sharded_name(context, uuid).await? {
        Some(name) => Some(name),
        None => name_on_primary(context, uuid).await?,
    };
    let error = CommandError::new(
        ErrorCode::CollectionUUIDMismatch,
        "Collection UUID does not match that specified",
    );
    let actual = actual.as_deref();
    Ok(error.with_extra(rawdoc! {
        "db": context.request.database.as_str(),
        "collectionUUID": params::uuid(uuid),
        "expectedCollection": fields::collection(context.request)?,
        "actualCollection": actual.map_or(RawBsonRef::Null, RawBsonRef::String),
    }))
}

/// The name of the database's sharded collection with this id.
async fn sharded_name(
    context: &Context<'_>,
    uuid: &[u8; 16],
) -> Result<Option<String>, CommandError> {
    let filter = rawdoc! { "uuid": params::uuid(uuid), "dropped": { "$ne": true } };
    let config = &context.router.config;
    let entries = find_all(config, "collections", &filter, &rawdoc! {}).await?;
    let prefix = format!("{}.", context.request.database);
    let names = entries.iter().filter_map(|entry| entry.get_str("_id").ok());
    let mut own = names.filter_map(|name| name.strip_prefix(&prefix));
    Ok(own.next().map(str::to_owned))
}

/// The name of the collection with this id on the database's shard.
async fn name_on_primary(
    context: &Context<'_>,
    uuid: &[u8; 16],
) -> Result<Option<String>, CommandError> {
    let filter = rawdoc! { "info.uuid": params::uuid(uuid) };
    let found = on_primary(context, filter).await?;
    Ok(found.and_then(|found| found.get_str("name").ok().map(str::to_owned)))
}

async fn is_view(context: &Context<'_>) -> Result<bool, CommandError> {
    let filter = rawdoc! { "name": fields::collection(context.request)?, "type": "view" };
    Ok(on_primary(context, filter).await?.is_some())
}

async fn on_primary(
    context: &Context<'_>,
    filter: RawDocumentBuf,
) -> Result<Option<RawDocumentBuf>, CommandError> {
    let router = context.router;
    let database = &context.request.database;
    let Some(known) = router.catalog.database(database).await? else {
        return Ok(None);
    };
    let command = rawdoc! { "listCollections": 1, "filter": filter };
    let outgoing = Outgoing::command(database, &command);
    let options = context.request_options(true);
    let answer = router.send(&known.primary, options, &outgoing).await;
    let reply = answer.and_then(Answer::checked)?.reply;
    let batch =
        fields::document(&reply, "cursor")?.and_then(|cursor| cursor.get_array("firstBatch").ok());
    Ok(batch.and_then(|batch| Some(batch.get_document(0).ok()?.to_owned())))
}

/// The reply of a write that nothing was done of.
fn refuse_all(
    context: &Context<'_>,
    command: &str,
    field: &str,
    error: &CommandError,
) -> CommandResult {
    let count = context.request.batch(field)?.len();
    let ordered = context.request.get("ordered");
    let shown = match ordered.is_none_or(banyan_document::is_true) {
        true => count.min(1),
        false => count,
    };
    let mut out = DocumentWriter::new();
    out.append_i32("n", 0);
    out.begin_array(WRITE_ERRORS);
    for index in 0..shown {
        out.push_document();
        out.append_i32("index", i32::try_from(index).unwrap_or(i32::MAX));
        out.append_i32("code", error.code.code());
        out.append_str("errmsg", &error.message);
        if let Some(extra) = &error.extra {
            out.append_all(extra);
        }
        out.end();
    }
    out.end();
    if command == "update" {
        out.append_i32("nModified", 0);
    }
    out.append_f64("ok", 1.0);
    Ok(out.finish())
}

/// A reply with the name that a shard could not know.
async fn completed(context: &Context<'_>, uuid: &[u8; 16], reply: RawDocumentBuf) -> CommandResult {
    if !lacks_name(&reply) && !fields::documents(&reply, WRITE_ERRORS).any(lacks_name) {
        return Ok(reply);
    }
    let Some(actual) = sharded_name(context, uuid).await? else {
        return Ok(reply);
    };
    let mut out = DocumentWriter::new();
    let complete = |out: &mut DocumentWriter, told: &RawDocument| {
        for element in banyan_document::elements(told) {
            match element.name() {
                "actualCollection" => out.append_str("actualCollection", &actual),
                _ => out.append_element(&element),
            }
        }
    };
    if lacks_name(&reply) {
        complete(&mut out, &reply);
        return Ok(out.finish());
    }
    for element in banyan_document::elements(&reply) {
        if element.name() != WRITE_ERRORS {
            out.append_element(&element);
            continue;
        }
        out.begin_array(WRITE_ERRORS);
        for error in fields::documents(&reply, WRITE_ERRORS) {
            out.push_document();
            match lacks_name(error) {
                true => complete(&mut out, error),
                false => out.append_all(error),
            }
            out.end();
        }
        out.end();
    }
    Ok(out.finish())
}

fn lacks_name(told: &RawDocument) -> bool {
    let code = fields::get_number(told, "code");
    code == Some(i64::from(ErrorCode::CollectionUUIDMismatch.code()))
        && matches!(
            fields::get(told, "actualCollection"),
            Some(RawBsonRef::Null)
        )
}
