//! `delete`: statements that remove one record or all that match.

use std::sync::Arc;

use banyan_access::check::Access;
use banyan_document::time_series::TimeSeries;
use banyan_query::Context;
use banyan_query::filter::Filter;
use banyan_replication::sessions::StatementOutcome;
use banyan_replication::write::modify::{self, Action, Target};
use banyan_replication::write::staging::Staging;
use banyan_replication::write::without_shard_key;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

use super::table::{BoxFuture, CommandResult, CommandSpec, Run};
use super::time_series;
use super::time_series::changes::{Delete, bucket_hint};
use super::write_report::{self, WriteReport, ordered, statement_ids};
use crate::collation::{Asked, of_collection};
use crate::collection_uuid;
use crate::context::CommandContext;
use crate::errors;
use crate::forms;
use crate::names::check_collection_name;
use crate::params::{self, Field};
use crate::profiling;
use crate::reads::query_context;

pub static SPEC: CommandSpec = CommandSpec::new("delete", Run::Future(run))
    .access(Access::Collection(banyan_security::Action::Remove))
    .parsed_as("delete")
    .writes_statements("deletes")
    .in_transaction()
    .required(&["deletes"])
    .form(check_form)
    .explained(forms::of_explained_write)
    .fields(&["deletes", "ordered", "let", collection_uuid::FIELD])
    .ignored(&[
        "bypassDocumentValidation",
        "runtimeConstants",
        "encryptionInformation",
    ])
    .computes();

/// What a field has to be, whatever the others are.
fn check_form(field: Field<'_>) -> Result<(), CommandError> {
    match field.name {
        "deletes" => forms::documents(field),
        collection_uuid::FIELD => collection_uuid::check_form(field),
        "ordered" if !field.is_null() => field.strict_bool().map(drop),
        "bypassDocumentValidation" => field.bool().map(drop),
        "runtimeConstants" | "encryptionInformation" => field.document_or_null().map(drop),
        _ => Ok(()),
    }
}

/// What errors call a statement.
const PARSER: &str = "delete.deletes";

/// One statement, parsed.
pub struct Statement<'a> {
    pub filter: &'a RawDocument,
    pub hint: Option<RawBsonRef<'a>>,
    pub collation: Option<&'a RawDocument>,
    pub multi: bool,
}

impl<'a> Statement<'a> {
    pub fn parse(document: &'a RawDocument) -> Result<Statement<'a>, CommandError> {
        let (mut filter, mut limit, mut hint, mut collation) = (None, None, None, None);
        for field in params::once(PARSER, document) {
            let field = field?;
            match field.name {
                "q" if field.is_null() => {}
                "q" => filter = Some(field.document()?),
                "limit" => limit = Some(field.value),
                "hint" => hint = write_report::hint(field)?,
                "collation" => collation = field.document_or_null()?,
                "sampleId" => {}
                name => return Err(params::unknown_field(PARSER, name)),
            }
        }
        let limit = limit.ok_or_else(|| params::missing_field(PARSER, "limit"))?;
        let Some(multi) = params::deletes_all(limit) else {
            return Err(CommandError::new(
                ErrorCode::FailedToParse,
                format!(
                    "The limit field in delete objects must be 0 or 1. Got {}",
                    errors::shown(limit)
                ),
            ));
        };
        Ok(Statement {
            filter: filter.ok_or_else(|| params::missing_field(PARSER, "q"))?,
            hint,
            collation,
            multi,
        })
    }
}

impl Statement<'_> {
    /// As the profiler shows it.
    fn describe(&self) -> RawDocumentBuf {
        let mut shown = rawdoc! { "q": self.filter.to_owned(), "limit": i32::from(!self.multi) };
        if let Some(hint) = self.hint {
            shown.append(cstr!("hint"), hint);
        }
        if let Some(collation) = self.collation {
            shown.append(cstr!("collation"), collation);
        }
        shown
    }
}

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(delete(ctx))
}

async fn delete(ctx: &CommandContext<'_>) -> CommandResult {
    let documents = ctx.request.batch("deletes")?;
    let statements = documents
        .iter()
        .map(|d| Statement::parse(d))
        .collect::<Result<Vec<_>, _>>()?;
    let collection = ctx.existing_collection()?;
    write_report::check_size(documents.len())?;
    check_collection_name(ctx.database(), collection)?;
    let variables = ctx.field("let").map(|field| field.document_or_null());
    let variables = variables.transpose()?.flatten();
    // Once for all statements: it looks through the whole request.
    let context = query_context(ctx, collection, variables, of_collection(ctx, collection));
    let mut report = WriteReport::new(ordered(ctx)?);
    let context = collection_uuid::check_written(ctx, collection).and(context);
    let context = match context {
        Ok(context) => context,
        Err(error) => {
            report.refuse_all(statements.len(), &error);
            return Ok(report.reply(|_| {}));
        }
    };
    let opened = Staging::open(ctx.write_context(), collection, false).await;
    let mut staging = match opened {
        Ok(staging) => staging,
        Err(error)
            if error.code == ErrorCode::CommandNotSupportedOnView
                && time_series::named(ctx, collection).is_some() =>
        {
            time_series::open(ctx.write_context(), collection).await?
        }
        Err(error) if error.code == ErrorCode::CommandNotSupportedOnView => {
            report.refuse_all(statements.len(), &error);
            return Ok(report.reply(|_| {}));
        }
        Err(error) => return Err(error),
    };
    // Those of a collection that was opened by the name of its measurements.
    let series = time_series::opened(&staging, collection);
    let ids = statement_ids(ctx, documents.len())?;
    let mut profiled = profiling::Statements::new(ctx);
    for (at, statement) in statements.iter().enumerate() {
        if report.is_over() {
            break;
        }
        if statements.len() > 1 {
            staging.next_statement().await?;
        }
        write_report::look(ctx, at)?;
        ctx.work.delete_tried.add(1);
        profiled.begin();
        let (context, series) = (&context, series.as_ref());
        let id = ids.of(at);
        let outcome = one(&mut staging, statement, context, series, id, &mut report).await;
        profiled.end(at, outcome.as_ref().err());
        match outcome {
            Ok(deleted) => report.n += deleted,
            Err(error) if write_report::ends_command(ctx, &error) => return Err(error),
            Err(error) => report.refuse(at, error),
        }
    }
    staging.finish().await?;
    profiled.keep(|at| statements[at].describe());
    report.count(ctx);
    Ok(report.reply(|_| {}))
}

async fn one(
    staging: &mut Staging<'_>,
    statement: &Statement<'_>,
    context: &Context,
    series: Option<&TimeSeries>,
    id: i32,
    report: &mut WriteReport,
) -> Result<u64, CommandError> {
    if let Some(outcome) = staging.settled(id) {
        report.retried.push(id);
        return Ok(match outcome {
            StatementOutcome::Delete { deleted } => deleted,
            // A number that was used for something else tells what that did.
            StatementOutcome::Update { matched, .. } => matched,
            StatementOutcome::Insert | StatementOutcome::FindAndModify { .. } => 1,
        });
    }
    if statement.multi && staging.is_retryable() {
        return Err(CommandError::new(
            ErrorCode::InvalidOptions,
            "Cannot use (or request) retryable writes with limit=0",
        ));
    }
    let own_context = match Asked::of(statement.collation)? {
        Asked::Inherited => None,
        Asked::Named(collator) => Some(Context {
            collator,
            ..context.clone()
        }),
    };
    let collation = context.collator.as_ref();
    let context = own_context.as_ref().unwrap_or(context);
    let measured = series.map(|series| {
        let Statement { filter, multi, .. } = *statement;
        Delete::parse(filter, multi, series, context, collation)
    });
    let measured = measured.transpose()?;
    let filter = match &measured {
        Some(measured) => measured.buckets.clone(),
        None => Filter::of_query(statement.filter, context).map_err(errors::query)?,
    };
    let action = match &measured {
        Some(measured) => Action::Rewrite(measured.rewrite()),
        None => Action::Delete,
    };
    let bucket_hint = series.and_then(|series| bucket_hint(statement.hint?, series));
    let bucket_hint = bucket_hint.as_deref().map(RawBsonRef::Document);
    let target = Target {
        filter: Arc::new(filter),
        hint: bucket_hint.or(statement.hint),
        sort: None,
        // One measurement need not lie in the first bucket that may hold it.
        multi: statement.multi || measured.is_some(),
        hidden_too: false,
        most: measured.as_ref().and_then(Delete::most),
        keep_documents: false,
    };
    let make = || Ok(RawDocumentBuf::new());
    if let Some(told) = without_shard_key::told(staging, &target, make).await? {
        report.told = Some(told);
        return Ok(0);
    }
    let effect = modify::run(staging, &target, &action).await?;
    staging.settle(
        id,
        StatementOutcome::Delete {
            deleted: effect.matched,
        },
    );
    Ok(effect.matched)
}
