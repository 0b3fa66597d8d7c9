//! `explain`: how a command would find its documents, and what that costs.

use std::sync::Arc;
use std::time::Instant;

use banyan_query::Filter;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

use super::table::{BoxFuture, CommandResult, CommandSpec, Run};
use super::{aggregate, count, distinct, find};
use crate::context::CommandContext;
use crate::errors;
use crate::info;
use crate::params::Field;
use banyan_execution::InterruptSlot;
use banyan_execution::plan::Plan;
use banyan_execution::plan::explain::{Around, Ran, clamp, rejected, stages};
use banyan_execution::source::Cost;

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
        "find" => explain_find(ctx, inner, verbosity)?,
        "count" => explain_count(ctx, inner, verbosity)?,
        "aggregate" => return aggregate::explain(ctx, inner, verbosity),
        "distinct" => {
            let parameters = distinct::Parameters::parse(ctx.database(), inner)?;
            let search = find::Parameters {
                collection: parameters.collection,
                filter: parameters.filter,
                hint: parameters.hint,
                ..find::Parameters::default()
            };
            explain_parameters(ctx, &search, None, verbosity)?
        }
        "update" => explain_write(ctx, inner, "updates", "UPDATE", verbosity)?,
        "delete" => explain_write(ctx, inner, "deletes", "DELETE", verbosity)?,
        "findAndModify" | "findandmodify" => {
            let search = find::Parameters {
                collection: collection_of(inner)?,
                filter: inner.get_document("query").ok(),
                sort: inner.get_document("sort").ok(),
                limit: Some(1),
                ..find::Parameters::default()
            };
            let remove = inner.get_bool("remove").unwrap_or(false);
            let write = if remove { "DELETE" } else { "UPDATE" };
            explain_parameters(ctx, &search, Some(write), verbosity)?
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

fn explain_find(
    ctx: &CommandContext<'_>,
    inner: &RawDocument,
    verbosity: Verbosity,
) -> Result<RawDocumentBuf, CommandError> {
    explain_parameters(
        ctx,
        &find::Parameters::parse(ctx.database(), inner)?,
        None,
        verbosity,
    )
}

/// Explains a search for documents.
pub fn explain_parameters(
    ctx: &CommandContext<'_>,
    parameters: &find::Parameters<'_>,
    write: Option<&'static str>,
    verbosity: Verbosity,
) -> Result<RawDocumentBuf, CommandError> {
    let prepared = find::Prepared::new(ctx, parameters)?;
    let (plan, filter) = (prepared.plan.clone(), prepared.filter.clone());
    let around = Around {
        filter: Some(&filter),
        sort: parameters.sort.filter(|sort| !sort.is_empty()),
        projection: parameters.projection,
        skip: parameters.skip,
        limit: parameters.limit,
        count: false,
        write,
    };
    let ran = if verbosity > Verbosity::Planner {
        let started = Instant::now();
        let (rows, cost) = prepared.rows(ctx, slot(ctx))?;
        let most = usize::try_from(parameters.limit.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
        let mut returned = 0;
        for row in rows.take(most) {
            row.map_err(errors::query)?;
            returned += 1;
        }
        Some(measured(returned, &cost, started))
    } else {
        None
    };
    let namespace = format!("{}.{}", ctx.database(), parameters.collection);
    Ok(described(&namespace, &plan, &around, ran, verbosity))
}

fn slot(ctx: &CommandContext<'_>) -> Arc<InterruptSlot> {
    ctx.interrupt();
    ctx.slot().clone()
}

fn measured(returned: u64, cost: &Cost, started: Instant) -> Ran {
    Ran {
        returned,
        keys: cost.keys(),
        documents: cost.documents(),
        milliseconds: u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
    }
}

fn explain_count(
    ctx: &CommandContext<'_>,
    inner: &RawDocument,
    verbosity: Verbosity,
) -> Result<RawDocumentBuf, CommandError> {
    let parameters = count::Parameters::parse(ctx.database(), inner)?;
    let started = Instant::now();
    let counted = count::count(ctx, &parameters)?;
    let count::Counted { plan, cost, .. } = &counted;
    let around = Around {
        filter: Some(&counted.filter),
        count: true,
        ..Around::default()
    };
    let ran = (verbosity > Verbosity::Planner).then(|| measured(counted.count, cost, started));
    let namespace = format!("{}.{}", ctx.database(), parameters.collection);
    Ok(described(&namespace, plan, &around, ran, verbosity))
}

/// The first statement of a write: how it finds what it would change. Nothing is changed.
fn explain_write(
    ctx: &CommandContext<'_>,
    inner: &RawDocument,
    statements: &str,
    write: &'static str,
    verbosity: Verbosity,
) -> Result<RawDocumentBuf, CommandError> {
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
    let search = find::Parameters {
        collection: collection_of(inner)?,
        filter: statement.get_document("q").ok(),
        hint: statement.get("hint").ok().flatten(),
        ..find::Parameters::default()
    };
    explain_parameters(ctx, &search, Some(write), verbosity)
}

fn described(
    namespace: &str,
    plan: &Plan,
    around: &Around<'_>,
    ran: Option<Ran>,
    verbosity: Verbosity,
) -> RawDocumentBuf {
    let filter = around.filter.map(Filter::to_document);
    let mut planner = rawdoc! {
        "namespace": namespace,
        "indexFilterSet": false,
        "parsedQuery": filter.unwrap_or_default(),
        "maxIndexedOrSolutionsReached": false,
        "maxIndexedAndSolutionsReached": false,
        "maxScansToExplodeReached": false,
    };
    planner.append(cstr!("winningPlan"), stages(plan, around, None));
    planner.append(cstr!("rejectedPlans"), rejected(plan, around));
    let mut reply = rawdoc! { "explainVersion": "1", "queryPlanner": planner };
    if let Some(ran) = ran {
        let mut stats = rawdoc! {
            "executionSuccess": true,
            "nReturned": clamp(ran.returned),
            "executionTimeMillis": clamp(ran.milliseconds),
            "totalKeysExamined": clamp(ran.keys),
            "totalDocsExamined": clamp(ran.documents),
        };
        stats.append(cstr!("executionStages"), stages(plan, around, Some(&ran)));
        if verbosity == Verbosity::AllPlans {
            stats.append(cstr!("allPlansExecution"), RawArrayBuf::new());
        }
        reply.append(cstr!("executionStats"), stats);
    }
    reply
}
