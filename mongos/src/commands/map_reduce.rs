//! `mapReduce`: every shard maps and reduces its part, and the shard where the output lives reads
//! the partial results of all of them, reduces what shares a key, finalizes and writes.

mod quotas;

use banyan_access::check::Access;
use banyan_access::reads_and_writes;
use std::sync::Arc;
use std::time::Instant;

use banyan_document::DocumentWriter;
use banyan_wire::{CommandError, ErrorCode, Outgoing, RequestOptions};
use bson::{RawBsonRef, RawDocument, rawdoc};
use futures::future::join_all;

use super::forward;
use crate::answer::Answer;
use crate::catalog::Route;
use crate::collation;
use crate::context::{CommandResult, CommandSpec, Context, run};
use crate::ending::while_awaited;
use crate::fields;

pub const SPEC: CommandSpec =
    CommandSpec::new("mapReduce", "maps and reduces with JavaScript", run!(run))
        .access(Access::Checked(reads_and_writes::map_reduce))
        .aliases(&["mapreduce"]);

const COUNTS: [&str; 4] = ["input", "emit", "reduce", "output"];

async fn run(context: &Context<'_>) -> CommandResult {
    let ns = context.namespace()?;
    let ns = ns.as_str();
    let started = Instant::now();
    let out = Output::parse(context);
    if matches!(out, Output::Inline) && context.request.get("writeConcern").is_some() {
        let text = "Command does not support writeConcern";
        return Err(CommandError::new(ErrorCode::InvalidOptions, text));
    }
    let out = &out;
    context
        .router
        .with_route(ns, false, |route| async move {
            let route = route.ok_or_else(|| {
                let text = format!("ns doesn't exist: {ns}");
                CommandError::new(ErrorCode::NamespaceNotFound, text)
            })?;
            let home = out.shard(context, &route).await?;
            if !route.is_sharded() && home == route.database.primary {
                let answer = forward::forward(context, &route, &home, true);
                return Ok(while_awaited(context.connection, answer).await?.reply);
            }
            let parts = Parts::map(context, &route).await?;
            let mapped = started.elapsed().as_millis();
            let collator = collation::resolved(context, &route, &context.request.body).await?;
            let collation = collation::explicit(collator.as_ref());
            let finished = parts.finish(context, &home, &collation).await?;
            parts
                .reply(context, &finished, mapped as i64, started)
                .await
        })
        .await
}

/// Where the results go.
enum Output {
    Inline,
    Collection { database: String, name: String },
}

impl Output {
    /// What cannot be read is left to the shards to complain of.
    fn parse(context: &Context<'_>) -> Output {
        let request = context.request;
        let collection = |database: &str, name: &str| Output::Collection {
            database: database.to_owned(),
            name: name.to_owned(),
        };
        match fields::get(&request.body, "out") {
            Some(RawBsonRef::String(name)) if !name.is_empty() => {
                collection(&request.database, name)
            }
            Some(RawBsonRef::Document(out)) if fields::get(out, "inline").is_none() => {
                let name = ["replace", "normal", "merge", "reduce"]
                    .iter()
                    .find_map(|mode| out.get_str(mode).ok())
                    .filter(|name| !name.is_empty());
                let database = match fields::get(out, "db") {
                    None => Some(&*request.database),
                    Some(RawBsonRef::String(database)) => Some(database),
                    Some(_) => None,
                };
                match (database.filter(|name| !name.is_empty()), name) {
                    (Some(database), Some(name)) => collection(database, name),
                    _ => Output::Inline,
                }
            }
            _ => Output::Inline,
        }
    }

    /// The shard that puts the results together.
    async fn shard(&self, context: &Context<'_>, source: &Route) -> Result<Arc<str>, CommandError> {
        let Output::Collection { database, name } = self else {
            return Ok(source.database.primary.clone());
        };
        let ns = format!("{database}.{name}");
        let route = context.router.catalog.route_or_create(&ns).await?;
        if route.is_sharded() {
            let text = format!("map-reduce cannot write into the sharded collection {ns} yet");
            return Err(CommandError::new(ErrorCode::NotImplemented, text));
        }
        Ok(route.database.primary.clone())
    }
}

/// The partial results of all shards, each behind a cursor.
struct Parts {
    answers: Vec<Answer>,
}

impl Parts {
    async fn map(context: &Context<'_>, route: &Route) -> Result<Parts, CommandError> {
        let request = context.request;
        let empty = bson::RawDocumentBuf::new();
        let filter = fields::document(&request.body, "query")?.unwrap_or(&empty);
        let shards = crate::targeting::of_filter(route, filter, &request.body);
        let requests = quotas::of(context, route, shards)
            .await?
            .into_iter()
            .map(|(shard, quota)| {
                let command = map_command(context, route, &shard, quota);
                (shard, command)
            })
            .collect();
        // A part that is lost on the way is mapped again: it has changed nothing.
        let request_options = context.request_options(false);
        let asked = async { Ok(context.router.send_all(requests, request_options).await) };
        let answers = while_awaited(context.connection, asked).await?;
        let mut parts = Parts {
            answers: Vec::new(),
        };
        let mut failure: Option<CommandError> = None;
        for answer in answers {
            match answer.and_then(Answer::checked) {
                Ok(answer) => parts.answers.push(answer),
                Err(error) if error.code.is_stale_routing() => failure = Some(error),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        match failure {
            None => Ok(parts),
            Some(error) => {
                parts.kill(context).await;
                Err(error)
            }
        }
    }

    async fn finish(
        &self,
        context: &Context<'_>,
        home: &str,
        collation: &RawDocument,
    ) -> Result<bson::RawDocumentBuf, CommandError> {
        let outcome = match self.finish_command(context, collation) {
            Ok(command) => {
                let outgoing = Outgoing::command(&context.request.database, &command);
                let request_options = RequestOptions::write().deadline(context.deadline);
                let asked = context.router.send(home, request_options, &outgoing);
                while_awaited(context.connection, asked).await
            }
            Err(error) => Err(error),
        };
        match outcome.and_then(Answer::checked) {
            Ok(answer) => Ok(answer.reply),
            Err(error) => {
                self.kill(context).await;
                // The parts are gone with their cursors, so a stale route must not lead back here
                // unseen: the whole command runs again, which is what the caller does.
                Err(error)
            }
        }
    }

    fn finish_command(
        &self,
        context: &Context<'_>,
        collation: &RawDocument,
    ) -> Result<bson::RawDocumentBuf, CommandError> {
        let mut command = DocumentWriter::new();
        copy(
            &mut command,
            context,
            "_shardMapReduceFinish",
            &[
                "reduce",
                "finalize",
                "scope",
                "out",
                "bypassDocumentValidation",
                "verbose",
                "maxTimeMS",
                "comment",
                "writeConcern",
                "lsid",
            ],
        );
        command.append_doc("collation", collation);
        command.begin_array("inputs");
        for answer in &self.answers {
            let address = Address::of(answer)?;
            command.push_document();
            command.append_str("host", address.host);
            command.append_i64("cursor", address.cursor);
            command.append_str("ns", address.ns);
            command.end();
        }
        command.end();
        Ok(command.finish())
    }

    /// Closes the cursors that nobody will read.
    async fn kill(&self, context: &Context<'_>) {
        let session = &forward::session(context.request);
        let kills = self.answers.iter().map(|answer| async move {
            let Ok(address) = Address::of(answer) else {
                return;
            };
            let (database, collection) = address.ns.split_once('.').unwrap_or((address.ns, ""));
            let mut command = rawdoc! {"killCursors": collection, "cursors": [address.cursor]};
            if let Some(session) = session {
                command.append(bson::cstr!("lsid"), session.clone());
            }
            // It times out by itself otherwise.
            let _ = answer.member.command(database, &command, None).await;
        });
        join_all(kills).await;
    }

    /// The reply as the 2.x router gave it.
    async fn reply(
        &self,
        context: &Context<'_>,
        finished: &RawDocument,
        mapped_ms: i64,
        started: Instant,
    ) -> CommandResult {
        let mut out = DocumentWriter::new();
        for name in ["results", "result"] {
            if let Some(value) = fields::get(finished, name) {
                out.append(name, value);
            }
        }
        let mut totals = [0; 4];
        out.begin_document("shardCounts");
        for answer in &self.answers {
            let shard = context.router.shards.get(&answer.shard).await?;
            out.begin_document(&shard.address);
            for (total, name) in totals.iter_mut().zip(COUNTS) {
                let n = count(&answer.reply, name);
                append_count(&mut out, name, n);
                *total += n;
            }
            out.end();
        }
        out.end();
        let [input, emit, reduce, _] = totals;
        out.begin_document("counts");
        out.append_i64("input", input);
        out.append_i64("emit", emit);
        out.append_i64("reduce", reduce + count(finished, "reduce"));
        out.append_i64("output", count(finished, "output"));
        out.end();
        let total_ms = started.elapsed().as_millis() as i64;
        append_count(&mut out, "timeMillis", total_ms);
        out.begin_document("timing");
        append_count(&mut out, "shards", mapped_ms);
        append_count(&mut out, "final", total_ms - mapped_ms);
        out.end();
        if let Some(error) = fields::get(finished, "writeConcernError") {
            out.append("writeConcernError", error);
        }
        out.append_f64("ok", 1.0);
        Ok(out.finish())
    }
}

/// A count as the 2.x router gave it: plain while it fits, where only the totals are always long.
fn append_count(out: &mut DocumentWriter, name: &str, n: i64) {
    match i32::try_from(n) {
        Ok(n) => out.append_i32(name, n),
        Err(_) => out.append_i64(name, n),
    }
}

/// Where a shard's partial results are.
struct Address<'a> {
    host: &'a str,
    cursor: i64,
    ns: &'a str,
}

impl<'a> Address<'a> {
    fn of(answer: &'a Answer) -> Result<Address<'a>, CommandError> {
        let parts = || {
            let cursor = answer.reply.get_document("cursor").ok()?;
            Some(Address {
                host: answer.reply.get_str("host").ok()?,
                cursor: cursor.get_i64("id").ok()?,
                ns: cursor.get_str("ns").ok()?,
            })
        };
        parts().ok_or_else(|| {
            let text = format!(
                "shard {} gave no cursor over its partial results",
                answer.shard
            );
            CommandError::new(ErrorCode::OperationFailed, text)
        })
    }
}

/// A shard's part. It is given all that the client has said, as it is the shards that know the
/// options. What it does is known by the client's session, and so is the cursor over the result.
fn map_command(context: &Context<'_>, route: &Route, shard: &str, quota: Option<i64>) -> Outgoing {
    let mut body = DocumentWriter::new();
    for (index, element) in banyan_document::elements(&context.request.body).enumerate() {
        if index == 0 {
            body.append_element_as("_shardMapReduce", &element);
        } else {
            body.append_element(&element);
        }
    }
    let mut dropped = vec!["txnNumber", "writeConcern"];
    let mut added = DocumentWriter::new();
    added.append_all(&route.versions(shard));
    if let Some(quota) = quota {
        dropped.push("limit");
        added.append_i64("limit", quota);
    }
    forward::passed_on(&body.finish(), &dropped, &added.finish())
}

/// The command's first field under another name, and those of `names` that it has.
fn copy(out: &mut DocumentWriter, context: &Context<'_>, name: &str, names: &[&str]) {
    for (index, element) in banyan_document::elements(&context.request.body).enumerate() {
        if index == 0 {
            out.append_element_as(name, &element);
        } else if names.contains(&element.name()) {
            out.append_element(&element);
        }
    }
}

fn count(reply: &RawDocument, name: &str) -> i64 {
    match fields::get(reply, "counts") {
        Some(RawBsonRef::Document(counts)) => fields::get_number(counts, name).unwrap_or(0),
        _ => 0,
    }
}
