//! `explain`: how a command would find its documents, and what that costs.

use banyan_access::check::Access;
use banyan_access::reads_and_writes;
use banyan_query::view::Resolved;
use banyan_storage::Namespace;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};

use super::explanation::{Around, Verbosity, explain_request, finish};
use super::table::{BoxFuture, CommandResult, CommandSpec, Run};
use super::{aggregate, count, distinct, find};
use crate::collation::Asked;
use crate::context::CommandContext;
use crate::errors;
use crate::params;
use crate::views;

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
        if let Some((name, view)) = viewed(ctx, inner)? {
            let body = of_view(ctx, inner, &view)?;
            aggregate::prepare_explanation(ctx, Some((name, &view)), &body).await?;
            return ctx
                .compute(|| aggregate::explain(ctx, &body, verbosity))
                .await;
        }
        if verbosity > Verbosity::Planner && name_of(inner) == "aggregate" {
            aggregate::prepare_explanation(ctx, None, inner).await?;
        }
        ctx.compute(|| explain(ctx, inner, verbosity)).await
    })
}

/// The view that the explained command names, and what it comes to.
fn viewed<'a>(
    ctx: &CommandContext<'_>,
    inner: &'a RawDocument,
) -> Result<Option<(&'a str, Resolved)>, CommandError> {
    let Some(RawBsonRef::String(name)) = banyan_document::first_value(inner) else {
        return Ok(None);
    };
    let resolved = views::resolve(ctx, name)?;
    Ok(resolved.map(|resolved| (name, resolved)))
}

/// The aggregation that the explained command comes to.
fn of_view(
    ctx: &CommandContext<'_>,
    inner: &RawDocument,
    view: &Resolved,
) -> Result<RawDocumentBuf, CommandError> {
    let database = ctx.database();
    let made = match name_of(inner) {
        "find" => {
            find::Parameters::parse(database, inner)?;
            view.of_find(inner)
        }
        "count" => {
            count::Parameters::parse(database, inner)?;
            view.of_count(inner)
        }
        "distinct" => {
            distinct::Parameters::parse(database, inner)?;
            view.of_distinct(inner)
        }
        "aggregate" => {
            aggregate::Parameters::parse(database, inner)?;
            view.of_aggregate(inner)
        }
        _ => {
            let namespace = Namespace::new(database, collection_of(inner)?);
            views::refuse(&ctx.node.replica, &namespace)?;
            return Err(errors::internal("a view is gone"));
        }
    };
    made.map_err(errors::query)
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
            let natural = rawdoc! { "$natural": 1 };
            let mut request = parameters.request(ctx, parameters.canonical(&context)?);
            if parameters.tailable {
                let catalog = ctx.node.replica.store.catalog();
                if let Some(collection) = catalog.get(ctx.database(), parameters.collection) {
                    find::check_tailed(collection, &request)?;
                }
                // Whatever indexes there are.
                request.hint = Some(RawBsonRef::Document(&natural));
            }
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
