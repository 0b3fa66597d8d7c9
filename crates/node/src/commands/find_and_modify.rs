//! `findAndModify`: changes one document and answers it, as it was or as it has become.

use std::sync::Arc;

use banyan_access::check::Access;
use banyan_access::reads_and_writes;
use banyan_document::elements;
use banyan_query::Context;
use banyan_query::canonical::Order;
use banyan_query::filter::Filter;
use banyan_query::metadata::Metadata;
use banyan_query::projection::Projection;
use banyan_query::text::{SearchedIndex, TextContext, score, without_score};
use banyan_query::update::{Update, UpdateContext};
use banyan_replication::sessions::StatementOutcome;
use banyan_replication::write::context::WriteContext;
use banyan_replication::write::modify::{self, Action, Target};
use banyan_replication::write::staging::{Staging, refuse_reserved};
use banyan_replication::write::without_shard_key;
use banyan_storage::Namespace;
use banyan_wire::{CommandError, ErrorCode};
use bson::{DateTime, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

use super::table::{BoxFuture, CommandResult, CommandSpec, Run};
use super::validation::{self, BYPASS};
use super::write_report;
use crate::collation::{Asked, of_collection};
use crate::context::CommandContext;
use crate::errors;
use crate::forms;
use crate::params;
use crate::reads::query_context;

pub static SPEC: CommandSpec = CommandSpec::new("findAndModify", Run::Future(run))
    .access(Access::Checked(reads_and_writes::find_and_modify))
    .aliases(&["findandmodify"])
    .writes()
    .retryable()
    .in_transaction()
    .form(check_form)
    .explained(check_explained)
    .fields(&[
        "query",
        "sort",
        "remove",
        "update",
        "new",
        "fields",
        "upsert",
        "arrayFilters",
        "hint",
        "let",
        "collation",
        BYPASS,
    ])
    .ignored(&[
        "runtimeConstants",
        "encryptionInformation",
        "batchSize",
        "singleBatch",
    ])
    .computes();

pub struct Parameters<'a> {
    pub query: &'a RawDocument,
    pub sort: Option<&'a RawDocument>,
    pub update: Option<RawBsonRef<'a>>,
    pub remove: bool,
    pub new: bool,
    pub fields: Option<&'a RawDocument>,
    pub upsert: bool,
    pub array_filters: Option<Vec<&'a RawDocument>>,
    pub hint: Option<RawBsonRef<'a>>,
    pub variables: Option<&'a RawDocument>,
    pub collation: Option<&'a RawDocument>,
}

/// What a field has to be, whatever the others are.
fn check_form(field: params::Field<'_>) -> Result<(), CommandError> {
    match (field.name, field.value) {
        ("query" | "sort" | "fields" | "runtimeConstants" | "encryptionInformation", _) => {
            field.document_or_null().map(drop)
        }
        ("remove" | "new" | "upsert", _) => field.bool().map(drop),
        ("update", RawBsonRef::Array(_)) => forms::documents(field),
        (BYPASS, _) => field.bool().map(drop),
        // It is one statement.
        ("stmtIds", _) => Err(params::unknown_field(field.command, field.name)),
        // Drivers that take it for a search send these.
        ("batchSize", RawBsonRef::Int32(_)) | ("singleBatch", RawBsonRef::Boolean(_)) => Ok(()),
        ("batchSize", _) if !field.is_null() => Err(field.wrong_type("type 'int'")),
        ("singleBatch", _) if !field.is_null() => Err(field.wrong_type("type 'bool'")),
        _ => Ok(()),
    }
}

fn check_explained(field: params::Field<'_>) -> Result<(), CommandError> {
    match field.name {
        "writeConcern" => field.document_or_null().map(drop),
        _ => forms::of_explained_write(field),
    }
}

impl<'a> Parameters<'a> {
    pub fn parse(body: &'a RawDocument, empty: &'a RawDocument) -> Result<Self, CommandError> {
        let mut parameters = Parameters {
            query: empty,
            sort: None,
            update: None,
            remove: false,
            new: false,
            fields: None,
            upsert: false,
            array_filters: None,
            hint: None,
            variables: None,
            collation: None,
        };
        for field in params::fields("findAndModify", body) {
            match field.name {
                "query" => parameters.query = field.document_or_null()?.unwrap_or(empty),
                "sort" => {
                    parameters.sort = field.document_or_null()?.filter(|sort| !sort.is_empty());
                }
                "update" => parameters.update = Some(field.value),
                "remove" => parameters.remove = field.bool()?,
                "new" => parameters.new = field.bool()?,
                "fields" => {
                    parameters.fields = field.document_or_null()?.filter(|f| !f.is_empty());
                }
                "upsert" => parameters.upsert = field.bool()?,
                "arrayFilters" => parameters.array_filters = Some(params::documents(field)?),
                "hint" => parameters.hint = write_report::hint(field)?,
                "let" => parameters.variables = field.document_or_null()?,
                "collation" => parameters.collation = field.document_or_null()?,
                _ => {}
            }
        }
        parameters.check()?;
        Ok(parameters)
    }

    /// The position is that in the document as it was found.
    pub fn check_position(&self, projection: &Projection) -> Result<(), CommandError> {
        match self.new && projection.needs_position() {
            true => Err(CommandError::new(
                ErrorCode::BadValue,
                "cannot use a positional projection and return the new document",
            )),
            false => Ok(()),
        }
    }

    fn check(&self) -> Result<(), CommandError> {
        let refuse = |message: &str| Err(CommandError::new(ErrorCode::FailedToParse, message));
        let is_pipeline = matches!(self.update, Some(RawBsonRef::Array(_)));
        match (self.remove, self.update.is_some()) {
            (true, true) => refuse("Cannot specify both an update and remove=true"),
            (false, false) => refuse("Either an update or remove=true must be specified"),
            (true, false) if self.upsert => {
                refuse("Cannot specify both upsert=true and remove=true ")
            }
            (true, false) if self.array_filters.is_some() => {
                refuse("Cannot specify arrayFilters and remove=true")
            }
            (true, false) if self.new => refuse(
                "Cannot specify both new=true and remove=true; 'remove' always returns the deleted document",
            ),
            (false, true) if is_pipeline && self.array_filters.is_some() => {
                refuse("Cannot specify arrayFilters and a pipeline update")
            }
            _ => Ok(()),
        }
    }
}

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(find_and_modify(ctx))
}

async fn find_and_modify(ctx: &CommandContext<'_>) -> CommandResult {
    let collection = ctx.collection()?;
    let empty = RawDocumentBuf::new();
    let mut parameters = Parameters::parse(ctx.body(), &empty)?;
    let namespace = Namespace::new(ctx.database(), collection);
    refuse_reserved(&ctx.node.replica, &namespace)?;
    let collation = Asked::of(parameters.collation)?;
    let collator = collation.collator(ctx, collection);
    let context = Context {
        is_upsert: parameters.upsert,
        ..query_context(ctx, collection, parameters.variables, collator)?
    };
    let array_filters = parameters.array_filters.as_deref().unwrap_or_default();
    let update = match parameters.update {
        Some(update) => {
            Some(Update::parse(update, array_filters, &context).map_err(errors::query)?)
        }
        None => None,
    };
    let filter = Filter::of_query(parameters.query, &context).map_err(errors::query)?;
    if finds_by_id(ctx, collection, &parameters, &collation, update.as_ref()) {
        parameters.sort = None;
    }
    Order::parse_in(parameters.sort, &context).map_err(errors::query)?;
    if filter.near().is_none() {
        let asked = context.metadata.take();
        asked.check_places().map_err(errors::query)?;
    }
    if !may_show(ctx, collection, &parameters) {
        parameters.fields = None;
    }
    // Where nothing is searched for there is no score, which is no error here.
    let text = TextContext::new(SearchedIndex::Elsewhere);
    let scored = Context {
        text: Some(text.clone()),
        ..context.clone()
    };
    let write_context = WriteContext {
        bypass_validation: validation::is_bypassed(ctx)?,
        ..ctx.write_context()
    };
    let mut staging = Staging::open(write_context, collection, parameters.upsert).await?;
    // A collection is made for an upsert before it is looked at what is to be shown.
    context.metadata.take();
    let projection = parameters
        .fields
        .map(|fields| Projection::parse_beside(fields, Some(parameters.query), &scored))
        .transpose()
        .map_err(errors::query)?;
    if context.metadata.take().has(Metadata::SortKey) {
        return Err(CommandError::new(
            ErrorCode::BadValue,
            "Cannot use a $meta sortKey projection in findAndModify commands.",
        ));
    }
    if let Some(projection) = &projection {
        parameters.check_position(projection)?;
    }
    let asks = projection.as_ref().is_some_and(Projection::needs_position);
    let positions = asks.then(|| Filter::as_written(parameters.query, &context));
    let positions = positions.transpose().map_err(errors::query)?;
    let statement = ctx.generic.stmt_id.unwrap_or(0);
    if let Some(outcome) = staging.settled(statement) {
        return again(statement, outcome);
    }
    let target = Target {
        filter: Arc::new(filter),
        hint: parameters.hint,
        sort: parameters.sort,
        multi: false,
        hidden_too: false,
        most: None,
        keep_documents: true,
    };
    let update_context = UpdateContext {
        generated_id: staging.routed.and_then(|routed| routed.inserted_id()),
        ..UpdateContext::new(DateTime::now(), ctx.node.replica.clock.now())
    };
    let make = || match &update {
        Some(update) => update.upsert_document(&target.filter, &update_context),
        None => Ok(RawDocumentBuf::new()),
    };
    let told = without_shard_key::told(&mut staging, &target, make).await;
    if let Some(told) = told.map_err(while_running)? {
        let mut reply = rawdoc! { "lastErrorObject": last_error(&parameters, 0, None) };
        reply.append(cstr!("value"), RawBsonRef::Null);
        for (name, value) in told.iter().flatten() {
            reply.append(name, value);
        }
        reply.append(cstr!("ok"), 1.0);
        return Ok(reply);
    }
    let upsert = parameters.upsert && staging.may_insert();
    let action = match &update {
        Some(update) => Action::Update(update, update_context.clone()),
        None => Action::Delete,
    };
    let (value, last_error, is_changed) = loop {
        let effect = modify::run(&mut staging, &target, &action).await;
        let effect = effect.map_err(while_running)?;
        if effect.matched > 0 {
            // The score is that of the document that was found.
            let found = target.filter.matchers();
            let score_found = match (&effect.before, found.first()) {
                (Some(before), Some(search)) if text.is_asked() => {
                    score(search, before).map_err(errors::query)?
                }
                _ => None,
            };
            let mut value = if parameters.new {
                effect.after
            } else {
                effect.before
            };
            if let (Some(value), Some(score)) = (&mut value, score_found) {
                value.append(cstr!("$textScore"), score);
            }
            let is_changed = effect.modified > 0;
            break (value, last_error(&parameters, 1, None), is_changed);
        }
        let Some(update) = update.as_ref().filter(|_| upsert) else {
            break (None, last_error(&parameters, 0, None), false);
        };
        let made = modify::upsert(&mut staging, &target, update, &update_context).await;
        let made = made.map_err(while_running)?;
        if let Some(document) = made {
            let last_error = last_error(&parameters, 1, Some(&document));
            break (parameters.new.then_some(document), last_error, true);
        }
    };
    let value = match (value, &projection) {
        (Some(document), Some(projection)) => {
            let position = match &positions {
                Some(filter) => filter.matches_with_position(&document),
                None => Ok(None),
            };
            let position = position.map_err(errors::query)?;
            let shown = projection
                .apply(&document, position)
                .map_err(errors::query)?;
            Some(without_score(&shown).unwrap_or(shown))
        }
        (value, _) => value,
    };
    let mut reply = rawdoc! { "lastErrorObject": last_error };
    match value {
        Some(document) => reply.append(cstr!("value"), document),
        None => reply.append(cstr!("value"), RawBsonRef::Null),
    }
    if is_changed {
        let reply = reply.clone();
        staging.settle(statement, StatementOutcome::FindAndModify { reply });
    }
    staging.finish().await?;
    reply.append(cstr!("ok"), 1.0);
    Ok(reply)
}

/// Whether all that is said is which `_id` the document has. Then MongoDB takes it by that, and reads
/// no more of the command than it needs: not the sort, whatever it says.
pub fn finds_by_id(
    ctx: &CommandContext<'_>,
    collection: &str,
    parameters: &Parameters<'_>,
    collation: &Asked,
    update: Option<&Update>,
) -> bool {
    if parameters.fields.is_some()
        || !is_id_query(parameters.query)
        || update.is_some_and(Update::needs_position)
    {
        return false;
    }
    let exists = ctx.node.replica.store.catalog();
    let exists = exists.get(ctx.database(), collection).is_some();
    let own_collation = match collation {
        Asked::Inherited => true,
        Asked::Named(collator) => *collator == of_collection(ctx, collection),
    };
    !exists || parameters.hint.is_none() && own_collation
}

/// Whether a query names an `_id`, and nothing else.
fn is_id_query(query: &RawDocument) -> bool {
    let mut fields = elements(query);
    let (Some(id), None) = (fields.next(), fields.next()) else {
        return false;
    };
    id.name() == "_id"
        && match id.value() {
            RawBsonRef::Document(value) => {
                let first = elements(value).next();
                first.is_none_or(|first| !first.name().starts_with('$'))
            }
            RawBsonRef::Null
            | RawBsonRef::Undefined
            | RawBsonRef::Array(_)
            | RawBsonRef::RegularExpression(_) => false,
            _ => true,
        }
}

/// Whether there can be a document to show. Where there is none, nobody looks at how.
fn may_show(ctx: &CommandContext<'_>, collection: &str, parameters: &Parameters<'_>) -> bool {
    let catalog = ctx.node.replica.store.catalog();
    parameters.upsert || catalog.get(ctx.database(), collection).is_some()
}

/// What goes wrong with a document is told so; not what ends the operation, or is wrong with its plan.
fn while_running(mut error: CommandError) -> CommandError {
    const SORT_OF_TOO_MANY: ErrorCode = ErrorCode::Location(13103);
    let is_of_document = !matches!(
        error.code,
        ErrorCode::MaxTimeMSExpired
            | ErrorCode::Interrupted
            | ErrorCode::InterruptedAtShutdown
            | ErrorCode::InterruptedDueToReplStateChange
            | ErrorCode::NotWritablePrimary
            | ErrorCode::StaleConfig
            | SORT_OF_TOO_MANY
    );
    if is_of_document && !error.message.starts_with("error processing query") {
        error.message = format!(
            "Plan executor error during findAndModify :: caused by :: {}",
            error.message
        );
    }
    error
}

/// The reply of a statement that an earlier try has settled.
fn again(statement: i32, outcome: StatementOutcome) -> CommandResult {
    let StatementOutcome::FindAndModify { mut reply } = outcome else {
        // A number that was used for something else has no document to show.
        return Err(CommandError::new(
            ErrorCode::Location(40608),
            "findAndModify retry request is not compatible with the previous write of this \
             transaction number",
        ));
    };
    reply.append(cstr!("retriedStmtId"), statement);
    reply.append(cstr!("ok"), 1.0);
    Ok(reply)
}

fn last_error(
    parameters: &Parameters<'_>,
    n: i32,
    upserted: Option<&RawDocument>,
) -> RawDocumentBuf {
    let mut out = rawdoc! { "n": n };
    if !parameters.remove {
        out.append(cstr!("updatedExisting"), n == 1 && upserted.is_none());
    }
    if let Some(Ok(Some(id))) = upserted.map(|document| document.get("_id")) {
        out.append(cstr!("upserted"), id);
    }
    out
}
