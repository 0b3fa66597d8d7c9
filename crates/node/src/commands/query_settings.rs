//! `setQuerySettings`, `removeQuerySettings`, `$querySettings`: what holds for all queries of a shape.

use banyan_access::check::Access;
use banyan_query::query_settings::{
    self, Configuration, KnownSettings, PARAMETER, QuerySettings, parse_hash,
};
use banyan_query::shape::QueryShape;
use banyan_security::Action;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

use super::cluster_parameter;
use super::query_stats::check_place;
use super::table::{BoxFuture, CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;
use crate::errors;
use crate::info::ClusterRole;
use crate::names::check_database_name;
use crate::params::{self, Field};
use crate::query_shapes::is_id_query;

pub const STAGE: &str = "$querySettings";

// What they write, they write by another command.
pub static SET: CommandSpec = CommandSpec::new("setQuerySettings", Run::Future(set))
    .access(Access::Cluster(Action::QuerySettings))
    .needs(Needs::Primary)
    .admin_only()
    .help("says what holds for all queries of a shape")
    .fields(&["settings"]);

pub static REMOVE: CommandSpec = CommandSpec::new("removeQuerySettings", Run::Future(remove))
    .access(Access::Cluster(Action::QuerySettings))
    .needs(Needs::Primary)
    .admin_only()
    .help("forgets what was said of all queries of a shape");

fn set<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move {
        refuse_alone(ctx)?;
        refuse_shard(ctx)?;
        set_from(ctx).await
    })
}

fn remove<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move {
        refuse_alone(ctx)?;
        refuse_shard(ctx)?;
        remove_from(ctx).await
    })
}

fn refuse_alone(ctx: &CommandContext<'_>) -> Result<(), CommandError> {
    match ctx.node.replication.is_replica_set() {
        true => Ok(()),
        false => Err(CommandError::new(
            ErrorCode::IllegalOperation,
            format!(
                "{} can only run on replica sets or sharded clusters",
                ctx.spec.name
            ),
        )),
    }
}

fn refuse_shard(ctx: &CommandContext<'_>) -> Result<(), CommandError> {
    match ctx.node.info.role {
        ClusterRole::None => Ok(()),
        _ => Err(CommandError::new(
            ErrorCode::NotImplemented,
            format!(
                "{} can only run on mongos in sharded clusters",
                ctx.spec.name
            ),
        )),
    }
}

/// Which shape a command is about.
struct Named<'a> {
    hash: [u8; 32],
    /// As it is shown.
    shown: String,
    /// A query of the shape; a hash says enough of one that has settings.
    query: Option<&'a RawDocument>,
}

/// The shape that a command's own field names, as `command` is called by clients.
fn named<'a>(ctx: &CommandContext<'a>, command: &str) -> Result<Named<'a>, CommandError> {
    match ctx.argument() {
        Some(RawBsonRef::String(text)) => Ok(Named {
            hash: parse_hash(text).map_err(errors::query)?,
            shown: text.to_uppercase(),
            query: None,
        }),
        Some(RawBsonRef::Document(query)) => {
            let shape = shape_of(command, query)?;
            Ok(Named {
                hash: *shape.hash(),
                shown: shape.to_string(),
                query: Some(query),
            })
        }
        other => Err(CommandError::new(
            ErrorCode::TypeMismatch,
            format!(
                "BSON field '{command}.{command}' is the wrong type '{}', expected types \
                 '[string, object]'",
                other.map_or("missing", |value| banyan_document::kind::name(&value))
            ),
        )),
    }
}

fn database_of<'a>(command: &str, query: &'a RawDocument) -> Result<&'a str, CommandError> {
    match banyan_document::field(query, "$db") {
        Some(RawBsonRef::String(database)) => Ok(database),
        Some(_) => Err(CommandError::new(
            ErrorCode::TypeMismatch,
            format!("BSON field '{command}.$db' is the wrong type, expected type 'string'"),
        )),
        None => Err(params::missing_field(command, "$db")),
    }
}

fn shape_of(command: &str, query: &RawDocument) -> Result<QueryShape, CommandError> {
    let database = database_of(command, query)?;
    check_database_name(database)?;
    QueryShape::of(database, query).ok_or_else(|| {
        let shown = banyan_document::extjson::relaxed_text(query).unwrap_or_default();
        CommandError::new(
            ErrorCode::Location(7_746_402),
            format!("QueryShape can not be computed for command: {shown}"),
        )
    })
}

/// Of which queries nothing can be said, and what cannot be said of some.
fn check_query(query: &RawDocument, settings: &QuerySettings) -> Result<(), CommandError> {
    let refuse = |code, text: String| Err(CommandError::new(ErrorCode::Location(code), text));
    let database = banyan_document::field(query, "$db").and_then(|database| database.as_str());
    let collection = banyan_document::first_value(query).and_then(|name| name.as_str());
    let first_stage = banyan_document::field(query, "pipeline")
        .and_then(|pipeline| pipeline.as_array()?.into_iter().next()?.ok())
        .and_then(|stage| stage.as_document()?.iter().next()?.ok())
        .map(|(stage, _)| stage.as_str());
    if matches!(database, Some("admin" | "config" | "local")) && collection.is_some() {
        return refuse(
            8_584_900,
            "setQuerySettings command cannot be used on internal databases".to_owned(),
        );
    }
    if collection.is_some_and(|name| name.starts_with("system.")) {
        return refuse(
            8_584_901,
            "setQuerySettings command cannot be used on system collections".to_owned(),
        );
    }
    let is_find = matches!(query.iter().next(), Some(Ok((name, _))) if name.as_str() == "find");
    if is_find && is_id_query(query) {
        return refuse(
            7_746_606,
            "setQuerySettings command cannot be used on find queries eligible for IDHACK"
                .to_owned(),
        );
    }
    match first_stage {
        Some(stage) if settings.rejects() && SYSTEM_STAGES.contains(&stage) => refuse(
            8_705_200,
            format!("Setting {{reject:true}} is forbidden for query containing stage: {stage}"),
        ),
        _ => Ok(()),
    }
}

/// By these operators see what is going on, which nobody is to take from them.
const SYSTEM_STAGES: [&str; 10] = [
    "$changeStream",
    "$collStats",
    "$currentOp",
    "$indexStats",
    "$listCatalog",
    "$listClusterCatalog",
    "$listLocalSessions",
    "$listSessions",
    "$planCacheStats",
    "$querySettings",
];

/// Sets the settings of the shape that the command's own field names.
pub async fn set_from(ctx: &CommandContext<'_>) -> CommandResult {
    let named = named(ctx, SET.name)?;
    let given = banyan_document::field(ctx.body(), "settings")
        .ok_or_else(|| params::missing_field(SET.name, "settings"))?;
    let given = Field {
        command: SET.name,
        name: "settings",
        value: given,
    };
    let parser = format!("{}.settings", SET.name);
    let given = QuerySettings::parse(&parser, given.document()?).map_err(errors::query)?;
    let node = ctx.node;
    let _changing = node.cluster_parameters.query_settings_changes.lock().await;
    let mut known = node.cluster_parameters.known_query_settings(&node.replica);
    let (old, representative) = match known.find(&named.hash) {
        Some(old) => (old.settings.clone(), old.representative.clone()),
        None => (QuerySettings::default(), None),
    };
    let settings = old.merged(given).simplified();
    settings.check().map_err(errors::query)?;
    let representative = named.query.map(RawDocument::to_owned).or(representative);
    if let Some(query) = &representative {
        check_query(query, &settings)?;
    }
    let configuration = Configuration {
        hash: named.shown,
        settings,
        representative,
    };
    let mut reply = configuration.to_document();
    known.set(configuration);
    keep(ctx, &known).await?;
    reply.append(cstr!("ok"), 1.0);
    Ok(reply)
}

/// Removes the settings of the shape that the command's own field names.
pub async fn remove_from(ctx: &CommandContext<'_>) -> CommandResult {
    let named = named(ctx, REMOVE.name)?;
    let node = ctx.node;
    let _changing = node.cluster_parameters.query_settings_changes.lock().await;
    let mut known = node.cluster_parameters.known_query_settings(&node.replica);
    if !known.remove(&named.hash) {
        return Err(CommandError::new(
            ErrorCode::Location(7_746_701),
            "A matching query settings entry does not exist",
        ));
    }
    keep(ctx, &known).await?;
    Ok(rawdoc! { "ok": 1.0 })
}

/// All settings are one value of a parameter.
async fn keep(ctx: &CommandContext<'_>, known: &KnownSettings) -> Result<(), CommandError> {
    cluster_parameter::keep(ctx, PARAMETER, &known.to_value()).await
}

/// `$querySettings`: all of them.
pub fn documents(
    ctx: &CommandContext<'_>,
    collection: Option<&str>,
    argument: &RawDocument,
) -> Result<Vec<RawDocumentBuf>, CommandError> {
    check_place(ctx, STAGE, collection)?;
    let known = ctx.node.cluster_parameters.known(&ctx.node.replica);
    query_settings::documents(&known.query_settings, argument).map_err(errors::query)
}
