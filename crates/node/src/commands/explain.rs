//! `explain`: how a command would find its documents, and what that costs.

use banyan_execution::Request;
use banyan_execution::plan::explain::clamp;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

use super::table::{BoxFuture, CommandResult, CommandSpec, Run};
use super::{aggregate, count, distinct, find};
use crate::collation::Asked;
use crate::context::CommandContext;
use crate::errors;
use crate::info;
use crate::params::{self, Field};
use crate::reads;

pub static SPEC: CommandSpec = CommandSpec::new("explain", Run::Future(run))
    .fields(&["verbosity"])
    .computes();

/// How much is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verbosity {
    Planner,
    Execution,
    AllPlans,
}

impl Verbosity {
    fn parse(field: Option<Field<'_>>) -> Result<Verbosity, CommandError> {
        let Some(field) = field else {
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

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move {
        let Some(RawBsonRef::Document(inner)) = ctx.argument() else {
            return Err(CommandError::new(
                ErrorCode::TypeMismatch,
                "BSON field 'explain.explain' is the wrong type, expected type 'object'",
            ));
        };
        let verbosity = Verbosity::parse(ctx.field("verbosity"))?;
        ctx.compute(|| explain(ctx, inner, verbosity)).await
    })
}

fn explain(ctx: &CommandContext<'_>, inner: &RawDocument, verbosity: Verbosity) -> CommandResult {
    let name = inner
        .iter()
        .next()
        .and_then(Result::ok)
        .map_or("", |(name, _)| name.as_str());
    let explained = match name {
        "find" => {
            let parameters = find::Parameters::parse(ctx.database(), inner)?;
            let context = parameters.context(ctx)?;
            let request = parameters.request(ctx, parameters.canonical(&context)?);
            let around = Around::default();
            explain_request(ctx, parameters.collection, request, around, verbosity)?
        }
        "count" => {
            let parameters = count::Parameters::parse(ctx.database(), inner)?;
            let around = Around {
                count: Some(parameters.skip),
                ..Around::default()
            };
            let request = count::request(ctx, &parameters)?;
            explain_request(ctx, parameters.collection, request, around, verbosity)?
        }
        "aggregate" => return aggregate::explain(ctx, inner, verbosity),
        "distinct" => {
            let parameters = distinct::Parameters::parse(ctx.database(), inner)?;
            let request = distinct::request(ctx, &parameters)?;
            let around = Around::default();
            explain_request(ctx, parameters.collection, request, around, verbosity)?
        }
        "update" => explain_write(ctx, inner, "updates", "UPDATE", verbosity)?,
        "delete" => explain_write(ctx, inner, "deletes", "DELETE", verbosity)?,
        "findAndModify" | "findandmodify" => {
            let remove = inner.get_bool("remove").unwrap_or(false);
            let around = Around {
                write: Some(if remove { "DELETE" } else { "UPDATE" }),
                ..Around::default()
            };
            let parameters = find::Parameters {
                collection: collection_of(inner)?,
                filter: inner.get_document("query").ok().filter(|f| !f.is_empty()),
                sort: inner.get_document("sort").ok().filter(|s| !s.is_empty()),
                limit: Some(1),
                collation: Asked::of(inner.get_document("collation").ok())?,
                ..find::Parameters::default()
            };
            explain_parameters(ctx, &parameters, around, verbosity)?
        }
        "" => {
            return Err(CommandError::new(
                ErrorCode::FailedToParse,
                "nothing to explain",
            ));
        }
        other => {
            return Err(CommandError::new(
                ErrorCode::CommandNotFound,
                format!("Explain failed due to unknown command: {other}"),
            ));
        }
    };
    Ok(finish(ctx, inner, explained))
}

/// Adds what every explanation ends with.
pub fn finish(
    ctx: &CommandContext<'_>,
    inner: &RawDocument,
    mut reply: RawDocumentBuf,
) -> RawDocumentBuf {
    let (host, _) = ctx
        .node
        .info
        .address
        .rsplit_once(':')
        .unwrap_or((ctx.node.info.address.as_str(), ""));
    reply.append(cstr!("command"), inner);
    reply.append(
        cstr!("serverInfo"),
        rawdoc! {
            "host": host,
            "port": i32::from(ctx.node.info.port),
            "version": info::COMPATIBLE_VERSION,
            "gitVersion": "unknown",
        },
    );
    reply.append(cstr!("ok"), 1.0);
    reply
}

fn collection_of(inner: &RawDocument) -> Result<&str, CommandError> {
    let value = inner
        .iter()
        .next()
        .and_then(Result::ok)
        .and_then(|(_, value)| value.as_str());
    value.ok_or_else(|| {
        CommandError::new(
            ErrorCode::InvalidNamespace,
            "collection name has invalid type",
        )
    })
}

fn explain_parameters(
    ctx: &CommandContext<'_>,
    parameters: &find::Parameters<'_>,
    around: Around,
    verbosity: Verbosity,
) -> Result<RawDocumentBuf, CommandError> {
    let context = parameters.context(ctx)?;
    let request = parameters.request(ctx, parameters.canonical(&context)?);
    explain_request(ctx, parameters.collection, request, around, verbosity)
}

/// The first statement of a write: how it finds what it would change. Nothing is changed.
fn explain_write(
    ctx: &CommandContext<'_>,
    inner: &RawDocument,
    statements: &str,
    write: &'static str,
    verbosity: Verbosity,
) -> Result<RawDocumentBuf, CommandError> {
    let collection = collection_of(inner)?;
    let statement = inner
        .get_array(statements)
        .ok()
        .and_then(|a| a.get_document(0).ok());
    let Some(statement) = statement else {
        return Err(CommandError::new(
            ErrorCode::InvalidLength,
            "explained write batches must be of size 1",
        ));
    };
    let multi = match write {
        "UPDATE" => statement.get_bool("multi").unwrap_or(false),
        _ => !matches!(statement.get("limit"), Ok(Some(limit)) if params::number(limit) == Some(1)),
    };
    let parameters = find::Parameters {
        collection,
        filter: statement.get_document("q").ok().filter(|f| !f.is_empty()),
        hint: statement.get("hint").ok().flatten(),
        limit: (!multi).then_some(1),
        collation: Asked::of(statement.get_document("collation").ok())?,
        ..find::Parameters::default()
    };
    let around = Around {
        write: Some(write),
        ..Around::default()
    };
    explain_parameters(ctx, &parameters, around, verbosity)
}

/// What a command does with the documents that its plan finds.
#[derive(Debug, Clone, Copy, Default)]
pub struct Around {
    /// Counts them, all but the first so many.
    pub count: Option<u64>,
    /// `UPDATE` or `DELETE`.
    pub write: Option<&'static str>,
}

/// Explains a search for documents.
pub fn explain_request(
    ctx: &CommandContext<'_>,
    collection: &str,
    request: Request<'_>,
    around: Around,
    verbosity: Verbosity,
) -> Result<RawDocumentBuf, CommandError> {
    let most = request.wanted.unwrap_or(u64::MAX);
    let request = Request {
        explains: true,
        ..request
    };
    let mut executor = reads::plan(ctx, collection, request)?.open(ctx)?;
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
    let mut reply = rawdoc! { "explainVersion": "1", "queryPlanner": planner };
    if verbosity > Verbosity::Planner {
        let found = executor.count_up_to(most).map_err(errors::query)?;
        // A count and a write return no documents.
        let returned = if around.is_nothing() { found } else { 0 };
        let mut stats = rawdoc! {
            "executionSuccess": true,
            "nReturned": clamp(returned),
            "executionTimeMillis": clamp(executor.milliseconds()),
            "totalKeysExamined": clamp(executor.stats.keys()),
            "totalDocsExamined": clamp(executor.stats.documents()),
        };
        let stages = around.over(executor.explain_run(), Some(found));
        stats.append(cstr!("executionStages"), stages);
        if verbosity == Verbosity::AllPlans {
            let tried: RawArrayBuf = executor.explain_candidates().cloned().collect();
            stats.append(cstr!("allPlansExecution"), tried);
        }
        reply.append(cstr!("executionStats"), stats);
    }
    Ok(reply)
}

/// A hash as MongoDB shows it.
pub fn hex(hash: Option<u32>) -> String {
    format!("{:08X}", hash.unwrap_or_default())
}

impl Around {
    fn is_nothing(&self) -> bool {
        self.count.is_none() && self.write.is_none()
    }

    /// The stage of the command around a plan; `found` documents, if it has run.
    fn over(&self, plan: RawDocumentBuf, found: Option<u64>) -> RawDocumentBuf {
        let name = match (self.write, self.count) {
            (Some(write), _) => write,
            (None, Some(_)) => "COUNT",
            (None, None) => return plan,
        };
        let mut stage = rawdoc! { "stage": name };
        if let Some(found) = found {
            stage.append(cstr!("nReturned"), 0);
            match self.count {
                Some(skip) => {
                    stage.append(cstr!("nCounted"), clamp(found.saturating_sub(skip)));
                    stage.append(cstr!("nSkipped"), clamp(found.min(skip)));
                }
                None => {
                    let name = match name {
                        "DELETE" => cstr!("nWouldDelete"),
                        _ => cstr!("nMatched"),
                    };
                    stage.append(name, clamp(found));
                }
            }
        }
        stage.append(cstr!("inputStage"), plan);
        stage
    }
}
