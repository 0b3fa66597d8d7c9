//! The explanation of a search for documents, drawn from the plan that ran.

use banyan_document::{DocumentWriter, elements};
use banyan_execution::plan::explain::clamp;
use banyan_execution::{Executor, Request};
use banyan_wire::{CommandError, ErrorCode};
use bson::raw::CString;
use bson::{RawArrayBuf, RawDocument, RawDocumentBuf, cstr, rawdoc};

use super::write_report::ends_command;
use crate::context::CommandContext;
use crate::errors;
use crate::info;
use crate::params;
use crate::reads;

/// How much is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verbosity {
    Planner,
    Execution,
    AllPlans,
}

impl Verbosity {
    /// What an `explain` asks for.
    pub fn of(ctx: &CommandContext<'_>) -> Result<Verbosity, CommandError> {
        let Some(field) = ctx.field("verbosity").filter(|field| !field.is_null()) else {
            return Ok(Verbosity::AllPlans);
        };
        match field.str()? {
            "queryPlanner" => Ok(Verbosity::Planner),
            "executionStats" => Ok(Verbosity::Execution),
            "allPlansExecution" => Ok(Verbosity::AllPlans),
            other => Err(CommandError::new(
                ErrorCode::BadValue,
                format!(
                    "Enumeration value '{other}' for field 'explain.verbosity' is not a valid \
                     value."
                ),
            )),
        }
    }
}

/// What a command does with the documents that its plan finds.
#[derive(Debug, Clone, Copy, Default)]
pub struct Around<'a> {
    /// Counts them, all but the first so many.
    pub count: Option<u64>,
    /// How many there are, where that need not be counted.
    pub known: Option<u64>,
    pub write: Option<Write>,
    /// What goes wrong when it runs is an error of the explanation, and not told in it.
    pub fails: bool,
    /// Computes this of each of them.
    pub projection: Option<&'a RawDocument>,
    /// There is nothing that could be written to.
    pub lacks_collection: bool,
}

impl<'a> Around<'a> {
    /// Writes to each of them, and computes something of it then.
    pub fn write(write: Write, projection: Option<&'a RawDocument>) -> Around<'a> {
        Around {
            write: Some(write),
            projection,
            ..Around::default()
        }
    }
}

/// What is done to each document that is found.
#[derive(Debug, Clone, Copy)]
pub struct Write {
    pub kind: WriteKind,
    /// The command answers with the document.
    pub returns: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteKind {
    Delete,
    Update { is_upsert: bool },
}

impl WriteKind {
    /// The name of its stage.
    fn stage(self) -> &'static str {
        match self {
            WriteKind::Delete => "DELETE",
            WriteKind::Update { .. } => "UPDATE",
        }
    }

    /// How many documents it makes where so many are found.
    fn upserts(self, found: u64) -> u64 {
        u64::from(found == 0 && self == WriteKind::Update { is_upsert: true })
    }
}

impl Write {
    /// How many documents the command answers with.
    fn returned(self, found: u64) -> u64 {
        match self.returns {
            true => found + self.kind.upserts(found),
            false => 0,
        }
    }

    /// The stage over a plan; `found` documents, if it has run.
    fn over(self, plan: RawDocumentBuf, found: Option<u64>) -> RawDocumentBuf {
        let mut stage = rawdoc! { "stage": self.kind.stage() };
        if let Some(found) = found {
            stage.append(cstr!("nReturned"), clamp(self.returned(found)));
            match self.kind {
                WriteKind::Delete => stage.append(cstr!("nWouldDelete"), clamp(found)),
                WriteKind::Update { .. } => {
                    // Also what would be as it was counts, as in MongoDB.
                    stage.append(cstr!("nMatched"), clamp(found));
                    stage.append(cstr!("nWouldModify"), clamp(found));
                    stage.append(cstr!("nWouldUpsert"), clamp(self.kind.upserts(found)));
                }
            }
        }
        stage.append(cstr!("inputStage"), without_limit(plan));
        stage
    }
}

/// Explains a search for documents.
pub fn explain_request(
    ctx: &CommandContext<'_>,
    collection: &str,
    request: Request<'_>,
    around: Around<'_>,
    verbosity: Verbosity,
) -> Result<RawDocumentBuf, CommandError> {
    let most = request.wanted.unwrap_or(u64::MAX);
    let run = |executor: &mut Executor| match around.known {
        Some(documents) => Ok(documents.min(most)),
        None => executor.count_up_to(most).map_err(errors::query),
    };
    explain_run(ctx, collection, request, around, verbosity, run)
}

/// Explains a search for documents that `run` carries out; it says how many were found.
pub fn explain_run(
    ctx: &CommandContext<'_>,
    collection: &str,
    request: Request<'_>,
    around: Around<'_>,
    verbosity: Verbosity,
    run: impl FnOnce(&mut Executor) -> Result<u64, CommandError>,
) -> Result<RawDocumentBuf, CommandError> {
    let request = Request {
        explains: true,
        ..request
    };
    let mut executor = reads::plan(ctx, collection, request)?.open(ctx)?;
    let around = Around {
        lacks_collection: !executor.has_collection(),
        ..around
    };
    let mut planner = rawdoc! {
        "namespace": format!("{}.{collection}", ctx.database()),
        "indexFilterSet": executor.has_index_filter(),
        "parsedQuery": executor.looks_for().to_document(),
    };
    if let Some(collator) = executor.looks_for().collator() {
        planner.append(cstr!("collation"), collator.collation().to_document());
    }
    if executor.has_collection() {
        planner.append(cstr!("queryHash"), hex(executor.stats.query_hash()));
        planner.append(cstr!("planCacheKey"), hex(executor.stats.plan_cache_key()));
    }
    if let Some(settings) = &ctx.query.settings {
        planner.append(cstr!("querySettings"), settings.to_document());
    }
    planner.append(cstr!("maxIndexedOrSolutionsReached"), false);
    planner.append(cstr!("maxIndexedAndSolutionsReached"), false);
    planner.append(cstr!("maxScansToExplodeReached"), false);
    let winning = around.over(executor.explain_plan(), None);
    planner.append(cstr!("winningPlan"), winning);
    let rejected: RawArrayBuf = executor
        .explain_rejected()
        .map(|plan| around.over(plan, None))
        .collect();
    planner.append(cstr!("rejectedPlans"), rejected);
    let mut reply = rawdoc! { "queryPlanner": planner };
    if verbosity > Verbosity::Planner {
        let ran = match run(&mut executor) {
            Err(error) if around.fails || ends_command(ctx, &error) => return Err(error),
            ran => ran,
        };
        let run = executor.explain_run();
        // What was found before it went wrong.
        let found = ran.as_ref().ok().copied();
        let found = found.unwrap_or_else(|| returned_by(&run));
        let returned = around.returned(found);
        let mut stats = rawdoc! { "executionSuccess": ran.is_ok() };
        if let Err(error) = &ran {
            stats.append(cstr!("errorMessage"), error.message.as_str());
            stats.append(cstr!("errorCode"), error.code.code());
        }
        stats.append(cstr!("nReturned"), clamp(returned));
        stats.append(cstr!("executionTimeMillis"), clamp(executor.milliseconds()));
        stats.append(cstr!("totalKeysExamined"), clamp(executor.stats.keys()));
        stats.append(
            cstr!("totalDocsExamined"),
            clamp(executor.stats.documents()),
        );
        let stages = around.over(run, Some(found));
        stats.append(cstr!("executionStages"), stages);
        if verbosity == Verbosity::AllPlans {
            let tried: RawArrayBuf = executor.explain_candidates().cloned().collect();
            stats.append(cstr!("allPlansExecution"), tried);
        }
        reply.append(cstr!("executionStats"), stats);
    }
    Ok(reply)
}

/// How many documents a plan that ran says it has returned.
fn returned_by(run: &RawDocument) -> u64 {
    let returned = run.get("nReturned").ok().flatten();
    let returned = returned.and_then(params::number);
    returned.map_or(0, |returned| u64::try_from(returned).unwrap_or(0))
}

/// A hash as MongoDB shows it.
pub fn hex(hash: Option<u32>) -> String {
    format!("{:08X}", hash.unwrap_or_default())
}

impl Around<'_> {
    /// How many documents the command answers with where its plan finds so many.
    fn returned(&self, found: u64) -> u64 {
        match (self.write, self.count) {
            (Some(write), _) => write.returned(found),
            (None, Some(_)) => 0,
            (None, None) => found,
        }
    }

    /// The stages of the command around a plan; `found` documents, if it has run.
    fn over(&self, plan: RawDocumentBuf, found: Option<u64>) -> RawDocumentBuf {
        let plan = match (self.write, self.count) {
            (Some(_), _) if self.lacks_collection => without_limit(plan),
            (Some(write), _) => write.over(plan, found),
            (None, Some(skip)) => self.counted(skip, plan, found),
            (None, None) => plan,
        };
        match self.projection {
            Some(projection) => computed(projection, plan, found.map(|found| self.returned(found))),
            None => plan,
        }
    }

    fn counted(&self, skip: u64, plan: RawDocumentBuf, found: Option<u64>) -> RawDocumentBuf {
        let name = match self.known {
            Some(_) => "RECORD_STORE_FAST_COUNT",
            None => "COUNT",
        };
        let mut stage = rawdoc! { "stage": name };
        if let Some(found) = found {
            stage.append(cstr!("nReturned"), 0);
            stage.append(cstr!("nCounted"), clamp(found.saturating_sub(skip)));
            stage.append(cstr!("nSkipped"), clamp(found.min(skip)));
        }
        if self.known.is_none() {
            stage.append(cstr!("inputStage"), plan);
        }
        stage
    }
}

/// A plan without the limit that a write of one document sets it: MongoDB's stages for writes end by
/// themselves, and show none.
fn without_limit(plan: RawDocumentBuf) -> RawDocumentBuf {
    let is_limit = plan.get_str("stage").is_ok_and(|stage| stage == "LIMIT");
    match plan.get_document("inputStage") {
        Ok(inner) if is_limit => inner.to_owned(),
        _ => plan,
    }
}

/// A projection that computes something of each document of a plan. There is nothing to compute
/// where no document can be.
fn computed(projection: &RawDocument, plan: RawDocumentBuf, found: Option<u64>) -> RawDocumentBuf {
    if plan.get_str("stage").is_ok_and(|stage| stage == "EOF") {
        return plan;
    }
    let mut stage = rawdoc! { "stage": "PROJECTION_DEFAULT" };
    if let Some(found) = found {
        stage.append(cstr!("nReturned"), clamp(found));
    }
    stage.append(cstr!("transformBy"), projection);
    stage.append(cstr!("inputStage"), plan);
    stage
}

/// Adds what every explanation begins and ends with.
pub fn finish(
    ctx: &CommandContext<'_>,
    inner: &RawDocument,
    explained: RawDocumentBuf,
) -> RawDocumentBuf {
    let mut reply = rawdoc! { "explainVersion": "1" };
    for (name, value) in explained.iter().flatten() {
        reply.append(name, value);
    }
    let (host, _) = ctx
        .node
        .info
        .address
        .rsplit_once(':')
        .unwrap_or((ctx.node.info.address.as_str(), ""));
    if let Some(shape) = &ctx.query.shape {
        reply.append(cstr!("queryShapeHash"), shape.to_string());
    }
    let mut command = DocumentWriter::new();
    for element in elements(inner) {
        if element.name() != "$db" {
            command.append_element(&element);
        }
    }
    command.append_str("$db", ctx.database());
    reply.append(cstr!("command"), command.finish());
    reply.append(
        cstr!("serverInfo"),
        rawdoc! {
            "host": host,
            "port": i32::from(ctx.node.info.port),
            "version": info::COMPATIBLE_VERSION,
            "gitVersion": "unknown",
        },
    );
    reply.append(cstr!("serverParameters"), parameters(ctx));
    reply.append(cstr!("ok"), 1.0);
    reply
}

/// MongoDB's parameters that say what a stage may hold.
fn parameters(ctx: &CommandContext<'_>) -> RawDocumentBuf {
    let mut told = RawDocumentBuf::new();
    let limits = ctx.node.parameters.memory.parameters();
    for (row, value) in limits.filter(|(row, _)| row.parameter.starts_with("internal")) {
        let Ok(name) = CString::try_from(row.parameter) else {
            continue;
        };
        match i32::try_from(value) {
            Ok(value) => told.append(name, value),
            Err(_) => told.append(name, value),
        }
    }
    told
}
