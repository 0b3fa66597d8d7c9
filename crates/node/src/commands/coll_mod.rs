//! `collMod`: hides an index from the planner, or shows it again; changes when its documents go;
//! changes options of a collection.

use std::sync::Arc;

use banyan_access::check::Access;
use banyan_document::compare;
use banyan_document::key::KeyPattern;
use banyan_replication::machine::names::keeps_pre_images;
use banyan_replication::write::catalog_ops;
use banyan_replication::write::validation::{ACTION, LEVEL, VALIDATOR};
use banyan_storage::{CatalogChange, Collection, Index, IndexDefinition, Namespace};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

use super::capped::{self, Limits};
use super::clustered::{self, EXPIRE};
use super::images::{self, IMAGES};
use super::index_expiry;
use super::table::{BoxFuture, CommandResult, CommandSpec, Run};
use super::time_series;
use super::validation;
use crate::context::CommandContext;
use crate::errors;
use crate::index_builds;
use crate::index_changes;
use crate::params::{self, Field};
use crate::role::IndexLoss;
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
        "dryRun",
    ])
    // What it once asked for, another option does now.
    .ignored(&[RECORD_IMAGES]);

/// What `changeStreamPreAndPostImages` was called before.
const RECORD_IMAGES: &str = "recordPreImages";

/// What a field has to be, whatever the others are.
fn check_form(field: Field<'_>) -> Result<(), CommandError> {
    match field.name {
        EXPIRE if clustered::is_change(field) => Ok(()),
        EXPIRE => Err(field.wrong_type("types '[string, long]'")),
        _ if field.is_null() => Ok(()),
        "index" | "timeseries" | VALIDATOR => field.document().map(drop),
        "dryRun" | RECORD_IMAGES => field.bool().map(drop),
        "viewOn" => field.str().map(drop),
        "pipeline" => views::changes::stages(field).map(drop),
        LEVEL | ACTION => validation::check_form(field),
        IMAGES => images::check_form(field),
        _ => capped::check_form(field),
    }
}

/// What a dry run tries, to make an index unique, is not done here.
fn refuse_dry_run(ctx: &CommandContext<'_>) -> Result<(), CommandError> {
    let asked = ctx.field("dryRun").map(|field| field.bool()).transpose()?;
    match asked {
        Some(true) => Err(CommandError::new(
            ErrorCode::InvalidOptions,
            "Cannot specify 'dryRun' without specifying the 'unique' option",
        )),
        _ => Ok(()),
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
    refuse_dry_run(ctx)?;
    let measured = time_series::named(ctx, namespace.collection());
    let mut key = None;
    if let Some((_, series)) = &measured {
        time_series::options::refuse_others(ctx)?;
        refuse_for_views(ctx)?;
        if asked
            .as_ref()
            .is_some_and(|option| option.expires.is_some())
        {
            return Err(CommandError::new(
                ErrorCode::InvalidOptions,
                "TTL indexes are not supported for time-series collections. Please refer to the \
                 documentation and use the top-level 'expireAfterSeconds' option instead",
            ));
        }
        key = asked
            .as_ref()
            .and_then(|option| option.pattern)
            .map(|key| time_series::indexes::key_of_known(key, series))
            .transpose()?;
    } else if views::is_view(&node.replica, &namespace)? {
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
    let namespace = measured.map_or(namespace, |(buckets, _)| buckets.namespace.clone());
    let granularity = time_series::options::asked(ctx)?;
    let asked = asked.map(|option| IndexOption {
        pattern: key.as_deref().or(option.pattern),
        ..option
    });
    let validation = validation::Asked::parse(ctx)?;
    let keep_images = given(IMAGES)
        .map(|field| images::parse(ctx.database(), field))
        .transpose()?;
    let limits = Limits::of_change(ctx)?;
    let term = node.replica.writable_term()?;
    let _locks = ctx.lock_exclusive(&[&namespace]).await?;
    index_changes::check_routing(ctx, &namespace)?;
    let Some(collection) = node.replica.store.catalog().find(&namespace).cloned() else {
        return Err(CommandError::new(
            ErrorCode::NamespaceNotFound,
            "ns does not exist",
        ));
    };
    refuse_for_views(ctx)?;
    let seconds = ctx.field(EXPIRE).map(clustered::parse_change).transpose()?;
    let series = banyan_replication::time_series::of(&collection);
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
    if let Some(option) = asked {
        index_builds::refuse_rebuilds(&collection)?;
        let index = option.find(&collection)?;
        let spec = option.change(ctx, &collection, &index, &mut reply)?;
        if spec != index.spec {
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
    let mut options = validation.with(&options);
    if let Some(keep) = keep_images
        && keep != keeps_pre_images(&options)
    {
        options = images::with(&options, keep);
    }
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
    if !changes.is_empty() {
        catalog_ops::apply(&node.replica, &changes, term).await?;
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

/// Refuses to hide what the role cannot do without.
fn check_hiding(
    ctx: &CommandContext<'_>,
    collection: &Collection,
    index: &Index,
    hidden: bool,
) -> Result<(), CommandError> {
    let Some(rules) = ctx.node.index_rules(&collection.namespace) else {
        return Ok(());
    };
    if !hidden {
        return Ok(());
    }
    let others: Vec<&Index> = collection
        .indexes
        .iter()
        .filter(|other| other.id != index.id)
        .map(|other| &**other)
        .collect();
    rules.check_loss(index, &others, IndexLoss::Hidden)
}

/// What errors call the `index` of a `collMod`.
const PARSER: &str = "collMod.index";

/// The `index` of a `collMod`: which index is to be hidden or shown, or given another time after
/// which its documents go.
struct IndexOption<'a> {
    name: Option<&'a str>,
    pattern: Option<&'a RawDocument>,
    hidden: Option<bool>,
    expires: Option<Field<'a>>,
    unique: Option<bool>,
    prepare_unique: Option<bool>,
}

impl<'a> IndexOption<'a> {
    fn parse(field: Field<'a>) -> Result<IndexOption<'a>, CommandError> {
        let (mut name, mut pattern, mut hidden, mut expires) = (None, None, None, None);
        let (mut unique, mut prepare_unique) = (None, None);
        for field in params::fields(PARSER, field.document()?) {
            match field.name {
                "name" | "keyPattern" | "hidden" | EXPIRE | "unique" | "prepareUnique"
                    if field.is_null() => {}
                "name" => name = Some(field.str()?),
                "keyPattern" => pattern = Some(field.document()?),
                "hidden" => hidden = Some(field.bool()?),
                EXPIRE => {
                    field.i64()?;
                    expires = Some(field);
                }
                "unique" => unique = Some(field.bool()?),
                "prepareUnique" => prepare_unique = Some(field.bool()?),
                other => return Err(params::unknown_field(PARSER, other)),
            }
        }
        Ok(IndexOption {
            name,
            pattern,
            hidden,
            expires,
            unique,
            prepare_unique,
        })
    }

    /// Whether it names an index, as it may be named, and something about it.
    fn check(&self) -> Result<(), CommandError> {
        let refuse = |message: &str| Err(CommandError::new(ErrorCode::InvalidOptions, message));
        self.expires.map(index_expiry::of_change).transpose()?;
        if self.name.is_some() == self.pattern.is_some() {
            return refuse("Must specify either index name or key pattern, and not both");
        }
        let says_nothing = self.hidden.is_none() && self.expires.is_none();
        if says_nothing && self.unique.is_none() && self.prepare_unique.is_none() {
            return refuse("no expireAfterSeconds, hidden, unique, or prepareUnique field");
        }
        Ok(())
    }

    /// An index becomes unique only where it was prepared for that, which is not done here.
    fn check_unique(&self, index: &Index) -> Result<(), CommandError> {
        match (self.unique, self.prepare_unique) {
            (Some(false), _) => Err(CommandError::new(
                ErrorCode::BadValue,
                "collMod does not support converting an index to non-unique",
            )),
            _ if index.unique || index.is_id() => Ok(()),
            (_, Some(true)) => Err(unsupported("prepareUnique")),
            (Some(true), _) => Err(CommandError::new(
                ErrorCode::InvalidOptions,
                "Cannot make an index unique that was not prepared with 'prepareUnique'",
            )),
            _ => Ok(()),
        }
    }

    /// The specification as it becomes; `reply` tells what was changed.
    fn change(
        &self,
        ctx: &CommandContext<'_>,
        collection: &Collection,
        index: &Index,
        reply: &mut RawDocumentBuf,
    ) -> Result<RawDocumentBuf, CommandError> {
        let mut spec = index.spec.clone();
        let asked = self.expires.map(index_expiry::of_change).transpose()?;
        if let Some(seconds) = asked {
            index_expiry::check_change(collection, index)?;
            if let Some(old) = index.expire_after_seconds {
                reply.append(cstr!("expireAfterSeconds_old"), old);
            }
            reply.append(cstr!("expireAfterSeconds_new"), seconds);
        }
        let expires = asked.or(index.expire_after_seconds);
        if let Some(hidden) = self.hidden.filter(|hidden| *hidden != index.hidden) {
            check_hiding(ctx, collection, index, hidden)?;
            spec = index_changes::with_hidden(&spec, hidden);
            reply.append(cstr!("hidden_old"), !hidden);
            reply.append(cstr!("hidden_new"), hidden);
        }
        match spec != index.spec || expires != index.expire_after_seconds {
            true => Ok(index_expiry::with(&spec, expires)),
            false => Ok(spec),
        }
    }

    fn find(&self, collection: &Collection) -> Result<Arc<Index>, CommandError> {
        self.check()?;
        if self.expires.is_some() && collection.is_capped {
            return Err(CommandError::new(
                ErrorCode::InvalidOptions,
                "TTL indexes are not supported for capped collections.",
            ));
        }
        let pattern = self.pattern.and_then(|key| KeyPattern::parse(key).ok());
        if self
            .name
            .is_some_and(|name| clustered::is_named(collection, name))
        {
            return Err(clustered::location(
                6011800,
                "The 'hidden' option is not supported for a clusteredIndex",
            ));
        }
        let same_orders = |index: &Index| {
            let own = index.spec.get_document("key").ok();
            own.zip(self.pattern).is_some_and(|(own, asked)| {
                let (own, asked) = (RawBsonRef::Document(own), RawBsonRef::Document(asked));
                compare(own, asked).is_eq()
            })
        };
        let is_asked_for = |index: &&Arc<Index>| match (self.name, &pattern) {
            (Some(name), _) => index.name == name,
            (None, Some(_)) => same_orders(index),
            (None, None) => false,
        };
        let mut matching = collection.indexes.iter().filter(is_asked_for);
        let found = matching.next();
        if let (Some(_), Some(key)) = (matching.next(), self.pattern) {
            return Err(CommandError::new(
                ErrorCode::AmbiguousIndexKeyPattern,
                format!(
                    "index keyPattern {} matches several indexes, must use index name",
                    errors::shown(RawBsonRef::Document(key))
                ),
            ));
        }
        let Some(index) = found else {
            let asked = match (self.name, self.pattern) {
                (None, Some(key)) => errors::shown(RawBsonRef::Document(key)),
                (name, _) => name.unwrap_or_default().to_owned(),
            };
            return Err(CommandError::new(
                ErrorCode::IndexNotFound,
                format!("cannot find index {asked} for ns {}", collection.namespace),
            ));
        };
        if index.is_id() && self.hidden.is_some() {
            return Err(CommandError::new(
                ErrorCode::BadValue,
                "can't hide _id index",
            ));
        }
        self.check_unique(index)?;
        Ok(index.clone())
    }
}

/// A view has a definition and nothing else that could be changed.
fn refuse_beside_view(ctx: &CommandContext<'_>) -> Result<(), CommandError> {
    let own = |name: &str| SPEC.fields.contains(&name) || SPEC.ignored.contains(&name);
    let mut named = ctx.body().iter().flatten().map(|(name, _)| name.as_str());
    let refused = named.find(|name| own(name) && !matches!(*name, "viewOn" | "pipeline"));
    refused.map_or(Ok(()), |name| Err(views::changes::unsupported(name)))
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
