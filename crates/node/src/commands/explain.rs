//! `explain`: how a command would find its documents, and what that costs.

use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use super::explanation::{Around, Verbosity, explain_request, finish};
use super::table::{BoxFuture, CommandResult, CommandSpec, Run};
use super::{aggregate, count, distinct, find};
use crate::access::check::Access;
use crate::access::reads_and_writes;
use crate::collation::Asked;
use crate::context::CommandContext;
use crate::params;

pub static SPEC: CommandSpec = CommandSpec::new("explain", Run::Future(run))
    .access(Access::Checked(reads_and_writes::explained))
    .fields(&["verbosity"])
    .computes();

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move {
        let Some(RawBsonRef::Document(inner)) = ctx.argument() else {
            return Err(CommandError::new(
                ErrorCode::TypeMismatch,
                "BSON field 'explain.explain' is the wrong type, expected type 'object'",
            ));
        };
        let verbosity = Verbosity::parse(ctx.field("verbosity"))?;
        if verbosity > Verbosity::Planner && name_of(inner) == "aggregate" {
            aggregate::prepare_explanation(ctx, inner).await?;
        }
        ctx.compute(|| explain(ctx, inner, verbosity)).await
    })
}

fn name_of(inner: &RawDocument) -> &str {
    let first = inner.iter().next().and_then(Result::ok);
    first.map_or("", |(name, _)| name.as_str())
}

fn explain(ctx: &CommandContext<'_>, inner: &RawDocument, verbosity: Verbosity) -> CommandResult {
    let explained = match name_of(inner) {
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
