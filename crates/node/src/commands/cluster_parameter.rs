//! `getClusterParameter`, `setClusterParameter`: what holds for a whole set or cluster.

use banyan_access::check::Access;
use banyan_security::Action;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

use super::table::{BoxFuture, CommandResult, CommandSpec, Needs, Run};
use crate::cluster_parameters::{self, COLLECTION, Parameter, QUERY_SETTINGS};
use crate::context::CommandContext;
use crate::errors;
use crate::info::ClusterRole;
use crate::params::{self, Field};

pub static GET: CommandSpec = CommandSpec::new("getClusterParameter", Run::Inline(get))
    .access(Access::Cluster(Action::GetClusterParameter))
    .needs(Needs::Data)
    .admin_only()
    .help("shows parameters of the whole set or cluster")
    .lenient();

// What it writes, it writes by another command.
pub static SET: CommandSpec = CommandSpec::new("setClusterParameter", Run::Future(set))
    .access(Access::Cluster(Action::SetClusterParameter))
    .needs(Needs::Primary)
    .admin_only()
    .help("sets a parameter of the whole set or cluster")
    .takes_concern()
    .lenient();

fn get(ctx: &CommandContext<'_>) -> CommandResult {
    let node = ctx.node;
    let names = names(ctx.required(GET.name)?)?;
    refuse_standalone(ctx)?;
    if names.as_ref().is_some_and(Vec::is_empty) {
        return Err(CommandError::new(
            ErrorCode::BadValue,
            "Must supply at least one cluster server parameter name to getClusterParameter",
        ));
    }
    for name in names.iter().flatten() {
        if cluster_parameters::find(name).is_none() {
            return Err(CommandError::new(
                ErrorCode::NoSuchKey,
                format!("Unknown server parameter: {name}"),
            ));
        }
    }
    let known = node.cluster_parameters.known(&node.replica);
    let shown = known.show(names.as_deref());
    Ok(rawdoc! { "clusterParameters": shown, "ok": 1.0 })
}

/// Which ones are asked for; `None`: all.
fn names<'a>(field: Field<'a>) -> Result<Option<Vec<&'a str>>, CommandError> {
    match field.value {
        RawBsonRef::String("*") => Ok(None),
        RawBsonRef::String(name) => Ok(Some(vec![name])),
        // What the first item is decides whether it is a list of names at all.
        RawBsonRef::Array(names)
            if matches!(
                names.into_iter().flatten().next(),
                None | Some(RawBsonRef::String(_))
            ) =>
        {
            let name = |(place, name): (usize, RawBsonRef<'a>)| match name {
                RawBsonRef::String(name) => Ok(name),
                other => Err(CommandError::new(
                    ErrorCode::TypeMismatch,
                    format!(
                        "BSON field '{0}.{0}.{place}' is the wrong type '{1}', expected type \
                         'string'",
                        GET.name,
                        banyan_document::kind::name(&other)
                    ),
                )),
            };
            let names = names.into_iter().flatten().enumerate();
            let names = names.filter(|(_, name)| !params::is_null(*name));
            names.map(name).collect::<Result<_, _>>().map(Some)
        }
        _ => Err(field.wrong_type("types '[string']")),
    }
}

fn refuse_standalone(ctx: &CommandContext<'_>) -> Result<(), CommandError> {
    match ctx.node.replication.is_replica_set() {
        true => Ok(()),
        false => Err(CommandError::new(
            ErrorCode::IllegalOperation,
            format!("{} cannot be run on standalones", ctx.spec.name),
        )),
    }
}

fn set<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move {
        let field = ctx.required(SET.name)?;
        field.document()?;
        refuse_standalone(ctx)?;
        if ctx.node.info.role != ClusterRole::None {
            return Err(CommandError::new(
                ErrorCode::NotImplemented,
                "setClusterParameter can only run on mongos in sharded clusters",
            ));
        }
        set_from(ctx, field).await
    })
}

/// Sets the first parameter that a field's document names; others say nothing, as in 6.0.
pub async fn set_from(ctx: &CommandContext<'_>, field: Field<'_>) -> CommandResult {
    let refuse = |text: String| Err(CommandError::new(ErrorCode::IllegalOperation, text));
    let mut asked = field.document()?.iter().flatten();
    let (name, value) = match asked.next() {
        Some((name, value)) => (name.as_str(), value),
        None => ("", RawBsonRef::Null),
    };
    let Some(parameter) = cluster_parameters::find(name) else {
        return refuse(format!("Unknown Cluster Parameter {name}"));
    };
    let RawBsonRef::Document(value) = value else {
        return refuse("Cluster parameter value must be an object".to_owned());
    };
    if name == QUERY_SETTINGS {
        return refuse(format!(
            "{name} is set by the commands setQuerySettings and removeQuerySettings"
        ));
    }
    keep_value(ctx, parameter, value).await?;
    Ok(rawdoc! { "ok": 1.0 })
}

/// Sets a parameter for a command that knows what it may be.
pub(super) async fn keep(
    ctx: &CommandContext<'_>,
    name: &str,
    value: &RawDocument,
) -> Result<(), CommandError> {
    let parameter = cluster_parameters::find(name)
        .ok_or_else(|| errors::internal("there is no such parameter"))?;
    keep_value(ctx, parameter, value).await
}

async fn keep_value(
    ctx: &CommandContext<'_>,
    parameter: &Parameter,
    value: &RawDocument,
) -> Result<(), CommandError> {
    let time = ctx.node.replica.machine.operation_time();
    let document = parameter.document(value, time)?;
    let statement = replacement(parameter.name, document);
    ctx.nested("config", statement).await.map(drop)
}

fn replacement(name: &str, document: RawDocumentBuf) -> RawDocumentBuf {
    let mut statement = rawdoc! { "q": { "_id": name }, "u": document };
    statement.append(cstr!("upsert"), true);
    rawdoc! { "update": COLLECTION, "updates": RawArrayBuf::from_iter([statement]) }
}
