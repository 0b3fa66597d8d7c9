//! `collMod`: hides an index from the planner, or shows it again; changes when its documents go; makes
//! it unique; changes options of a collection.

use banyan_access::check::Access;
use banyan_replication::write::catalog_ops;
use banyan_replication::write::validation::{ACTION, LEVEL, VALIDATOR};
use banyan_storage::{CatalogChange, Collection, IndexDefinition, Namespace};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocumentBuf, cstr, rawdoc};

use super::capped::{self, Limits};
use super::clustered::{self, EXPIRE};
use super::images::{self, IMAGES, RECORD_IMAGES};
use super::index_modification::{IndexOption, made_unique};
use super::table::{BoxFuture, CommandResult, CommandSpec, Run};
use super::time_series;
use super::unique_conversion;
use super::validation;
use crate::collection_uuid;
use crate::context::CommandContext;
use crate::index_builds;
use crate::index_changes;
use crate::params::{self, Field};
use crate::views;
use banyan_access::reads_and_writes;

pub static SPEC: CommandSpec = CommandSpec::new("collMod", Run::Future(run))
    .access(Access::Checked(reads_and_writes::coll_mod))
    .aliases(&["collmod"])
    .writes()
    .form(check_form)
    .fields(&[
        "index",
        VALIDATOR,
        LEVEL,
        ACTION,
        "viewOn",
        "pipeline",
        "cappedSize",
        "cappedMax",
        "timeseries",
        EXPIRE,
        IMAGES,
        RECORD_IMAGES,
        "dryRun",
        collection_uuid::FIELD,
    ])
    // What it names are the buckets by then.
    .ignored(&["isTimeseriesNamespace"]);

/// What a field has to be, whatever the others are.
fn check_form(field: Field<'_>) -> Result<(), CommandError> {
    match field.name {
        EXPIRE if clustered::is_change(field) => Ok(()),
        EXPIRE => Err(field.wrong_type("types '[string, long]'")),
        "pipeline" if field.is_null() => Err(params::no_array(field.name)),
        _ if field.is_null() => Ok(()),
        "isTimeseriesNamespace" if !matches!(field.value, RawBsonRef::Boolean(_)) => {
            Err(field.wrong_type("type 'bool'"))
        }
        VALIDATOR => field.document().map(drop),
        collection_uuid::FIELD => collection_uuid::check_form(field),
        "timeseries" => time_series::options::parse(field).map(drop),
        "index" => IndexOption::parse(field).map(drop),
        "dryRun" | RECORD_IMAGES => field.bool().map(drop),
        "viewOn" => field.str().map(drop),
        "pipeline" => views::changes::stages(field).map(drop),
        LEVEL | ACTION => validation::check_form(field),
        IMAGES => images::check_form(field),
        _ => capped::check_form(field),
    }
}

/// Whether it is only to be tried to make an index unique: nothing else can be tried.
fn is_dry_run(
    ctx: &CommandContext<'_>,
    asked: Option<&IndexOption<'_>>,
) -> Result<bool, CommandError> {
    let dry = ctx.field("dryRun").filter(|field| !field.is_null());
    let dry = dry.map(|field| field.bool()).transpose()?.unwrap_or(false);
    let refuse = |message: &str| Err(CommandError::new(ErrorCode::InvalidOptions, message));
    match asked {
        None if dry => refuse("dry run mode requires an valid index modification."),
        Some(option) if dry && option.unique != Some(true) => {
            refuse("dry run mode requires an index modification with unique: true.")
        }
        _ => Ok(dry),
    }
}

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(coll_mod(ctx))
}

async fn coll_mod(ctx: &CommandContext<'_>) -> CommandResult {
    let node = ctx.node;
    let namespace = Namespace::new(ctx.database(), ctx.existing_collection()?);
    let given = |name| ctx.field(name).filter(|field| !field.is_null());
    let on = given("viewOn").map(views::changes::on).transpose()?;
    let stages = given("pipeline").map(views::changes::stages);
    let stages = stages.transpose()?;
    let asked = given("index").map(IndexOption::parse).transpose()?;
    let is_dry_run = is_dry_run(ctx, asked.as_ref())?;
    let measured = time_series::named(ctx, namespace.collection());
    if measured.is_none() {
        collection_uuid::check(ctx, namespace.collection())?;
    }
    let mut key = None;
    if let Some((_, series)) = &measured {
        refuse_expiring(asked.as_ref())?;
        key = asked
            .as_ref()
            .and_then(|option| option.pattern)
            .map(|key| time_series::indexes::key_of_known(key, series))
            .transpose()?;
    } else if views::is_view(&node.replica, &namespace)? {
        // What is to become unique is looked for in a collection, before anything else.
        if asked
            .as_ref()
            .is_some_and(|option| option.unique == Some(true))
        {
            views::refuse(&node.replica, &namespace)?;
        }
        refuse_beside_view(ctx)?;
        // What the part that is not named lets its owner read was not judged.
        if on.is_some() != stages.is_some() && node.access.is_enforced() {
            return Err(CommandError::new(
                ErrorCode::InvalidOptions,
                "Must specify both 'viewOn' and 'pipeline' when modifying a view and auth is \
                 enabled",
            ));
        }
        views::changes::modify(ctx, &namespace, on, stages).await?;
        return Ok(rawdoc! { "ok": 1.0 });
    }
    let is_measured = measured.is_some();
    let namespace = measured.map_or(namespace, |(buckets, _)| buckets.namespace.clone());
    let granularity = time_series::options::asked(ctx)?;
    let asked = asked.map(|option| match &key {
        Some(key) => option.of_pattern(key),
        None => option,
    });
    let validation = validation::Asked::parse(ctx)?;
    let images = images::asked(ctx)?;
    // Of a time-series collection they are read, and mean nothing.
    let limits = match (Limits::of_change(ctx)?, is_measured) {
        (_, true) => Limits::default(),
        (limits, false) => limits,
    };
    // Found before anybody has to wait for it: nothing more comes to stand against it.
    let checked = match &asked {
        Some(option) => unique_conversion::checked_index(ctx, &namespace, option).await?,
        None => None,
    };
    let term = node.replica.writable_term()?;
    let locks = ctx.lock_exclusive(&[&namespace]).await?;
    index_changes::check_routing(ctx, &namespace)?;
    let Some(collection) = node.replica.store.catalog().find(&namespace).cloned() else {
        return Err(match is_dry_run {
            // What is only tried takes everything but a collection for a view.
            true => views::changes::unsupported("index"),
            false => CommandError::new(ErrorCode::NamespaceNotFound, "ns does not exist"),
        });
    };
    let series = banyan_replication::time_series::of(&collection);
    if series.is_some() {
        refuse_expiring(asked.as_ref())?;
    }
    // An index that is not there is told before options that the collection cannot have.
    if let Some(option) = &asked {
        option.find(&collection)?;
    }
    if series.is_some() {
        time_series::options::refuse_others(ctx)?;
    }
    refuse_for_views(ctx)?;
    let seconds = ctx.field(EXPIRE).map(clustered::parse_change).transpose()?;
    if series.is_none() && given("timeseries").is_some() {
        return Err(CommandError::new(
            ErrorCode::InvalidOptions,
            "option only supported on a time-series collection: timeseries",
        ));
    }
    if seconds.is_some() && collection.clustered_index.is_none() {
        return Err(CommandError::new(
            ErrorCode::InvalidOptions,
            "'expireAfterSeconds' option is only supported on collections clustered by _id",
        ));
    }
    limits.check(&collection)?;
    let mut reply = RawDocumentBuf::new();
    let mut changes = Vec::new();
    let mut converted = None;
    if let Some(option) = asked {
        index_builds::refuse_rebuilds(&collection)?;
        let index = option.find(&collection)?;
        let spec = option.change(ctx, &collection, &index, &mut reply)?;
        if option.converts(&index) {
            index_builds::refuse_builds(&collection)?;
            if checked != Some(index.id) {
                unique_conversion::check(ctx, &collection, &index).await?;
            }
            reply.append(cstr!("unique_new"), true);
            converted = Some(made_unique(&spec));
        }
        if is_dry_run {
            return Ok(rawdoc! { "ok": 1.0 });
        }
        if spec != index.spec && converted.is_none() {
            let index = IndexDefinition { id: index.id, spec };
            changes.push(CatalogChange::SetIndexSpec {
                collection: collection.id,
                index,
            });
        }
    }
    let options = match limits.is_none() {
        true => collection.options.clone(),
        false => limits.over(&collection),
    };
    let mut options = images.over(&validation.with(&options));
    if let Some(seconds) = seconds {
        options = clustered::with_seconds(&options, seconds);
    }
    if let (Some(series), Some(granularity)) = (&series, granularity) {
        options = time_series::options::with(&options, series, granularity)?;
    }
    if options != collection.options && series.is_some() {
        let id = collection.id;
        changes.push(CatalogChange::SetOptions { id, options });
    } else if options != collection.options {
        validation::check(&namespace, &options).map_err(|mut error| {
            let why = "Parsing of collection validator failed :: caused by :: ";
            error.message.insert_str(0, why);
            error
        })?;
        let id = collection.id;
        changes.push(CatalogChange::SetOptions { id, options });
    }
    if changes.is_empty() && converted.is_none() {
        // Who follows the collection is told of it although nothing changes.
        let (id, options) = (collection.id, collection.options.clone());
        changes.push(CatalogChange::SetOptions { id, options });
    }
    if !changes.is_empty() {
        catalog_ops::apply(&node.replica, &changes, term).await?;
    }
    if let Some(spec) = converted {
        unique_conversion::convert(ctx, &collection, spec, locks, term).await?;
    }
    reply.append(cstr!("ok"), 1.0);
    Ok(reply)
}

/// The list of indexes as the command would leave it, and what it would answer.
pub fn plan(
    ctx: &CommandContext<'_>,
    collection: &Collection,
) -> Result<(Vec<RawDocumentBuf>, RawDocumentBuf), CommandError> {
    refuse_unsupported(ctx)?;
    refuse_for_views(ctx)?;
    Limits::of_change(ctx)?.check(collection)?;
    if let Some(option) = [IMAGES, EXPIRE, VALIDATOR, LEVEL, ACTION]
        .into_iter()
        .find(|name| ctx.field(name).is_some())
    {
        let text = format!(
            "an index and {option} of a sharded collection can only be changed by one collMod each"
        );
        return Err(CommandError::new(ErrorCode::InvalidOptions, text));
    }
    let option = IndexOption::parse(ctx.required("index")?)?;
    if option.changes_uniqueness() {
        return Err(unsupported(
            "unique or prepareUnique on a sharded collection",
        ));
    }
    let index = option.find(collection)?;
    let mut list = index_changes::list(collection);
    let mut reply = RawDocumentBuf::new();
    let changed = option.change(ctx, collection, &index, &mut reply)?;
    let same = |spec: &&mut RawDocumentBuf| spec.get_str("name").ok() == Some(index.name.as_str());
    if let Some(spec) = list.iter_mut().find(same) {
        *spec = changed;
    }
    reply.append(cstr!("ok"), 1.0);
    Ok((list, reply))
}

/// Measurements go with their buckets, and by no index.
fn refuse_expiring(asked: Option<&IndexOption<'_>>) -> Result<(), CommandError> {
    match asked.is_some_and(|option| option.expires.is_some()) {
        false => Ok(()),
        true => Err(CommandError::new(
            ErrorCode::InvalidOptions,
            "TTL indexes are not supported for time-series collections. Please refer to the \
             documentation and use the top-level 'expireAfterSeconds' option instead",
        )),
    }
}

/// A view has a definition and nothing else that could be changed.
fn refuse_beside_view(ctx: &CommandContext<'_>) -> Result<(), CommandError> {
    let fields = params::fields("collMod", ctx.body()).filter(|field| !field.is_null());
    let mut refused = fields.map(|field| field.name).filter(|name| {
        SPEC.fields.contains(name)
            && !matches!(*name, "viewOn" | "pipeline" | collection_uuid::FIELD)
    });
    refused
        .next()
        .map_or(Ok(()), |name| Err(views::changes::unsupported(name)))
}

/// A collection has no definition of a view.
fn refuse_for_views(ctx: &CommandContext<'_>) -> Result<(), CommandError> {
    match ["pipeline", "viewOn"]
        .into_iter()
        .find(|name| ctx.field(name).is_some_and(|field| !field.is_null()))
    {
        None => Ok(()),
        Some(name) => Err(CommandError::new(
            ErrorCode::InvalidOptions,
            format!("option only supported on a view: {name}"),
        )),
    }
}

/// Changes that would alter what the collection does are refused rather than forgotten.
fn refuse_unsupported(ctx: &CommandContext<'_>) -> Result<(), CommandError> {
    for (name, _) in ctx.body().iter().flatten() {
        let name = name.as_str();
        if name == "timeseries" {
            return Err(unsupported(name));
        }
    }
    Ok(())
}

fn unsupported(what: &str) -> CommandError {
    CommandError::new(
        ErrorCode::NotImplemented,
        format!("collMod with '{what}' is not supported"),
    )
}
