//! What the profiler keeps of an operation, and which ones it keeps.

use std::sync::Arc;
use std::time::{Duration, Instant};

use banyan_access::redaction::{self, HIDDEN};
use banyan_document::is_true;
use banyan_execution::PlanSummaryStats;
use banyan_execution::RowStream;
use banyan_execution::work::Work;
use banyan_wire::{CommandError, ErrorCode, OWN_CONNECTION_ID, Origin, Request};
use bson::{DateTime, RawArrayBuf, RawBsonRef, RawDocumentBuf, cstr, rawdoc};

use crate::commands::table::{CommandResult, CommandSpec, Needs};
use crate::context::CommandContext;
use crate::operations::{application_name, operation_word};
use crate::profiler::Settings;
use crate::shape;

/// A longer command is shown as a text of its beginning.
const COMMAND_BYTES_MAX: usize = 50 << 10;

/// What is to be done with an operation that has ended.
pub struct Verdict {
    pub is_logged: bool,
    is_kept: bool,
    settings: Settings,
}

/// Whether an operation that took so long is logged and profiled, where that depends on no filter.
pub fn judge(ctx: &CommandContext<'_>, took: Duration) -> Verdict {
    let node = ctx.node;
    let limit_ms = node.parameters.slow_ms();
    let took_ms = i64::try_from(took.as_millis()).unwrap_or(i64::MAX);
    let profiler = &node.profiler;
    let is_slow = || limit_ms >= 0 && took_ms >= limit_ms && profiler.samples();
    if !profiler.is_on() {
        return Verdict {
            is_logged: is_slow(),
            is_kept: false,
            settings: Settings::default(),
        };
    }
    let settings = profiler.settings(ctx.database());
    let is_logged = settings.filter.is_none() && is_slow();
    Verdict {
        is_logged,
        is_kept: settings.level >= 2 || (settings.level == 1 && is_logged),
        settings,
    }
}

/// Keeps a command that has ended, if it is to be kept. Whether it is to be logged.
pub fn keep(
    ctx: &CommandContext<'_>,
    took: Duration,
    result: &CommandResult,
    verdict: &Verdict,
) -> bool {
    let is_wanted = verdict.is_kept || verdict.settings.filter.is_some();
    if !is_wanted || !is_profiled(ctx) || names_nothing(result) {
        return verdict.is_logged;
    }
    let entry = of_command(ctx, took, result);
    let passes = match &verdict.settings.filter {
        Some(filter) => filter.try_matches(&entry).unwrap_or(false),
        None => verdict.is_logged,
    };
    // The statements of such a command are kept one by one, if it got that far.
    let is_in_parts = matches!(ctx.spec.name, "update" | "delete" | "bulkWrite") && result.is_ok();
    let level = verdict.settings.level;
    if !is_in_parts && (level >= 2 || (level == 1 && passes)) {
        ctx.node.profiler.add(ctx.database(), entry);
    }
    passes
}

/// A part of another command has ended: of those, inserts of a `bulkWrite` are operations of their
/// own.
pub fn keep_part(whole: &CommandContext<'_>, part: &CommandContext<'_>, result: &CommandResult) {
    if whole.spec.name != "bulkWrite" || part.spec.name != "insert" {
        return;
    }
    if part.node.profiler.is_on() {
        let took = part.busy();
        keep(part, took, result, &judge(part, took));
    }
}

/// Whether a command was refused for a name that it may not use: it has touched nothing.
fn names_nothing(result: &CommandResult) -> bool {
    let error = result.as_ref().err();
    error.is_some_and(|error| error.code == ErrorCode::InvalidNamespace)
}

/// Whether a command does something in its database: what only looks at the process does not.
fn is_profiled(ctx: &CommandContext<'_>) -> bool {
    let spec = ctx.spec;
    let is_internal = spec.name.starts_with('_') || ctx.conn.id == OWN_CONNECTION_ID;
    let touches = spec.writes || matches!(spec.needs, Needs::Readable | Needs::Data);
    !is_internal && touches && !spec.vital && !is_about_the_process(spec)
}

/// Commands of the tables that would count otherwise.
fn is_about_the_process(spec: &CommandSpec) -> bool {
    let name = spec.name;
    matches!(name, "killCursors" | "listDatabases" | "endSessions")
        || name.ends_with("User")
        || name.ends_with("Role")
        || ["sInfo", "UsersFromDatabase", "RolesFromDatabase"]
            .iter()
            .any(|end| name.ends_with(end))
        || name.starts_with("grant")
        || name.starts_with("revoke")
        || name.starts_with("sasl")
}

fn number(value: u64) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

fn of_command(ctx: &CommandContext<'_>, took: Duration, result: &CommandResult) -> RawDocumentBuf {
    let (name, work) = (ctx.spec.name, &ctx.work);
    let database = ctx.database();
    let mut entry = rawdoc! { "op": operation_word(name) };
    match collection_of(ctx) {
        Some(collection) => entry.append(cstr!("ns"), format!("{database}.{collection}")),
        None => entry.append(cstr!("ns"), database),
    }
    entry.append(cstr!("command"), shown_command(ctx));
    let notes = std::mem::take(&mut *ctx.notes.lock());
    if let Some(origin) = notes.origin {
        entry.append(cstr!("originatingCommand"), &**origin);
    }
    let reply = result.as_ref().ok();
    let cursor = reply.and_then(|reply| reply.get_document("cursor").ok());
    let cursor = cursor.filter(|_| returns_documents(ctx.spec));
    let open = cursor.and_then(|cursor| cursor.get_i64("id").ok());
    let continued = match (name, ctx.argument()) {
        ("getMore", Some(RawBsonRef::Int64(id))) => Some(id),
        _ => None,
    };
    if let Some(id) = open.filter(|id| *id != 0).or(continued) {
        entry.append(cstr!("cursorid"), id);
    }
    let stats = work.plan();
    let examined = work.plan_summary().is_some() || work.documents_examined.value() > 0;
    if examined || (cursor.is_some() && result.is_ok()) {
        append_examined(
            &mut entry,
            work.keys_examined.value(),
            work.documents_examined.value(),
        );
    }
    if work.sorts.value() > 0 {
        entry.append(cstr!("hasSortStage"), true);
    }
    if ctx.used_disk() {
        entry.append(cstr!("usedDisk"), true);
    }
    let choice = stats.as_ref().and_then(|stats| stats.choice());
    if choice.is_some_and(|choice| choice.from_multi_planner) {
        entry.append(cstr!("fromMultiPlanner"), true);
    }
    if let Some(reason) = choice.and_then(|choice| choice.replan_reason.as_deref()) {
        entry.append(cstr!("replanned"), true);
        entry.append(cstr!("replanReason"), reason);
    }
    let removes = ctx
        .field("remove")
        .is_some_and(|field| is_true(field.value));
    if name == "findAndModify" && !removes {
        append_changed(&mut entry, &Counts::of(work));
    }
    if work.deleted.value() > 0 || (name == "findAndModify" && removes) {
        entry.append(cstr!("ndeleted"), number(work.deleted.value()));
    }
    if name == "insert" {
        entry.append(cstr!("ninserted"), number(work.inserted.value()));
    }
    if open == Some(0) {
        entry.append(cstr!("cursorExhausted"), true);
    }
    entry.append(cstr!("numYield"), 0);
    if cursor.is_some() {
        entry.append(cstr!("nreturned"), number(work.returned.value()));
    }
    if let Some(stats) = &stats {
        append_hash(&mut entry, cstr!("queryHash"), stats.query_hash());
        append_hash(&mut entry, cstr!("planCacheKey"), stats.plan_cache_key());
    }
    if let Some(shape) = &ctx.query.shape {
        entry.append(cstr!("queryShapeHash"), shape.to_string());
    }
    append_writes_waited(&mut entry, work);
    if let Err(error) = result {
        append_error(&mut entry, error);
    }
    if let Some(reply) = reply {
        entry.append(
            cstr!("responseLength"),
            number(reply.as_bytes().len() as u64),
        );
    }
    entry.append(
        cstr!("protocol"),
        match ctx.request.origin {
            Origin::Msg => "op_msg",
            _ => "op_query",
        },
    );
    append_time(&mut entry, took);
    if let Some(plan) = work.plan_summary() {
        entry.append(cstr!("planSummary"), plan);
    }
    if let Some(stages) = notes.stages {
        entry.append(cstr!("execStats"), stages);
    }
    append_client(&mut entry, ctx);
    entry
}

/// How much a command, or a statement of it, has done.
#[derive(Clone, Copy, Default)]
struct Counts {
    keys_examined: u64,
    documents_examined: u64,
    by_id: u64,
    matched: u64,
    modified: u64,
    upserted: u64,
    deleted: u64,
}

impl Counts {
    fn of(work: &Work) -> Counts {
        Counts {
            keys_examined: work.keys_examined.value(),
            documents_examined: work.documents_examined.value(),
            by_id: work.by_id.value(),
            matched: work.matched.value(),
            modified: work.modified.value(),
            upserted: work.upserted.value(),
            deleted: work.deleted.value(),
        }
    }

    fn since(&self, before: &Counts) -> Counts {
        Counts {
            keys_examined: self.keys_examined - before.keys_examined,
            documents_examined: self.documents_examined - before.documents_examined,
            by_id: self.by_id - before.by_id,
            matched: self.matched - before.matched,
            modified: self.modified - before.modified,
            upserted: self.upserted - before.upserted,
            deleted: self.deleted - before.deleted,
        }
    }
}

/// The statements of an update or a delete, each of which is an operation for the profiler.
pub struct Statements<'a> {
    ctx: &'a CommandContext<'a>,
    /// Of the database that is written to; `None`: nothing of it is profiled.
    settings: Option<Settings>,
    began: Instant,
    before: Counts,
    ended: Vec<Ended>,
}

/// What is known of a statement that has ended.
struct Ended {
    /// Its place among all.
    at: usize,
    took: Duration,
    done: Counts,
    plan: Option<Arc<PlanSummaryStats>>,
    error: Option<CommandError>,
}

impl<'a> Statements<'a> {
    pub fn new(ctx: &'a CommandContext<'a>) -> Statements<'a> {
        let is_on = ctx.node.profiler.is_on() && is_profiled(ctx);
        let settings = is_on.then(|| ctx.node.profiler.settings(ctx.database()));
        Statements {
            ctx,
            settings: settings.filter(|settings| settings.level > 0),
            began: Instant::now(),
            before: Counts::default(),
            ended: Vec::new(),
        }
    }

    pub fn begin(&mut self) {
        if self.settings.is_some() {
            self.ctx.work.settle();
            self.before = Counts::of(&self.ctx.work);
            self.began = Instant::now();
        }
    }

    pub fn end(&mut self, at: usize, error: Option<&CommandError>) {
        if self.settings.is_none() {
            return;
        }
        let work = &self.ctx.work;
        work.settle();
        let done = Counts::of(work).since(&self.before);
        self.ended.push(Ended {
            at,
            took: self.began.elapsed(),
            done,
            // The last plan is this statement's, unless it needed none.
            plan: work.plan().filter(|_| done.by_id == 0),
            error: error.cloned(),
        });
        self.began = Instant::now();
    }

    /// All are committed: that has taken since the last one ended, and each has waited for it.
    /// `command` makes what is shown of one.
    pub fn keep(self, command: impl Fn(usize) -> RawDocumentBuf) {
        let Some(settings) = &self.settings else {
            return;
        };
        let node = self.ctx.node;
        let limit_ms = node.parameters.slow_ms();
        let committing = self.began.elapsed();
        for ended in &self.ended {
            let took = ended.took + committing;
            let took_ms = i64::try_from(took.as_millis()).unwrap_or(i64::MAX);
            let is_slow = limit_ms >= 0 && took_ms >= limit_ms;
            let may_be_kept = match &settings.filter {
                _ if settings.level >= 2 => true,
                Some(_) => true,
                None => is_slow && node.profiler.samples(),
            };
            if !may_be_kept {
                continue;
            }
            let entry = self.entry(ended, took, command(ended.at));
            let passes = match &settings.filter {
                Some(filter) => filter.try_matches(&entry).unwrap_or(false),
                None => true,
            };
            if settings.level >= 2 || passes {
                node.profiler.add(self.ctx.database(), entry);
            }
        }
    }

    fn entry(&self, ended: &Ended, took: Duration, command: RawDocumentBuf) -> RawDocumentBuf {
        let (ctx, done) = (self.ctx, &ended.done);
        let database = ctx.database();
        let collection = collection_of(ctx).unwrap_or("$cmd");
        let mut entry = rawdoc! {
            "op": operation_word(ctx.spec.name),
            "ns": format!("{database}.{collection}"),
        };
        match redaction::is_secret(collection) {
            true => entry.append(cstr!("command"), rawdoc! { "$truncated": HIDDEN }),
            false => append_command(&mut entry, database, command),
        }
        if ended.error.is_none() {
            append_examined(&mut entry, done.keys_examined, done.documents_examined);
            match ctx.spec.name {
                "update" => append_changed(&mut entry, done),
                _ => entry.append(cstr!("ndeleted"), number(done.deleted)),
            }
        }
        entry.append(cstr!("numYield"), 0);
        if let Some(error) = &ended.error {
            append_error(&mut entry, error);
        }
        if let Some(plan) = &ended.plan {
            append_hash(&mut entry, cstr!("queryHash"), plan.query_hash());
            append_hash(&mut entry, cstr!("planCacheKey"), plan.plan_cache_key());
        }
        append_time(&mut entry, took);
        match &ended.plan {
            Some(plan) => entry.append(cstr!("planSummary"), plan.summary.to_string()),
            None if done.by_id > 0 => entry.append(cstr!("planSummary"), "IDHACK"),
            None => {}
        }
        append_client(&mut entry, ctx);
        entry
    }
}

/// The command without what is secret, and without the documents of an insert.
fn shown_command(ctx: &CommandContext<'_>) -> RawDocumentBuf {
    let shown = redaction::shown(ctx.body());
    let body = shown.as_deref().unwrap_or(ctx.body());
    let mut out = RawDocumentBuf::new();
    for element in banyan_document::elements(body) {
        let Ok(name) = bson::raw::CString::try_from(element.name()) else {
            continue;
        };
        let hidden = matches!(
            (ctx.spec.name, element.name()),
            ("insert", "documents")
                | (
                    _,
                    "$audit" | "mayBypassWriteBlocking" | "shardVersion" | "databaseVersion"
                )
        );
        if !hidden {
            out.append(&name, element.value());
        }
    }
    match out.as_bytes().len() <= COMMAND_BYTES_MAX {
        true => out,
        false => truncated(shape::of(&redaction::redacted(ctx.request))),
    }
}

/// Notes what the stages behind a batch of a cursor have done, if that is to be kept.
pub fn note_stages(ctx: &CommandContext<'_>, rows: &dyn RowStream) {
    let profiler = &ctx.node.profiler;
    if profiler.is_on() && profiler.settings(ctx.database()).level > 0 {
        ctx.notes.lock().stages = rows.explain_run();
    }
}

/// The command of a cursor, for those that continue it or ask what is open.
pub fn origin(ctx: &CommandContext<'_>) -> Arc<RawDocumentBuf> {
    Arc::new(shown_command(ctx))
}

fn append_command(entry: &mut RawDocumentBuf, database: &str, command: RawDocumentBuf) {
    let command = match command.as_bytes().len() <= COMMAND_BYTES_MAX {
        true => command,
        false => truncated(shape::of(&Request::command(database, command))),
    };
    entry.append(cstr!("command"), command);
}

fn truncated(beginning: String) -> RawDocumentBuf {
    rawdoc! { "$truncated": beginning }
}

fn append_examined(entry: &mut RawDocumentBuf, keys: u64, documents: u64) {
    entry.append(cstr!("keysExamined"), number(keys));
    entry.append(cstr!("docsExamined"), number(documents));
}

fn append_changed(entry: &mut RawDocumentBuf, done: &Counts) {
    entry.append(cstr!("nMatched"), number(done.matched));
    entry.append(cstr!("nModified"), number(done.modified));
    entry.append(cstr!("nUpserted"), number(done.upserted));
}

fn append_hash(entry: &mut RawDocumentBuf, name: &bson::raw::CStr, hash: Option<u32>) {
    if let Some(hash) = hash {
        entry.append(name, format!("{hash:08X}"));
    }
}

/// Where a write has waited.
fn append_writes_waited(entry: &mut RawDocumentBuf, work: &Work) {
    let waits = [
        (cstr!("latchWaitMicros"), &work.latch_wait),
        (cstr!("commitWaitMicros"), &work.commit_wait),
    ];
    for (name, wait) in waits {
        if wait.value() > 0 {
            entry.append(name, i64::try_from(wait.value()).unwrap_or(i64::MAX));
        }
    }
}

fn append_error(entry: &mut RawDocumentBuf, error: &CommandError) {
    entry.append(cstr!("ok"), 0.0);
    entry.append(cstr!("errMsg"), error.message.as_str());
    entry.append(cstr!("errName"), &*error.code.name());
    entry.append(cstr!("errCode"), error.code.code());
}

fn append_time(entry: &mut RawDocumentBuf, took: Duration) {
    let millis = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    entry.append(cstr!("millis"), number(millis));
}

fn append_client(entry: &mut RawDocumentBuf, ctx: &CommandContext<'_>) {
    entry.append(cstr!("ts"), DateTime::now());
    entry.append(cstr!("client"), ctx.conn.peer.ip().to_string());
    if let Some(name) = application_name(ctx.conn) {
        entry.append(cstr!("appName"), name);
    }
    let names = ctx.owner.as_deref().map_or(&[][..], |owner| owner.names());
    let all: RawArrayBuf = names
        .iter()
        .map(|name| rawdoc! { "user": name.user.as_str(), "db": name.database.as_str() })
        .collect();
    let first = names
        .first()
        .map(|name| format!("{}@{}", name.user, name.database));
    entry.append(cstr!("allUsers"), all);
    entry.append(cstr!("user"), first.unwrap_or_default());
}

/// The collection that a command names.
pub fn collection_of<'a>(ctx: &CommandContext<'a>) -> Option<&'a str> {
    match ctx.spec.name {
        "getMore" => ctx.field("collection")?.value.as_str(),
        _ => ctx.argument()?.as_str(),
    }
}

/// Its batches are documents of collections, unlike those of the list commands.
pub fn returns_documents(spec: &CommandSpec) -> bool {
    matches!(spec.name, "find" | "getMore" | "aggregate")
}
