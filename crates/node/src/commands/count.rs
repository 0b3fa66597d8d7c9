//! `count`: how many documents match.

use banyan_access::check::Access;
use banyan_document::field;
use banyan_execution::{Goal, Request};
use banyan_query::view::Resolved;
use banyan_query::view::command::COUNT;
use banyan_security::Action;
use banyan_wire::CommandError;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};

use super::aggregate;
use super::coll_stats::number;
use super::table::{BoxFuture, CommandResult, CommandSpec, Run};
use super::write_report;
use crate::collation::Asked;
use crate::context::CommandContext;
use crate::errors;
use crate::forms;
use crate::names::{check_collection_name, check_outline, collection_name};
use crate::params;
use crate::reads::{self, owned_view};
use crate::views;

pub static SPEC: CommandSpec = CommandSpec::new("count", Run::Future(run))
    .access(Access::Collection(Action::Find))
    .fields(&["query", "limit", "skip", "hint", "collation"])
    .ignored(&["fields", "encryptionInformation"])
    .explained(forms::of_explained_read)
    .computes();

#[derive(Default)]
pub struct Parameters<'a> {
    pub collection: &'a str,
    pub filter: Option<&'a RawDocument>,
    pub hint: Option<RawBsonRef<'a>>,
    pub skip: u64,
    pub limit: Option<u64>,
    pub collation: Asked,
}

impl<'a> Parameters<'a> {
    pub fn parse(database: &str, body: &'a RawDocument) -> Result<Parameters<'a>, CommandError> {
        let mut parameters = Parameters::default();
        let mut collation = None;
        for (position, field) in params::fields("count", body).enumerate() {
            match field.name {
                _ if position == 0 => parameters.collection = collection_name(field.value)?,
                "query" => parameters.filter = field.document_or_null()?,
                "hint" => {
                    parameters.hint = write_report::hint(field)?
                        .filter(|hint| !matches!(hint, RawBsonRef::Document(d) if d.is_empty()));
                }
                "skip" if field.is_null() => {}
                "skip" => parameters.skip = field.unsigned()?,
                "limit" => parameters.limit = params::count_limit(field)?,
                "collation" => collation = field.document_or_null()?,
                _ => {}
            }
        }
        parameters.filter = parameters.filter.filter(|filter| !filter.is_empty());
        check_outline(database, parameters.collection)?;
        parameters.collation = Asked::of(collation)?;
        Ok(parameters)
    }

    /// More than this need not be found.
    pub fn most(&self) -> u64 {
        let limit = self.limit.unwrap_or(u64::MAX);
        limit.saturating_add(self.skip)
    }
}

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move {
        let parameters = Parameters::parse(ctx.database(), ctx.body())?;
        check_collection_name(ctx.database(), parameters.collection)?;
        if let Some(view) = views::resolve(ctx, parameters.collection)? {
            return of_view(ctx, parameters.collection, &view).await;
        }
        let count = ctx.compute(|| count(ctx, &parameters)).await?;
        Ok(reply(count))
    })
}

async fn of_view(ctx: &CommandContext<'_>, name: &str, view: &Resolved) -> CommandResult {
    let body = view.of_count(ctx.body()).map_err(errors::query)?;
    let result = aggregate::one_of_view(ctx, name, view, &body).await?;
    let count = result.and_then(|result| params::number(field(&result, COUNT)?));
    // `ok` is of another type than elsewhere, as in MongoDB.
    Ok(rawdoc! { "n": number(count.unwrap_or(0)), "ok": 1 })
}

fn reply(count: u64) -> RawDocumentBuf {
    rawdoc! { "n": number(i64::try_from(count).unwrap_or(i64::MAX)), "ok": 1.0 }
}

/// How many documents match.
fn count(ctx: &CommandContext<'_>, parameters: &Parameters<'_>) -> Result<u64, CommandError> {
    ctx.interrupt();
    let most = parameters.most();
    let found = match known(ctx, parameters)? {
        Some(documents) => documents.min(most),
        None => {
            let request = request(ctx, parameters)?;
            let mut executor = reads::plan(ctx, parameters.collection, request)?.open(ctx)?;
            executor.count_up_to(most).map_err(errors::query)?
        }
    };
    Ok(found.saturating_sub(parameters.skip))
}

/// The number of all documents, where that is what is asked for and it is known.
pub fn known(
    ctx: &CommandContext<'_>,
    parameters: &Parameters<'_>,
) -> Result<Option<u64>, CommandError> {
    let is_virtual = matches!(ctx.database(), "local" | "config");
    if parameters.filter.is_some() || parameters.hint.is_some() || is_virtual {
        return Ok(None);
    }
    let view = owned_view(ctx, parameters.collection)?;
    if view.ownership.is_some() {
        return Ok(None);
    }
    let found = view.catalog.get(ctx.database(), parameters.collection);
    let documents = found.map_or(0, |collection| collection.documents());
    // It is counted as of now, not as of the snapshot.
    if ctx.is_routed() {
        owned_view(ctx, parameters.collection)?;
    }
    Ok(Some(documents))
}

/// What is counted.
pub fn request<'a>(
    ctx: &CommandContext<'_>,
    parameters: &Parameters<'a>,
) -> Result<Request<'a>, CommandError> {
    let matching = reads::matching(
        ctx,
        parameters.collection,
        parameters.filter,
        &parameters.collation,
    )?;
    Ok(Request {
        hint: parameters.hint,
        wanted: Some(parameters.most()).filter(|most| *most < u64::MAX),
        goal: Goal::Count,
        ..matching
    })
}
