//! `explain`: the shards' plans, under the shards' names.

use std::sync::Arc;

use banyan_access::check::Access;
use banyan_access::reads_and_writes;
use banyan_document::DocumentWriter;
use banyan_process::machine;
use banyan_wire::version::COMPATIBLE_VERSION;
use banyan_wire::{CommandError, ErrorCode, Request};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use super::forward;
use super::pipeline::{self, Division};
use crate::answer::Answer;
use crate::catalog::Route;
use crate::context::{CommandResult, CommandSpec, Context, run};
use crate::errors::query_error;
use crate::fields;
use crate::targeting::{self, Target};
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
    "mapReduce",
    "mapreduce",
    "update",
];

/// Commands of which each shard tells as of a pipeline.
const PIPELINES: &[&str] = &["aggregate", "mapReduce", "mapreduce"];

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
                return Ok(end_of_stream(context, inner));
            };
            let shards = match target(&route, name, filter, inner)? {
                Target::AnyOf(shards) => {
                    return two_phases(context, &route, name, inner, &shards).await;
                }
                target => target.shards().to_vec(),
            };
            if name == "aggregate" && shards.len() > 1 {
                return divided(context, &route, inner, &shards).await;
            }
            let answers = gather(context, &route, &shards, context.request).await?;
            match answers.as_slice() {
                [only] if PIPELINES.contains(&name) && route.table.is_none() => {
                    Ok(only.reply.clone())
                }
                _ if PIPELINES.contains(&name) => Ok(of_parts(context, inner, None, &answers)),
                _ => put_together(context, &route, name, inner, &answers).await,
            }
        })
        .await
}

/// The shards that carry out the command that is explained.
fn target(
    route: &Route,
    name: &str,
    filter: &RawDocument,
    inner: &RawDocument,
) -> Result<Target, CommandError> {
    let first = match name {
        "update" => statement(inner, "updates"),
        "delete" => statement(inner, "deletes"),
        _ => None,
    };
    match (name, first, &route.table) {
        ("aggregate", ..) => {
            let stages = fields::stages(inner)?;
            Ok(Target::Many(targeting::of_pipeline(route, &stages, inner)))
        }
        ("update", Some(first), _) => targeting::of_update(route, first),
        ("delete", Some(first), _) => targeting::of_delete(route, first),
        ("findAndModify" | "findandmodify", _, Some(table)) => {
            let filter = targeting::parse(table, filter, inner)?;
            let upsert = fields::get_flag(inner, "upsert");
            Ok(targeting::of_one(table, &filter, upsert))
        }
        _ => Ok(Target::Many(targeting::of_filter(route, filter, inner))),
    }
}

/// The first statement of a write.
fn statement<'a>(inner: &'a RawDocument, field: &str) -> Option<&'a RawDocument> {
    match fields::get(inner, field)? {
        RawBsonRef::Array(statements) => statements.get(0).ok()??.as_document(),
        _ => None,
    }
}

async fn gather(
    context: &Context<'_>,
    route: &Route,
    shards: &[Arc<str>],
    request: &Request,
) -> Result<Vec<Answer>, CommandError> {
    let requests = shards.iter().map(|shard| {
        let outgoing = forward::outgoing(request, route, shard);
        (shard.clone(), outgoing)
    });
    forward::gather(context, requests.collect(), false).await
}

/// A write for which all shards look, and which one of them carries out
/// ([`crate::without_shard_key`]).
async fn two_phases(
    context: &Context<'_>,
    route: &Route,
    name: &str,
    inner: &RawDocument,
    shards: &[Arc<str>],
) -> CommandResult {
    let written = gather(
        context,
        route,
        &shards[..shards.len().min(1)],
        context.request,
    )
    .await?;
    let mut body = DocumentWriter::new();
    body.append_doc("explain", &search(route, name, inner));
    for element in banyan_document::elements(&context.request.body).skip(1) {
        body.append_element(&element);
    }
    let request = views::request(context, "explain", body.finish());
    let found = gather(context, route, shards, &request).await?;
    let mut out = DocumentWriter::new();
    out.begin_document("queryPlanner");
    out.append_i32("mongosPlannerVersion", 1);
    out.append_str("namespace", &route.ns);
    out.begin_document("winningPlan");
    out.append_str("stage", "SHARD_WRITE");
    append_shards(context, &mut out, &written).await?;
    out.begin_document("inputStage");
    out.append_str("stage", "SHARD_MERGE");
    append_shards(context, &mut out, &found).await?;
    out.end();
    out.end();
    out.end();
    if has_statistics(&written) {
        execution_stats(&mut out, "SHARD_WRITE", &written, |out| {
            out.begin_document("inputStage");
            append_stages(out, "SHARD_MERGE", &found);
            out.end();
        });
    }
    Ok(finish(context, inner, &written, out))
}

/// How shards look for the document of a write.
fn search(route: &Route, name: &str, inner: &RawDocument) -> RawDocumentBuf {
    let (_, collection) = route.ns.split_once('.').unwrap_or_default();
    let (holder, filter) = match name {
        "update" => (statement(inner, "updates").unwrap_or(inner), "q"),
        "delete" => (statement(inner, "deletes").unwrap_or(inner), "q"),
        _ => (inner, "query"),
    };
    let mut out = DocumentWriter::new();
    out.append_str("find", collection);
    let mut pass = |from: &RawDocument, field: &str, to: &str| {
        if let Some(value) = fields::get(from, field) {
            out.append(to, value);
        }
    };
    pass(holder, filter, "filter");
    for field in ["sort", "hint", "collation"] {
        pass(holder, field, field);
    }
    pass(inner, "let", "let");
    out.append_i32("limit", 1);
    out.finish()
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
        "count" | "distinct" | "findAndModify" | "findandmodify" | "mapReduce" | "mapreduce" => {
            from(inner, "query")
        }
        "update" | "delete" => {
            let field = if name == "update" {
                "updates"
            } else {
                "deletes"
            };
            match statement(inner, field) {
                Some(statement) => from(statement, "q"),
                None => Ok(RawDocumentBuf::new()),
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

fn end_of_stream(context: &Context<'_>, inner: &RawDocument) -> RawDocumentBuf {
    let mut out = DocumentWriter::new();
    out.begin_document("queryPlanner");
    out.begin_document("winningPlan");
    out.append_str("stage", "EOF");
    out.end();
    out.end();
    finish(context, inner, &[], out)
}

/// A pipeline of which each of several shards does its part.
async fn divided(
    context: &Context<'_>,
    route: &Route,
    inner: &RawDocument,
    shards: &[Arc<str>],
) -> CommandResult {
    let stages = fields::stages(inner)?;
    let asked = views::request(context, "aggregate", inner.to_owned());
    let of_pipeline = Context {
        request: &asked,
        ..*context
    };
    let division = pipeline::division(&of_pipeline, route, &stages).await?;
    let mut part = DocumentWriter::new();
    for element in banyan_document::elements(inner) {
        match element.name() {
            "pipeline" => {
                part.begin_array("pipeline");
                let mut stages = division.shards.iter();
                stages
                    .by_ref()
                    .for_each(|stage| part.push(RawBsonRef::Document(stage)));
                part.end();
            }
            "cursor" | "explain" | "lsid" => {}
            name if name.starts_with('$') => {}
            _ => part.append_element(&element),
        }
    }
    // Without `explain` of its own it has to have one.
    part.begin_document("cursor");
    part.end();
    part.append_bool("needsMerge", true);
    let mut body = DocumentWriter::new();
    body.append_doc("explain", &part.finish());
    match context.request.name.as_str() {
        "explain" => {
            for element in banyan_document::elements(&context.request.body).skip(1) {
                body.append_element(&element);
            }
        }
        // `aggregate` with `explain: true`.
        _ => {
            body.append_str("verbosity", "queryPlanner");
            let own = banyan_document::elements(inner);
            own.filter(|field| field.name().starts_with('$') || field.name() == "lsid")
                .for_each(|field| body.append_element(&field));
        }
    }
    let request = views::request(context, "explain", body.finish());
    let answers = gather(context, route, shards, &request).await?;
    Ok(of_parts(context, inner, Some(&division), &answers))
}

/// What shards say of their parts of a pipeline; `None`: of the whole of it.
fn of_parts(
    context: &Context<'_>,
    inner: &RawDocument,
    division: Option<&Division>,
    answers: &[Answer],
) -> RawDocumentBuf {
    let mut out = DocumentWriter::new();
    match division {
        Some(division) => {
            out.append_str("mergeType", "mongos");
            out.begin_document("splitPipeline");
            for (name, stages) in [
                ("shardsPart", &division.shards),
                ("mergerPart", &division.router),
            ] {
                out.begin_array(name);
                stages
                    .iter()
                    .for_each(|stage| out.push(RawBsonRef::Document(stage)));
                out.end();
            }
            out.end();
        }
        None => out.append("splitPipeline", RawBsonRef::Null),
    }
    out.begin_document("shards");
    for answer in answers {
        out.begin_document(&answer.shard);
        if let Some(host) = host(&answer.reply) {
            out.append_str("host", &host);
        }
        for name in ["explainVersion", "stages", "queryPlanner", STATISTICS] {
            if let Some(value) = fields::get(&answer.reply, name) {
                out.append(name, value);
            }
        }
        out.end();
    }
    out.end();
    finish(context, inner, answers, out)
}

/// Who has answered.
fn host(reply: &RawDocument) -> Option<String> {
    let server = fields::get(reply, "serverInfo")?.as_document()?;
    let host = server.get_str("host").ok()?;
    let port = fields::get_number(server, "port")?;
    Some(format!("{host}:{port}"))
}

async fn put_together(
    context: &Context<'_>,
    route: &Route,
    name: &str,
    inner: &RawDocument,
    answers: &[Answer],
) -> CommandResult {
    let mut out = DocumentWriter::new();
    let sorts = || {
        let sort = fields::get(inner, "sort").and_then(|sort| sort.as_document());
        name == "find" && sort.is_some_and(|sort| !sort.is_empty())
    };
    let stage = match answers.len() {
        1 => "SINGLE_SHARD",
        _ if sorts() => "SHARD_MERGE_SORT",
        _ => "SHARD_MERGE",
    };
    out.begin_document("queryPlanner");
    out.append_i32("mongosPlannerVersion", 1);
    out.append_str("namespace", &route.ns);
    out.begin_document("winningPlan");
    out.append_str("stage", stage);
    append_shards(context, &mut out, answers).await?;
    out.end();
    out.end();
    if has_statistics(answers) {
        execution_stats(&mut out, stage, answers, |_| {});
    }
    Ok(finish(context, inner, answers, out))
}

/// What each shard says of its plan.
async fn append_shards(
    context: &Context<'_>,
    out: &mut DocumentWriter,
    answers: &[Answer],
) -> Result<(), CommandError> {
    out.begin_array("shards");
    for answer in answers {
        out.push_document();
        if let Some(version) = fields::get(&answer.reply, "explainVersion") {
            out.append("explainVersion", version);
        }
        out.append_str("shardName", &answer.shard);
        let shard = context.router.shards.get(&answer.shard).await?;
        out.append_str("connectionString", &shard.address);
        if let Some(server) = fields::get(&answer.reply, "serverInfo") {
            out.append("serverInfo", server);
        }
        append_all(out, &answer.reply, "queryPlanner");
        out.end();
    }
    out.end();
    Ok(())
}

fn has_statistics(answers: &[Answer]) -> bool {
    let has = |answer: &Answer| fields::get(&answer.reply, STATISTICS).is_some();
    answers.iter().any(has)
}

/// `more`: what stands beside the stages.
fn execution_stats(
    out: &mut DocumentWriter,
    stage: &str,
    answers: &[Answer],
    more: impl FnOnce(&mut DocumentWriter),
) {
    out.begin_document(STATISTICS);
    append_number(out, "nReturned", each(answers, "nReturned").sum());
    append_number(out, "executionTimeMillis", slowest(answers));
    for name in ["totalKeysExamined", "totalDocsExamined"] {
        append_number(out, name, each(answers, name).sum());
    }
    out.begin_document("executionStages");
    append_stages(out, stage, answers);
    out.end();
    more(out);
    out.end();
}

fn append_stages(out: &mut DocumentWriter, stage: &str, answers: &[Answer]) {
    out.append_str("stage", stage);
    append_number(out, "nReturned", each(answers, "nReturned").sum());
    append_number(out, "executionTimeMillis", slowest(answers));
    for name in ["totalKeysExamined", "totalDocsExamined"] {
        append_number(out, name, each(answers, name).sum());
    }
    let children: i64 = each(answers, "executionTimeMillis").sum();
    out.append("totalChildMillis", RawBsonRef::Int64(children));
    out.begin_array("shards");
    for answer in answers {
        out.push_document();
        out.append_str("shardName", &answer.shard);
        append_all(out, &answer.reply, STATISTICS);
        out.end();
    }
    out.end();
}

/// A figure of each shard.
fn each<'a>(answers: &'a [Answer], name: &'a str) -> impl Iterator<Item = i64> + 'a {
    answers.iter().filter_map(move |answer| {
        let statistics = fields::get(&answer.reply, STATISTICS)?;
        fields::get_number(statistics.as_document()?, name)
    })
}

fn slowest(answers: &[Answer]) -> i64 {
    each(answers, "executionTimeMillis").max().unwrap_or(0)
}

fn append_number(out: &mut DocumentWriter, name: &str, n: i64) {
    out.append(
        name,
        i32::try_from(n).map_or(RawBsonRef::Int64(n), RawBsonRef::Int32),
    );
}

const STATISTICS: &str = "executionStats";

/// Appends the fields of one section of a shard's reply.
fn append_all(out: &mut DocumentWriter, reply: &RawDocument, section: &str) {
    if let Some(RawBsonRef::Document(section)) = fields::get(reply, section) {
        out.append_all(section);
    }
}

fn finish(
    context: &Context<'_>,
    inner: &RawDocument,
    answers: &[Answer],
    mut out: DocumentWriter,
) -> RawDocumentBuf {
    out.begin_document("serverInfo");
    out.append_str("host", &machine::hostname());
    out.append_i32("port", i32::from(context.router.identity.port));
    out.append_str("version", COMPATIBLE_VERSION);
    out.append_str("gitVersion", "unknown");
    out.end();
    // What stages may hold is set at the shards.
    let parameters = answers.first();
    let parameters = parameters.and_then(|answer| fields::get(&answer.reply, "serverParameters"));
    if let Some(parameters) = parameters {
        out.append("serverParameters", parameters);
    }
    out.begin_document("command");
    for element in banyan_document::elements(inner) {
        if element.name() != "$db" {
            out.append_element(&element);
        }
    }
    out.append_str("$db", &context.request.database);
    out.end();
    out.append_f64("ok", 1.0);
    out.finish()
}
