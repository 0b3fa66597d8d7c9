//! `explain`: the shards' plans, under the shards' names.

use banyan_access::check::Access;
use banyan_access::reads_and_writes;
use banyan_document::DocumentWriter;
use banyan_process::machine;
use banyan_wire::version::COMPATIBLE_VERSION;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use super::forward;
use crate::answer::Answer;
use crate::catalog::Route;
use crate::context::{CommandResult, CommandSpec, Context, run};
use crate::errors::query_error;
use crate::fields;
use crate::targeting;
use crate::views::{self, Told};

pub const SPEC: CommandSpec =
    CommandSpec::new("explain", "how a command is carried out", run!(run))
        .access(Access::Checked(reads_and_writes::explained));

/// The commands that say how they are carried out.
const EXPLAINED: &[&str] = &[
    "aggregate",
    "count",
    "delete",
    "distinct",
    "find",
    "findAndModify",
    "findandmodify",
    "update",
];

async fn run(context: &Context<'_>) -> CommandResult {
    let request = context.request;
    let Some(RawBsonRef::Document(inner)) = request.first_value() else {
        let text = "explain command requires a nested object";
        return Err(CommandError::new(ErrorCode::TypeMismatch, text));
    };
    let name = banyan_document::elements(inner).next();
    let name = name.as_ref().map_or("", |first| first.name());
    if !EXPLAINED.contains(&name) {
        return Err(unexplained(context, name));
    }
    let (name, collection) = match inner.iter().next() {
        Some(Ok((name, RawBsonRef::String(collection)))) => (name.as_str(), collection),
        _ => {
            let text = "explain needs a command with the name of a collection";
            return Err(CommandError::new(ErrorCode::BadValue, text));
        }
    };
    let outcome = explain(context, name, collection, inner).await;
    let Some(told) = told(context, collection, &outcome) else {
        return outcome;
    };
    let made = match name {
        "find" => told.resolved.of_find(inner),
        "count" => told.resolved.of_count(inner),
        "distinct" => told.resolved.of_distinct(inner),
        "aggregate" => told.resolved.of_aggregate(inner),
        _ => return outcome,
    };
    let made = made.map_err(query_error)?;
    let mut body = DocumentWriter::new();
    body.append_doc("explain", &made);
    for element in banyan_document::elements(&request.body).skip(1) {
        body.append_element(&element);
    }
    of_view(context, "explain", body.finish(), &made).await
}

/// What a shard says of the explained view instead of an answer.
fn told(context: &Context<'_>, collection: &str, outcome: &CommandResult) -> Option<Told> {
    let told = Told::of_outcome(outcome);
    let ns = format!("{}.{collection}", context.request.database);
    told.filter(|told| told.view == ns)
}

/// Explains what the command comes to on the collection below its view.
async fn of_view(
    context: &Context<'_>,
    name: &str,
    body: RawDocumentBuf,
    made: &RawDocument,
) -> CommandResult {
    let request = views::request(context, name, body);
    let context = Context {
        request: &request,
        ..*context
    };
    let below = made.get_str("aggregate").unwrap_or_default();
    explain(&context, "aggregate", below, made).await
}

/// `aggregate` with `explain: true`.
pub async fn aggregate(context: &Context<'_>) -> CommandResult {
    let collection = fields::collection(context.request)?;
    let outcome = explain(context, "aggregate", collection, &context.request.body).await;
    let Some(told) = told(context, collection, &outcome) else {
        return outcome;
    };
    let made = told.resolved.of_aggregate(&context.request.body);
    let made = made.map_err(query_error)?;
    of_view(context, "aggregate", made.clone(), &made).await
}

async fn explain(
    context: &Context<'_>,
    name: &str,
    collection: &str,
    inner: &RawDocument,
) -> CommandResult {
    let ns = format!("{}.{collection}", context.request.database);
    let filter = filter(name, inner)?;
    let filter = &*filter;
    context
        .router
        .with_route(&ns, false, |route| async move {
            let Some(route) = route else {
                return Ok(end_of_stream(context));
            };
            let shards = match name {
                "aggregate" => {
                    let stages = fields::stages(inner)?;
                    targeting::of_pipeline(&route, &stages, inner)
                }
                _ => targeting::of_filter(&route, filter, inner),
            };
            let requests = shards
                .iter()
                .map(|shard| {
                    (
                        shard.clone(),
                        forward::outgoing(context.request, &route, shard),
                    )
                })
                .collect();
            let answers = forward::gather(context, requests, false).await?;
            if let [only] = answers.as_slice()
                && name == "aggregate"
            {
                return Ok(only.reply.clone());
            }
            put_together(context, &route, name, &answers).await
        })
        .await
}

/// The filter of the command that is explained.
fn filter(name: &str, inner: &RawDocument) -> Result<RawDocumentBuf, CommandError> {
    let from = |holder: &RawDocument, field: &str| -> Result<RawDocumentBuf, CommandError> {
        Ok(fields::document(holder, field)?
            .map(|f| f.to_owned())
            .unwrap_or_default())
    };
    match name {
        "find" => from(inner, "filter"),
        "count" | "distinct" | "findAndModify" | "findandmodify" => from(inner, "query"),
        "update" | "delete" => {
            let field = if name == "update" {
                "updates"
            } else {
                "deletes"
            };
            let first = match fields::get(inner, field) {
                Some(RawBsonRef::Array(statements)) => statements.get(0).ok().flatten(),
                _ => None,
            };
            match first {
                Some(RawBsonRef::Document(statement)) => from(statement, "q"),
                _ => Ok(RawDocumentBuf::new()),
            }
        }
        _ => Ok(RawDocumentBuf::new()),
    }
}

fn unexplained(context: &Context<'_>, name: &str) -> CommandError {
    match context.commands.find(name) {
        Some(_) => CommandError::new(
            ErrorCode::IllegalOperation,
            format!("Cannot explain cmd: {name}"),
        ),
        None => CommandError::new(
            ErrorCode::CommandNotFound,
            format!("Explain failed due to unknown command: {name}"),
        ),
    }
}

fn end_of_stream(context: &Context<'_>) -> RawDocumentBuf {
    let mut out = DocumentWriter::new();
    out.begin_document("queryPlanner");
    out.begin_document("winningPlan");
    out.append_str("stage", "EOF");
    out.end();
    out.end();
    finish(context, out)
}

async fn put_together(
    context: &Context<'_>,
    route: &Route,
    name: &str,
    answers: &[Answer],
) -> CommandResult {
    let mut out = DocumentWriter::new();
    if name == "aggregate" {
        out.append_str("mergeType", "mongos");
        out.begin_document("shards");
        answers
            .iter()
            .for_each(|answer| fields::append_reply(&mut out, &answer.shard, &answer.reply));
        out.end();
        return Ok(finish(context, out));
    }
    let stage = if answers.len() == 1 {
        "SINGLE_SHARD"
    } else {
        "SHARD_MERGE"
    };
    out.begin_document("queryPlanner");
    out.append_i32("mongosPlannerVersion", 1);
    out.append_str("namespace", &route.ns);
    out.begin_document("winningPlan");
    out.append_str("stage", stage);
    out.begin_array("shards");
    for answer in answers {
        out.push_document();
        out.append_str("shardName", &answer.shard);
        let shard = context.router.shards.get(&answer.shard).await?;
        out.append_str("connectionString", &shard.address);
        append_all(&mut out, &answer.reply, "queryPlanner");
        out.end();
    }
    out.end();
    out.end();
    out.end();
    if answers
        .iter()
        .any(|answer| fields::get(&answer.reply, "executionStats").is_some())
    {
        execution_stats(&mut out, stage, answers);
    }
    Ok(finish(context, out))
}

fn execution_stats(out: &mut DocumentWriter, stage: &str, answers: &[Answer]) {
    let each = |name: &str| -> Vec<i64> {
        let stats = answers
            .iter()
            .filter_map(|answer| fields::get(&answer.reply, "executionStats"));
        stats
            .filter_map(|stats| fields::get_number(stats.as_document()?, name))
            .collect()
    };
    let slowest = each("executionTimeMillis").into_iter().max().unwrap_or(0);
    let append = |out: &mut DocumentWriter, name: &str, n: i64| {
        out.append(
            name,
            i32::try_from(n).map_or(RawBsonRef::Int64(n), RawBsonRef::Int32),
        );
    };
    out.begin_document("executionStats");
    append(out, "nReturned", each("nReturned").iter().sum());
    append(out, "executionTimeMillis", slowest);
    append(
        out,
        "totalKeysExamined",
        each("totalKeysExamined").iter().sum(),
    );
    append(
        out,
        "totalDocsExamined",
        each("totalDocsExamined").iter().sum(),
    );
    out.begin_document("executionStages");
    out.append_str("stage", stage);
    append(out, "nReturned", each("nReturned").iter().sum());
    append(out, "executionTimeMillis", slowest);
    out.begin_array("shards");
    for answer in answers {
        out.push_document();
        out.append_str("shardName", &answer.shard);
        append_all(out, &answer.reply, "executionStats");
        out.end();
    }
    out.end();
    out.end();
    out.end();
}

/// Appends the fields of one section of a shard's reply.
fn append_all(out: &mut DocumentWriter, reply: &RawDocument, section: &str) {
    if let Some(RawBsonRef::Document(section)) = fields::get(reply, section) {
        out.append_all(section);
    }
}

fn finish(context: &Context<'_>, mut out: DocumentWriter) -> RawDocumentBuf {
    out.begin_document("serverInfo");
    out.append_str("host", &machine::hostname());
    out.append_i32("port", i32::from(context.router.identity.port));
    out.append_str("version", COMPATIBLE_VERSION);
    out.end();
    out.append_f64("ok", 1.0);
    out.finish()
}
