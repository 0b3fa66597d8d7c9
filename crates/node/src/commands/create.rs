//! `create`: a collection that is made on purpose, with options.

use banyan_access::check::Access;
use banyan_access::reads_and_writes;
use banyan_document::Collator;
use banyan_query::view::View;
use banyan_replication::views::is_time_series;
use banyan_replication::write::catalog_ops;
use banyan_replication::write::validation::{ACTION, LEVEL, VALIDATOR};
use banyan_storage::{CatalogChange, Namespace};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocumentBuf, cstr, rawdoc};

use super::capped;
use super::clustered::{self, CLUSTERED, EXPIRE, location};
use super::create_options::{self, Others};
use super::images::{self, IMAGES, RECORD_IMAGES};
use super::table::{BoxFuture, CommandResult, CommandSpec, Run};
use super::time_series;
use super::validation;
use crate::collation;
use crate::context::CommandContext;
use crate::params::{self, Field};
use crate::profiler::{BYTES_MAX, PROFILE};
use crate::views;

pub static SPEC: CommandSpec = CommandSpec::new("create", Run::Future(run))
    .access(Access::Checked(reads_and_writes::create))
    .writes()
    .form(check_form)
    .fields(&[
        "capped",
        "size",
        "max",
        VALIDATOR,
        LEVEL,
        ACTION,
        "viewOn",
        "pipeline",
        "timeseries",
        CLUSTERED,
        EXPIRE,
        "autoIndexId",
        "idIndex",
        "collation",
        IMAGES,
        "storageEngine",
        "indexOptionDefaults",
        "encryptedFields",
        "temp",
        "flags",
        RECORD_IMAGES,
    ])
    .computes();

const ID_INDEX_OF_VIEW: &str = "'idIndex' is not allowed with 'viewOn'";

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(create(ctx))
}

async fn create(ctx: &CommandContext<'_>) -> CommandResult {
    let node = ctx.node;
    ctx.named()?;
    let is_clustered = ctx.field(CLUSTERED).is_some_and(|field| !field.is_null());
    if is_clustered {
        refuse_beside_clustered(ctx)?;
    }
    if let Err(error) = ctx.existing_collection() {
        // What is wrong with how measurements are to lie is told before their collection's name is.
        time_series::create::parse(ctx)?;
        return Err(error);
    }
    let capped = capped::of_create(ctx)?;
    let namespace = Namespace::new(ctx.database(), ctx.collection()?);
    refuse_reserved(&namespace)?;
    ctx.field("viewOn")
        .filter(|field| !field.is_null())
        .map(views::changes::on)
        .transpose()?;
    refuse_temporary(ctx)?;
    refuse_half_view(ctx)?;
    let series = time_series::create::parse(ctx)?;
    refuse_expiration(ctx)?;
    Others::check_id_index(ctx)?;
    // That there is such a collection is told before what is wrong with its indexes.
    let late = |error: CommandError| match () {
        () if is_of_form(&error) => error,
        () if node.replica.store.catalog().find(&namespace).is_some() => exists(&namespace),
        () if views::is_view(&node.replica, &namespace).unwrap_or(false) => is_view(&namespace),
        () => error,
    };
    Others::check(ctx)?;
    let given = |name| ctx.field(name).is_some_and(|field| !field.is_null());
    let collation = match collation(ctx) {
        // Both are looked at before the collection is looked for.
        Err(error) if given("viewOn") || given("idIndex") => return Err(error),
        collation => collation,
    };
    let collation =
        collation.map(|collation| collation.map(|collator| collator.collation().to_document()));
    if let Ok(collation) = &collation {
        Others::check_id_collation(ctx, collation.as_deref())?;
    }
    refuse_unindexed_clustered(ctx).map_err(late)?;
    refuse_clustered_with_id_index(ctx).map_err(late)?;
    let clustered = ctx.field(CLUSTERED).map(clustered::parse).transpose();
    let clustered = clustered.map_err(late)?.flatten();
    let collation = collation.map_err(late)?;
    let others = Others::parse(ctx).map_err(late)?;
    let done = || {
        let mut reply = RawDocumentBuf::new();
        if let Some(note) = others.note {
            reply.append(cstr!("note"), note);
        }
        reply.append(cstr!("ok"), 1.0);
        reply
    };
    let seconds = ctx.field(EXPIRE).filter(|field| !field.is_null());
    let seconds = seconds.map(clustered::parse_seconds).transpose();
    let seconds = seconds.map_err(late)?;
    if let Some(series) = series {
        if ctx.field("flags").is_some_and(|field| !field.is_null()) {
            return Err(CommandError::new(
                ErrorCode::InvalidOptions,
                "'timeseries' is not allowed with 'flags'",
            ));
        }
        return time_series::create::create(ctx, &namespace, &series, collation, seconds).await;
    }
    if let Some(view) = view(ctx)? {
        // A view has no validator; one that is given is looked at nevertheless.
        let mut options = RawDocumentBuf::new();
        validation::Asked::parse(ctx)?.append(&mut options);
        validation::check(&namespace, &options)?;
        views::changes::create(ctx, &namespace, view).await?;
        return Ok(done());
    }
    if namespace.collection() == PROFILE {
        return create_profile(ctx, &namespace, capped);
    }
    let validation = validation::Asked::parse(ctx)?;
    let mut options = RawDocumentBuf::new();
    if let Some(limits) = capped {
        limits.append(&mut options);
    }
    if let Some(automatic) = others.automatic {
        options.append(cstr!("autoIndexId"), automatic);
    }
    images::asked(ctx)?.append(&mut options);
    for (name, value) in others.kept.iter().flatten() {
        options.append(name, value);
    }
    validation.append(&mut options);
    if let Some(collation) = collation {
        options.append(cstr!("collation"), collation);
    }
    if let Some(clustered) = clustered {
        options.append(cstr!("clusteredIndex"), clustered);
    }
    if let Some(seconds) = seconds {
        options = clustered::with_seconds(&options, Some(seconds));
    }
    let term = node.replica.writable_term()?;
    let _locks = ctx.lock_exclusive(&[&namespace]).await?;
    if node.replica.store.catalog().find(&namespace).is_some() {
        return Err(exists(&namespace));
    }
    if is_time_series(&node.replica, &namespace) {
        return Err(CommandError::new(
            ErrorCode::NamespaceExists,
            format!("A timeseries collection already exists. NS: {namespace}"),
        ));
    }
    if views::is_view(&node.replica, &namespace)? {
        return Err(is_view(&namespace));
    }
    catalog_ops::refuse_other_case(&node.replica, &namespace)?;
    validation::check(&namespace, &options)?;
    let format = create_options::id_format(ctx);
    let change: CatalogChange =
        catalog_ops::creation_with_id_format(&node.replica, &namespace, options, format);
    catalog_ops::apply(&node.replica, &[change], term).await?;
    Ok(done())
}

fn is_of_form(error: &CommandError) -> bool {
    matches!(
        error.code,
        ErrorCode::TypeMismatch | ErrorCode::Location(40414 | 40415 | 51024)
    )
}

fn exists(namespace: &Namespace) -> CommandError {
    CommandError::new(
        ErrorCode::NamespaceExists,
        format!("Collection {namespace} already exists."),
    )
}

fn is_view(namespace: &Namespace) -> CommandError {
    CommandError::new(
        ErrorCode::NamespaceExists,
        format!("A view already exists. NS: {namespace}"),
    )
}

/// What a field has to be, whatever the others are.
fn check_form(field: Field<'_>) -> Result<(), CommandError> {
    if field.is_null() {
        return match field.name {
            "pipeline" => Err(params::no_array(field.name)),
            _ => Ok(()),
        };
    }
    match field.name {
        "capped" | "autoIndexId" | "temp" | RECORD_IMAGES => field.bool().map(drop),
        "collation" => match Collator::parse_default(field.document()?).map_err(collation::error) {
            // What the fields say together is told later.
            Err(error) if is_of_form(&error) => Err(error),
            _ => Ok(()),
        },
        "idIndex" | "storageEngine" | VALIDATOR => field.document().map(drop),
        "timeseries" => time_series::create::check_form(field),
        CLUSTERED => clustered::check_form(field),
        IMAGES => images::check_form(field),
        "indexOptionDefaults" => create_options::check_defaults_form(field),
        "encryptedFields" => create_options::check_encrypted_form(field),
        "viewOn" => views::changes::on(field).map(drop),
        "pipeline" => views::changes::stages(field).map(drop),
        EXPIRE | "flags" => field.i64().map(drop),
        LEVEL | ACTION => validation::check_form(field),
        _ => capped::check_form(field),
    }
}

/// Names that begin with `system.` are the server's, but for a few.
pub fn refuse_reserved(namespace: &Namespace) -> Result<(), CommandError> {
    let Some(rest) = namespace.collection().strip_prefix("system.") else {
        return Ok(());
    };
    let is_everywhere = matches!(rest, "js" | "profile" | "views") || rest.starts_with("buckets.");
    let is_own = matches!(namespace.database(), "admin" | "config" | "local");
    match is_everywhere || is_own {
        true => Ok(()),
        false => Err(CommandError::new(
            ErrorCode::InvalidNamespace,
            format!("Invalid system namespace: {namespace}"),
        )),
    }
}

/// Temporary collections are the server's own.
fn refuse_temporary(ctx: &CommandContext<'_>) -> Result<(), CommandError> {
    let Some(field) = ctx.field("temp").filter(|field| !field.is_null()) else {
        return Ok(());
    };
    field.bool()?;
    Err(CommandError::new(
        ErrorCode::InvalidOptions,
        "the 'temp' field is an invalid option",
    ))
}

/// Where the profiler is to keep more than it does by itself. It is the member's own.
fn create_profile(
    ctx: &CommandContext<'_>,
    namespace: &Namespace,
    limits: Option<capped::Limits>,
) -> CommandResult {
    let invalid = |why: String| Err(CommandError::new(ErrorCode::InvalidOptions, why));
    let Some(limits) = limits else {
        return invalid(format!("{namespace} has to be capped"));
    };
    let positive = |limit: i64| limit.max(0).unsigned_abs();
    let bytes = limits.size.map_or(0, positive);
    if bytes > BYTES_MAX {
        return invalid(format!(
            "{namespace} may have {BYTES_MAX} bytes at most: all of it is kept in memory"
        ));
    }
    let documents = limits.max.map(positive);
    match ctx.node.profiler.create(ctx.database(), bytes, documents) {
        true => Ok(rawdoc! { "ok": 1.0 }),
        false => Err(CommandError::new(
            ErrorCode::NamespaceExists,
            format!("Collection {namespace} already exists."),
        )),
    }
}

/// A pipeline alone makes no view.
fn refuse_half_view(ctx: &CommandContext<'_>) -> Result<(), CommandError> {
    let given = |name| ctx.field(name).filter(|field| !field.is_null());
    if given("viewOn").is_some() || given("pipeline").is_none() {
        return Ok(());
    }
    Err(CommandError::new(
        ErrorCode::InvalidOptions,
        "'pipeline' requires 'viewOn' to also be specified",
    ))
}

/// The view that is to be made, if it is one.
fn view(ctx: &CommandContext<'_>) -> Result<Option<View>, CommandError> {
    let given = |name| ctx.field(name).filter(|field| !field.is_null());
    let on = given("viewOn").map(views::changes::on).transpose()?;
    let stages = given("pipeline").map(views::changes::stages);
    let stages = stages.transpose()?;
    let Some(on) = on else {
        return Ok(None);
    };
    refuse_beside_view(ctx)?;
    Ok(Some(View {
        on: on.to_owned(),
        stages: stages.unwrap_or_default(),
        collator: collation(ctx)?,
    }))
}

/// Options that a view cannot have. Others that mean nothing for it are read and forgotten, as in
/// MongoDB.
fn refuse_beside_view(ctx: &CommandContext<'_>) -> Result<(), CommandError> {
    for field in params::fields("create", ctx.body()).filter(|field| !field.is_null()) {
        let refused = match field.name {
            "idIndex" => ID_INDEX_OF_VIEW,
            "timeseries" => "'timeseries' is not allowed with 'viewOn'",
            IMAGES if images::parse(ctx.database(), field)? => {
                return Err(views::changes::unsupported(IMAGES));
            }
            _ => continue,
        };
        return Err(CommandError::new(ErrorCode::InvalidOptions, refused));
    }
    Ok(())
}

/// The collation that operations on the collection and its indexes have if they name none.
fn collation(ctx: &CommandContext<'_>) -> Result<Option<Collator>, CommandError> {
    let field = ctx.field("collation");
    match field
        .map(|field| field.document_or_null())
        .transpose()?
        .flatten()
    {
        Some(document) => Collator::parse_default(document).map_err(collation::error),
        None => Ok(None),
    }
}

/// Only documents of clustered and of time-series collections go by `expireAfterSeconds`.
fn refuse_expiration(ctx: &CommandContext<'_>) -> Result<(), CommandError> {
    let given = |name| ctx.field(name).filter(|field| !field.is_null());
    let Some(field) = given(EXPIRE) else {
        return Ok(());
    };
    let is_false = |field: Field<'_>| field.bool().is_ok_and(|asked| !asked);
    let clustered = given(CLUSTERED);
    let is_clustered = clustered.is_some_and(|field| !is_false(field));
    // Of a view that is said to have no clustered index, MongoDB does not look at it.
    let is_passed_over = clustered.is_some() && given("viewOn").is_some();
    if is_clustered || is_passed_over || given("timeseries").is_some() {
        return Ok(());
    }
    field.i64()?;
    Err(CommandError::new(
        ErrorCode::InvalidOptions,
        "'expireAfterSeconds' is only supported on time-series collections or when the \
         'clusteredIndex' option is specified",
    ))
}

/// A clustered index is the index over `_id`, which is told before what is wrong with either.
fn refuse_clustered_with_id_index(ctx: &CommandContext<'_>) -> Result<(), CommandError> {
    let given = |name| ctx.field(name).filter(|field| !field.is_null());
    let is_document = |field: Field<'_>| matches!(field.value, RawBsonRef::Document(_));
    if given("idIndex").is_none() || !given(CLUSTERED).is_some_and(is_document) {
        return Ok(());
    }
    Err(CommandError::new(
        ErrorCode::InvalidOptions,
        "The 'clusteredIndex' option is not supported with the 'idIndex' option",
    ))
}

/// A clustered collection always has its index.
fn refuse_unindexed_clustered(ctx: &CommandContext<'_>) -> Result<(), CommandError> {
    let given = |name| ctx.field(name).filter(|field| !field.is_null());
    let automatic = given("autoIndexId").map(|field| field.bool()).transpose()?;
    let is_document = |field: Field<'_>| matches!(field.value, RawBsonRef::Document(_));
    if automatic != Some(false) || !given(CLUSTERED).is_some_and(is_document) {
        return Ok(());
    }
    Err(location(
        6026501,
        "The 'clusteredIndex' option does not support {autoIndexId: false}",
    ))
}

/// Options that a clustered collection cannot have.
fn refuse_beside_clustered(ctx: &CommandContext<'_>) -> Result<(), CommandError> {
    let is_false = |field: Field<'_>| field.bool().is_ok_and(|asked| !asked);
    let is_false = ctx.field(CLUSTERED).is_some_and(is_false);
    let has_id_index = ctx.field("idIndex").is_some_and(|field| !field.is_null());
    // In the order in which MongoDB looks at them.
    let names = ["capped", "size", "max", "timeseries", "temp", "viewOn"];
    let fields = names.iter().filter_map(|name| ctx.field(name));
    for field in fields.filter(|field| !field.is_null()) {
        let invalid = |message: String| CommandError::new(ErrorCode::InvalidOptions, message);
        return Err(match field.name {
            "capped" if field.bool()? => location(
                6127800,
                "Clustered capped collection only available with 'enableTestCommands' server \
                 parameter",
            ),
            "size" => location(
                6049200,
                "'size' field for capped collections is not allowed on clustered collections",
            ),
            "max" => location(
                6049204,
                "'max' field for capped collections is not allowed on clustered collections",
            ),
            "timeseries" => invalid(format!(
                "{}: 'timeseries' is not allowed with 'clusteredIndex'",
                ctx.namespace()?
            )),
            "temp" => return refuse_temporary(ctx),
            "viewOn" if has_id_index => invalid(ID_INDEX_OF_VIEW.to_owned()),
            "viewOn" if !is_false => location(
                6026500,
                "The 'clusteredIndex' option is not supported with views",
            ),
            _ => continue,
        });
    }
    Ok(())
}
