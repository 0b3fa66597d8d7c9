//! `update`: statements that modify, replace or upsert.

use std::sync::Arc;

use banyan_access::check::Access;
use banyan_access::reads_and_writes;
use banyan_document::time_series::TimeSeries;
use banyan_query::canonical::Order;
use banyan_query::filter::Filter;
use banyan_query::pipeline::Pipeline;
use banyan_query::update::{Update, UpdateContext};
use banyan_query::{Context, let_variables};
use banyan_replication::sessions::StatementOutcome;
use banyan_replication::write::context::WriteContext;
use banyan_replication::write::modify::{self, Action, Target};
use banyan_replication::write::staging::Staging;
use banyan_replication::write::without_shard_key;
use banyan_wire::{CommandError, ErrorCode};
use bson::{DateTime, RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

use super::table::{BoxFuture, CommandResult, CommandSpec, Run};
use super::time_series;
use super::time_series::changes::{self, MetaUpdate};
use super::validation::{self, BYPASS};
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

pub static SPEC: CommandSpec = CommandSpec::new("update", Run::Future(run))
    .access(Access::Checked(reads_and_writes::update))
    .writes_statements("updates")
    .in_transaction()
    .required(&["updates"])
    .form(check_form)
    .explained(forms::of_explained_write)
    .fields(&["updates", "ordered", "let", BYPASS, collection_uuid::FIELD])
    .ignored(&["runtimeConstants", "encryptionInformation"])
    .computes();

/// What a field has to be, whatever the others are.
fn check_form(field: Field<'_>) -> Result<(), CommandError> {
    match field.name {
        "updates" => forms::documents(field),
        collection_uuid::FIELD => collection_uuid::check_form(field),
        "ordered" if !field.is_null() => field.strict_bool().map(drop),
        BYPASS => field.bool().map(drop),
        "runtimeConstants" | "encryptionInformation" => field.document_or_null().map(drop),
        _ => Ok(()),
    }
}

/// What errors call a statement.
const PARSER: &str = "update.updates";

/// One statement, parsed.
pub struct Statement<'a> {
    pub filter: &'a RawDocument,
    pub update: RawBsonRef<'a>,
    pub array_filters: Vec<&'a RawDocument>,
    constants: Option<&'a RawDocument>,
    pub hint: Option<RawBsonRef<'a>>,
    pub sort: Option<&'a RawDocument>,
    pub collation: Option<&'a RawDocument>,
    pub multi: bool,
    pub upsert: bool,
    /// An upsert inserts `$$new` of the constants, and not what the pipeline makes.
    upsert_supplied: bool,
}

impl<'a> Statement<'a> {
    pub fn parse(document: &'a RawDocument) -> Result<Statement<'a>, CommandError> {
        let (mut filter, mut update) = (None, None);
        let mut statement = Statement {
            filter: document,
            update: RawBsonRef::Null,
            array_filters: Vec::new(),
            constants: None,
            hint: None,
            sort: None,
            collation: None,
            multi: false,
            upsert: false,
            upsert_supplied: false,
        };
        for field in params::once(PARSER, document) {
            let field = field?;
            match field.name {
                "q" if field.is_null() => {}
                "q" => filter = Some(field.document()?),
                "u" => match field.value {
                    RawBsonRef::Document(_) | RawBsonRef::Array(_) => update = Some(field.value),
                    _ => {
                        return Err(CommandError::new(
                            ErrorCode::FailedToParse,
                            "Update argument must be either an object or an array",
                        ));
                    }
                },
                "c" => statement.constants = field.document_or_null()?,
                "multi" | "upsert" if field.is_null() => {}
                "multi" => statement.multi = field.strict_bool()?,
                "upsert" => statement.upsert = field.strict_bool()?,
                "hint" => statement.hint = write_report::hint(field)?,
                "sort" => {
                    statement.sort = field.document_or_null()?.filter(|sort| !sort.is_empty());
                }
                "arrayFilters" => statement.array_filters = params::documents(field)?,
                "collation" => statement.collation = field.document_or_null()?,
                "upsertSupplied" => statement.upsert_supplied = field.strict_bool()?,
                "sampleId" => {}
                name => return Err(params::unknown_field(PARSER, name)),
            }
        }
        statement.filter = filter.ok_or_else(|| params::missing_field(PARSER, "q"))?;
        statement.update = update.ok_or_else(|| params::missing_field(PARSER, "u"))?;
        if statement.multi && statement.sort.is_some() {
            return Err(CommandError::new(
                ErrorCode::FailedToParse,
                "Cannot specify sort with multi=true",
            ));
        }
        if let RawBsonRef::Array(stages) = statement.update {
            let mut items = stages.into_iter().flatten();
            if let Some(value) = items.find(|stage| !matches!(stage, RawBsonRef::Document(_))) {
                let name = "u";
                let field = Field {
                    command: PARSER,
                    name,
                    value,
                };
                return Err(field.wrong_type("type 'object'"));
            }
            // Before any statement runs, as for every pipeline.
            Pipeline::check_outline(stages).map_err(errors::query)?;
        }
        Ok(statement)
    }
}

impl Statement<'_> {
    /// What an upsert inserts if the statement says so itself.
    pub fn supplied(&self) -> Result<Option<Arc<RawDocumentBuf>>, CommandError> {
        if !self.upsert_supplied {
            return Ok(None);
        }
        let refuse = |message| Err(CommandError::new(ErrorCode::FailedToParse, message));
        if !self.upsert {
            return refuse("'upsertSupplied' goes with 'upsert' only");
        }
        if !matches!(self.update, RawBsonRef::Array(_)) {
            return refuse("'upsertSupplied' goes with a pipeline only");
        }
        let constants = self.constants;
        match constants.and_then(|constants| constants.get_document("new").ok()) {
            Some(new) => Ok(Some(Arc::new(new.to_owned()))),
            None => refuse("'upsertSupplied' needs a document 'c.new'"),
        }
    }

    /// As the profiler shows it.
    fn describe(&self) -> RawDocumentBuf {
        let mut shown = rawdoc! { "q": self.filter.to_owned() };
        shown.append(cstr!("u"), self.update);
        if let Some(constants) = self.constants {
            shown.append(cstr!("c"), constants);
        }
        if let Some(hint) = self.hint {
            shown.append(cstr!("hint"), hint);
        }
        if let Some(sort) = self.sort {
            shown.append(cstr!("sort"), sort);
        }
        if let Some(collation) = self.collation {
            shown.append(cstr!("collation"), collation);
        }
        if !self.array_filters.is_empty() {
            let filters = self
                .array_filters
                .iter()
                .map(|filter| RawDocument::to_owned(filter));
            shown.append(cstr!("arrayFilters"), filters.collect::<RawArrayBuf>());
        }
        shown.append(cstr!("multi"), self.multi);
        shown.append(cstr!("upsert"), self.upsert);
        shown
    }

    /// What the statement is parsed in, if that is not what all are.
    pub fn context(&self, common: &Context) -> Result<Option<Context>, CommandError> {
        let collator = match Asked::of(self.collation)? {
            Asked::Named(collator) => collator,
            Asked::Inherited if self.constants.is_none() => return Ok(None),
            Asked::Inherited => common.collator.clone(),
        };
        let mut context = Context {
            collator,
            ..common.clone()
        };
        if let Some(constants) = self.constants {
            if !matches!(self.update, RawBsonRef::Array(_)) {
                return Err(CommandError::new(
                    ErrorCode::Location(51198),
                    "Constant values may only be specified for pipeline updates",
                ));
            }
            let_variables::define_constants(&mut context, constants).map_err(errors::query)?;
        }
        Ok(Some(context))
    }
}

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(update(ctx))
}

/// What an update statement has come to.
#[derive(Default)]
struct Done {
    matched: u64,
    modified: u64,
    upserted: Option<RawDocumentBuf>,
    /// An earlier try has done it.
    again: bool,
    /// Nothing was done, and a router is told this.
    told: Option<RawDocumentBuf>,
}

impl Done {
    fn again(outcome: StatementOutcome) -> Done {
        let (matched, modified, upserted) = match outcome {
            StatementOutcome::Update {
                matched,
                modified,
                upserted,
            } => (matched, modified, upserted),
            // A number that was used for something else tells what that did.
            StatementOutcome::Insert | StatementOutcome::FindAndModify { .. } => (1, 0, None),
            StatementOutcome::Delete { deleted } => (deleted, 0, None),
        };
        Done {
            matched,
            modified,
            upserted,
            again: true,
            told: None,
        }
    }
}

async fn update(ctx: &CommandContext<'_>) -> CommandResult {
    let documents = ctx.request.batch("updates")?;
    let statements = documents
        .iter()
        .map(|d| Statement::parse(d))
        .collect::<Result<Vec<_>, _>>()?;
    let collection = ctx.existing_collection()?;
    write_report::check_size(documents.len())?;
    check_collection_name(ctx.database(), collection)?;
    let create = statements.iter().any(|statement| statement.upsert);
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
            return Ok(report.reply(|reply| reply.append(cstr!("nModified"), 0)));
        }
    };
    let write_context = WriteContext {
        bypass_validation: validation::is_bypassed(ctx)?,
        ..ctx.write_context()
    };
    let opened = Staging::open(write_context, collection, create).await;
    let mut staging = match opened {
        Ok(staging) => staging,
        Err(error)
            if error.code == ErrorCode::CommandNotSupportedOnView
                && time_series::named(ctx, collection).is_some() =>
        {
            time_series::open(write_context, collection).await?
        }
        Err(error) if error.code == ErrorCode::CommandNotSupportedOnView => {
            report.refuse_all(statements.len(), &error);
            return Ok(report.reply(|reply| reply.append(cstr!("nModified"), 0)));
        }
        Err(error) => return Err(error),
    };
    // Those of a collection that was opened by the name of its measurements.
    let series = time_series::opened(&staging, collection);
    let ids = statement_ids(ctx, documents.len())?;
    let mut modified = 0;
    let mut upserted = RawArrayBuf::new();
    let mut parsed = None;
    let mut profiled = profiling::Statements::new(ctx);
    for (at, statement) in statements.iter().enumerate() {
        if report.is_over() {
            break;
        }
        if statements.len() > 1 {
            staging.next_statement().await?;
        }
        write_report::look(ctx, at)?;
        ctx.work.update_tried.add(1);
        profiled.begin();
        let outcome = match &series {
            Some(series) => metadata(&mut staging, statement, series, &context, ids.of(at)).await,
            None => {
                one(
                    ctx,
                    &mut staging,
                    statement,
                    &context,
                    &mut parsed,
                    ids.of(at),
                )
                .await
            }
        };
        profiled.end(at, outcome.as_ref().err());
        match outcome {
            Ok(done) => {
                report.n += done.matched;
                if done.again {
                    report.retried.push(ids.of(at));
                }
                report.told = done.told;
                modified += done.modified;
                if let Some(id) = done.upserted {
                    report.n += 1;
                    let mut line = rawdoc! { "index": i32::try_from(at).unwrap_or(i32::MAX) };
                    for (name, value) in id.iter().flatten() {
                        line.append(name, value);
                    }
                    upserted.push(line);
                }
            }
            Err(error) if write_report::ends_command(ctx, &error) => return Err(error),
            Err(error) => report.refuse(at, error),
        }
    }
    staging.finish().await?;
    profiled.keep(|at| statements[at].describe());
    report.count(ctx);
    Ok(report.reply(|reply| {
        if !upserted.is_empty() {
            reply.append(cstr!("upserted"), upserted);
        }
        reply.append(
            cstr!("nModified"),
            i32::try_from(modified).unwrap_or(i32::MAX),
        );
    }))
}

/// Updates the metadata of measurements.
async fn metadata(
    staging: &mut Staging<'_>,
    statement: &Statement<'_>,
    series: &TimeSeries,
    context: &Context,
    id: i32,
) -> Result<Done, CommandError> {
    if let Some(outcome) = staging.settled(id) {
        return Ok(Done::again(outcome));
    }
    if statement.multi && staging.is_retryable() {
        return Err(CommandError::new(
            ErrorCode::InvalidOptions,
            "Cannot use (or request) retryable writes with multi=true",
        ));
    }
    let own_context = match Asked::of(statement.collation)? {
        Asked::Inherited => None,
        Asked::Named(collator) => Some(Context {
            collator,
            ..context.clone()
        }),
    };
    let context = own_context.as_ref().unwrap_or(context);
    let written = changes::Statement {
        filter: statement.filter,
        update: statement.update,
        array_filters: &statement.array_filters,
        multi: statement.multi,
        upsert: statement.upsert,
    };
    let now = staging.ctx.replica.clock.now();
    let update_context = UpdateContext::new(DateTime::now(), now);
    let update = MetaUpdate::parse(written, series, context, update_context)?;
    let bucket_hint = statement
        .hint
        .and_then(|hint| changes::bucket_hint(hint, series));
    let bucket_hint = bucket_hint.as_deref().map(RawBsonRef::Document);
    let target = Target {
        filter: Arc::new(update.buckets.clone()),
        hint: bucket_hint.or(statement.hint),
        sort: None,
        multi: true,
        hidden_too: false,
        most: None,
        keep_documents: false,
    };
    let effect = modify::run(staging, &target, &Action::Rewrite(update.rewrite())).await?;
    Ok(Done {
        matched: effect.matched,
        modified: effect.modified,
        upserted: None,
        again: false,
        told: None,
    })
}

/// The update of the last statement: most often the next one has the same.
struct Parsed<'a> {
    source: RawBsonRef<'a>,
    update: Update,
    /// Whether nothing of the statement but its update was looked at.
    stands_alone: bool,
}

/// Refuses to put one document in the place of several.
pub fn check_multi(statement: &Statement<'_>, update: &Update) -> Result<(), CommandError> {
    match statement.multi && update.is_replacement() {
        true => Err(CommandError::new(
            ErrorCode::FailedToParse,
            "multi update is not supported for replacement-style update",
        )),
        false => Ok(()),
    }
}

async fn one<'a>(
    ctx: &CommandContext<'_>,
    staging: &mut Staging<'_>,
    statement: &Statement<'a>,
    context: &Context,
    parsed: &mut Option<Parsed<'a>>,
    id: i32,
) -> Result<Done, CommandError> {
    if let Some(outcome) = staging.settled(id) {
        return Ok(Done::again(outcome));
    }
    let supplied = statement.supplied()?;
    let own_context = statement.context(context)?;
    let context = own_context.as_ref().unwrap_or(context);
    let stands_alone = own_context.is_none() && statement.array_filters.is_empty();
    let known = parsed
        .take()
        .filter(|known| known.stands_alone && stands_alone && known.source == statement.update);
    let update = match known {
        Some(known) => known.update,
        None => Update::parse(statement.update, &statement.array_filters, context)
            .map_err(errors::query)?,
    };
    let Parsed { update, .. } = &*parsed.insert(Parsed {
        source: statement.update,
        update,
        stands_alone,
    });
    check_multi(statement, update)?;
    if statement.multi && staging.is_retryable() {
        return Err(CommandError::new(
            ErrorCode::InvalidOptions,
            "Cannot use (or request) retryable writes with multi=true",
        ));
    }
    let filter = match statement.upsert {
        true => {
            let is_upsert = true;
            let context = Context {
                is_upsert,
                ..context.clone()
            };
            Filter::of_query(statement.filter, &context)
        }
        false => Filter::of_query(statement.filter, context),
    };
    let filter = filter.map_err(errors::query)?;
    let target = Target {
        filter: Arc::new(filter),
        hint: statement.hint,
        sort: statement.sort,
        multi: statement.multi,
        hidden_too: false,
        most: None,
        keep_documents: false,
    };
    Order::parse_in(statement.sort, context).map_err(errors::query)?;
    let update_context = UpdateContext {
        supplied,
        generated_id: staging.routed.and_then(|routed| routed.inserted_id()),
        ..UpdateContext::new(DateTime::now(), ctx.node.replica.clock.now())
    };
    let make = || update.upsert_document(&target.filter, &update_context);
    if let Some(told) = without_shard_key::told(staging, &target, make).await? {
        return Ok(Done {
            told: Some(told),
            ..Done::default()
        });
    }
    let upsert = statement.upsert && staging.may_insert();
    let action = Action::Update(update, update_context.clone());
    loop {
        let effect = modify::run(staging, &target, &action).await?;
        let mut done = Done {
            matched: effect.matched,
            modified: effect.modified,
            ..Done::default()
        };
        if effect.matched == 0 && upsert {
            match modify::upsert(staging, &target, update, &update_context).await? {
                Some(document) => done.upserted = Some(id_document(&document)),
                None => continue,
            }
        }
        let (matched, modified) = (done.matched, done.modified);
        let upserted = done.upserted.clone();
        staging.settle(
            id,
            StatementOutcome::Update {
                matched,
                modified,
                upserted,
            },
        );
        return Ok(done);
    }
}

/// `{_id: …}` of a document.
fn id_document(document: &RawDocument) -> RawDocumentBuf {
    let mut out = RawDocumentBuf::new();
    if let Ok(Some(id)) = document.get("_id") {
        out.append(cstr!("_id"), id);
    }
    out
}
