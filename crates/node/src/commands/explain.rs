//! `explain`: how a command would find its documents, and what that costs.

use banyan_access::check::Access;
use banyan_access::reads_and_writes;
use banyan_document::time_series::visible_name;
use banyan_query::Context;
use banyan_query::projection::Projection;
use banyan_query::update::Update;
use banyan_query::view::{self, Resolved};
use banyan_replication::write::staging;
use banyan_storage::Namespace;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};

use super::explanation::{Around, Verbosity, Write, WriteKind, explain_request, finish};
use super::table::{BoxFuture, CommandResult, CommandSpec, Run};
use super::{aggregate, count, delete, distinct, find, find_and_modify, update};
use crate::collation::Asked;
use crate::context::CommandContext;
use crate::cursors::first::BatchOptions;
use crate::errors;
use crate::names::{check_collection_name, check_outline, collection_name};
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
        let verbosity = Verbosity::of(ctx)?;
        let spec = check(ctx, inner)?;
        if let Some((name, view)) = viewed(ctx, inner)? {
            let body = of_view(ctx, inner, &view)?;
            aggregate::prepare_explanation(ctx, Some((name, &view)), &body).await?;
            return ctx
                .compute(|| aggregate::explain(ctx, &body, verbosity))
                .await;
        }
        match spec.explained_by {
            Some(Run::Inline(run)) => return run(ctx),
            Some(Run::Future(run) | Run::Either(_, run)) => return run(ctx).await,
            None => {}
        }
        if verbosity > Verbosity::Planner && name_of(inner) == "aggregate" {
            aggregate::prepare_explanation(ctx, None, inner).await?;
        }
        ctx.compute(|| explain(ctx, inner, verbosity)).await
    })
}

/// The command, unless it could not be run as it stands.
fn check(
    ctx: &CommandContext<'_>,
    inner: &RawDocument,
) -> Result<&'static CommandSpec, CommandError> {
    if let Some(database) = banyan_document::field(inner, "$db") {
        return Err(refused_database(ctx, inner, database));
    }
    let Some(spec) = ctx.table.find(name_of(inner)) else {
        return Err(CommandError::new(
            ErrorCode::CommandNotFound,
            format!("Explain failed due to unknown command: {}", name_of(inner)),
        ));
    };
    if spec.name == SPEC.name {
        return Err(CommandError::new(
            ErrorCode::IllegalOperation,
            "Explain cannot explain itself.",
        ));
    }
    spec.check_explained(inner)?;
    if spec.explained.is_none() {
        return Err(unexplained(spec.name));
    }
    let refuse = |message| Err(CommandError::new(ErrorCode::FailedToParse, message));
    let has = |name| banyan_document::field(inner, name).is_some();
    match spec.name {
        "aggregate" if has("explain") => {
            refuse("The 'explain' option is illegal when a explain verbosity is also provided")
        }
        "aggregate" if !has("cursor") => refuse(
            "The 'cursor' option is required, except for aggregate with the explain argument",
        ),
        "aggregate" => BatchOptions::from_cursor_field(spec.name, inner).map(drop),
        _ => Ok(()),
    }?;
    Ok(spec)
}

fn unexplained(name: &str) -> CommandError {
    CommandError::new(
        ErrorCode::IllegalOperation,
        format!("Cannot explain cmd: {name}"),
    )
}

/// The database is the one that the `explain` is sent to, which only that may say.
fn refused_database(
    ctx: &CommandContext<'_>,
    inner: &RawDocument,
    database: RawBsonRef<'_>,
) -> CommandError {
    match database {
        RawBsonRef::String(name) if name == ctx.database() => {
            let spec = ctx.table.find(name_of(inner));
            params::duplicate_field(spec.map_or("", |spec| spec.parsed_as), "$db")
        }
        RawBsonRef::String(name) => CommandError::new(
            ErrorCode::InvalidNamespace,
            format!(
                "Mismatched $db in explain command. Expected {} but got {name}",
                ctx.database()
            ),
        ),
        other => CommandError::new(
            ErrorCode::Location(13111),
            format!(
                "wrong type for field ($db) {} != string",
                banyan_document::kind::name(&other)
            ),
        ),
    }
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
        // What is wrong with the query is told before what a view does not let be done.
        "find" => {
            let parameters = find::Parameters::parse(database, inner)?;
            parameters.canonical(&parameters.context(ctx)?)?;
            view.of_find(inner)
        }
        "count" => {
            count::Parameters::parse(database, inner)?;
            view.of_count(inner)
        }
        "distinct" => {
            distinct::request(ctx, &distinct::Parameters::parse(database, inner)?)?;
            view.of_distinct(inner)
        }
        "aggregate" => {
            aggregate::Parameters::parse(database, inner)?;
            view.of_aggregate(inner)
        }
        name => {
            match name {
                "update" => {
                    only_statement(inner, "updates", update::Statement::parse)?;
                }
                "delete" => {
                    only_statement(inner, "deletes", delete::Statement::parse)?;
                }
                _ => {}
            }
            let namespace = Namespace::new(database, collection_of(ctx, inner)?);
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
            collection_name(banyan_document::first_value(inner).unwrap_or(RawBsonRef::Null))?;
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
            let catalog = ctx.node.replica.store.catalog();
            let known = match catalog.get(ctx.database(), parameters.collection) {
                Some(_) => count::known(ctx, &parameters)?,
                None => None,
            };
            let around = Around {
                count: Some(parameters.skip),
                known,
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
        "update" => explain_update(ctx, inner, verbosity)?,
        "delete" => explain_delete(ctx, inner, verbosity)?,
        "findAndModify" | "findandmodify" => explain_find_and_modify(ctx, inner, verbosity)?,
        other => return Err(unexplained(other)),
    };
    Ok(finish(ctx, inner, explained))
}

/// The collection that a write names.
fn collection_of<'a>(
    ctx: &CommandContext<'_>,
    inner: &'a RawDocument,
) -> Result<&'a str, CommandError> {
    match banyan_document::first_value(inner).unwrap_or(RawBsonRef::Null) {
        RawBsonRef::String(name) => {
            check_outline(ctx.database(), name)?;
            Ok(name)
        }
        // Reads have another code for this.
        other => Err(CommandError::new(
            ErrorCode::BadValue,
            format!(
                "collection name has invalid type {}",
                banyan_document::kind::name(&other)
            ),
        )),
    }
}

/// How a write finds what it would change. Nothing is changed.
fn explain_write(
    ctx: &CommandContext<'_>,
    parameters: &find::Parameters<'_>,
    context: &Context,
    around: Around<'_>,
    verbosity: Verbosity,
) -> Result<RawDocumentBuf, CommandError> {
    let query = parameters.canonical(context)?;
    let kind = around.write.map(|write| write.kind);
    refuse_reserved(ctx, parameters.collection, kind)?;
    let request = parameters.request(ctx, query);
    explain_request(ctx, parameters.collection, request, around, verbosity)
}

/// Collections that nobody writes to: to explain that has codes of its own.
fn refuse_reserved(
    ctx: &CommandContext<'_>,
    collection: &str,
    write: Option<WriteKind>,
) -> Result<(), CommandError> {
    if collection == view::COLLECTION {
        return Err(CommandError::new(
            ErrorCode::Location(51070),
            format!("Modifications to {collection} must take an exclusive lock"),
        ));
    }
    refuse_system(ctx, collection).map_err(|error| {
        let code = match (error.code, write) {
            (ErrorCode::InvalidNamespace, Some(WriteKind::Delete)) => ErrorCode::Location(12050),
            (ErrorCode::InvalidNamespace, _) => ErrorCode::Location(10156),
            (code, _) => code,
        };
        CommandError::new(code, error.message)
    })
}

fn refuse_system(ctx: &CommandContext<'_>, collection: &str) -> Result<(), CommandError> {
    if !collection.starts_with("system.") || visible_name(collection).is_some() {
        return Ok(());
    }
    let namespace = Namespace::new(ctx.database(), collection);
    staging::refuse_reserved(&ctx.node.replica, &namespace)
}

/// The statements of a batch, of which one at a time is explained.
fn only_statement<'a, T>(
    inner: &'a RawDocument,
    list: &'static str,
    parse: impl Fn(&'a RawDocument) -> Result<T, CommandError>,
) -> Result<T, CommandError> {
    let field = params::fields("explain", inner).find(|field| field.name == list);
    let statements = field.map(params::documents).transpose()?;
    let statements = statements.unwrap_or_default().into_iter().map(parse);
    let mut statements = statements.collect::<Result<Vec<_>, _>>()?;
    match (statements.pop(), statements.is_empty()) {
        (Some(only), true) => Ok(only),
        _ => Err(CommandError::new(
            ErrorCode::InvalidLength,
            "explained write batches must be of size 1",
        )),
    }
}

/// The variables that a write is given.
fn variables_of(inner: &RawDocument) -> Result<Option<&RawDocument>, CommandError> {
    let field = params::fields(name_of_write(inner), inner).find(|field| field.name == "let");
    let variables = field.map(|field| field.document_or_null()).transpose()?;
    Ok(variables.flatten())
}

/// The search of a write, as far as a statement says nothing else.
fn search_of<'a>(
    ctx: &CommandContext<'_>,
    inner: &'a RawDocument,
    filter: &'a RawDocument,
) -> Result<find::Parameters<'a>, CommandError> {
    Ok(find::Parameters {
        collection: collection_of(ctx, inner)?,
        filter: Some(filter).filter(|filter| !filter.is_empty()),
        variables: variables_of(inner)?,
        ..find::Parameters::default()
    })
}

fn name_of_write(inner: &RawDocument) -> &'static str {
    match name_of(inner) {
        "update" => update::SPEC.parsed_as,
        "delete" => delete::SPEC.parsed_as,
        _ => find_and_modify::SPEC.parsed_as,
    }
}

fn explain_update(
    ctx: &CommandContext<'_>,
    inner: &RawDocument,
    verbosity: Verbosity,
) -> Result<RawDocumentBuf, CommandError> {
    let statement = only_statement(inner, "updates", update::Statement::parse)?;
    let parameters = find::Parameters {
        sort: statement.sort,
        hint: statement.hint,
        limit: (!statement.multi).then_some(1),
        collation: Asked::of(statement.collation)?,
        ..search_of(ctx, inner, statement.filter)?
    };
    let context = parameters.context(ctx)?;
    let own = statement.context(&context)?;
    let context = Context {
        is_upsert: statement.upsert,
        ..own.unwrap_or(context)
    };
    statement.supplied()?;
    let parsed = Update::parse(statement.update, &statement.array_filters, &context);
    let parsed = parsed.map_err(errors::query)?;
    update::check_multi(&statement, &parsed)?;
    let is_upsert = statement.upsert;
    let write = Write {
        kind: WriteKind::Update { is_upsert },
        returns: false,
    };
    let around = Around::write(write, None);
    explain_write(ctx, &parameters, &context, around, verbosity)
}

fn explain_delete(
    ctx: &CommandContext<'_>,
    inner: &RawDocument,
    verbosity: Verbosity,
) -> Result<RawDocumentBuf, CommandError> {
    let statement = only_statement(inner, "deletes", delete::Statement::parse)?;
    let parameters = find::Parameters {
        hint: statement.hint,
        limit: (!statement.multi).then_some(1),
        collation: Asked::of(statement.collation)?,
        ..search_of(ctx, inner, statement.filter)?
    };
    let context = parameters.context(ctx)?;
    let write = Write {
        kind: WriteKind::Delete,
        returns: false,
    };
    let around = Around::write(write, None);
    explain_write(ctx, &parameters, &context, around, verbosity)
}

fn explain_find_and_modify(
    ctx: &CommandContext<'_>,
    inner: &RawDocument,
    verbosity: Verbosity,
) -> Result<RawDocumentBuf, CommandError> {
    let empty = RawDocumentBuf::new();
    let asked = find_and_modify::Parameters::parse(inner, &empty)?;
    let collection = collection_of(ctx, inner)?;
    check_collection_name(ctx.database(), collection)?;
    refuse_system(ctx, collection)?;
    let mut parameters = find::Parameters {
        sort: asked.sort,
        hint: asked.hint,
        limit: Some(1),
        collation: Asked::of(asked.collation)?,
        ..search_of(ctx, inner, asked.query)?
    };
    let context = Context {
        is_upsert: asked.upsert,
        ..parameters.context(ctx)?
    };
    let array_filters = asked.array_filters.as_deref().unwrap_or_default();
    let parse = |update| Update::parse(update, array_filters, &context).map_err(errors::query);
    let update = asked.update.map(parse).transpose()?;
    let collation = &parameters.collation;
    if find_and_modify::finds_by_id(ctx, collection, &asked, collation, update.as_ref()) {
        parameters.sort = None;
    }
    let catalog = ctx.node.replica.store.catalog();
    // Of a collection that does not exist nothing is projected.
    let exists = catalog.get(ctx.database(), parameters.collection).is_some();
    if let Some(fields) = asked.fields.filter(|_| exists) {
        let projection = Projection::parse_beside(fields, Some(asked.query), &context);
        asked.check_position(&projection.map_err(errors::query)?)?;
    }
    // What is wrong with the search is told before it is looked where it would be.
    parameters.canonical(&context)?;
    if catalog.database(ctx.database()).is_none() {
        return Err(CommandError::new(
            ErrorCode::NamespaceNotFound,
            format!("database {} does not exist", ctx.database()),
        ));
    }
    let is_upsert = asked.upsert;
    let kind = match asked.remove {
        true => WriteKind::Delete,
        false => WriteKind::Update { is_upsert },
    };
    let returned = asked.fields.filter(|fields| !fields.is_empty());
    let write = Write {
        kind,
        returns: true,
    };
    let around = Around::write(write, returned);
    explain_write(ctx, &parameters, &context, around, verbosity)
}
