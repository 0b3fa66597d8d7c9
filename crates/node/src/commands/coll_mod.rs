//! `collMod`: hides an index from the planner, or shows it again; changes options of a collection.

use std::sync::Arc;

use banyan_document::key::KeyPattern;
use banyan_replication::machine::names::keeps_pre_images;
use banyan_replication::write::catalog_ops;
use banyan_security::Action;
use banyan_storage::{CatalogChange, Collection, Index, IndexDefinition, Namespace};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, cstr};

use super::clustered::{self, EXPIRE};
use super::images::{self, IMAGES};
use super::table::{BoxFuture, CommandResult, CommandSpec, Run};
use crate::access::check::Access;
use crate::context::CommandContext;
use crate::errors;
use crate::index_changes;
use crate::params::{self, Field};
use crate::role::IndexLoss;

pub static SPEC: CommandSpec = CommandSpec::new("collMod", Run::Future(run))
    .access(Access::Collection(Action::CollMod))
    .aliases(&["collmod"])
    .writes()
    .fields(&[
        "index",
        "validator",
        "viewOn",
        "pipeline",
        "cappedSize",
        "cappedMax",
        "timeseries",
        EXPIRE,
        IMAGES,
    ])
    .ignored(&["validationLevel", "validationAction"]);

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(coll_mod(ctx))
}

async fn coll_mod(ctx: &CommandContext<'_>) -> CommandResult {
    let node = ctx.node;
    let namespace = Namespace::new(ctx.database(), ctx.collection()?);
    refuse_unsupported(ctx)?;
    let asked = ctx.field("index").map(HiddenOption::parse).transpose()?;
    let keep_images = ctx
        .field(IMAGES)
        .map(|field| images::parse(ctx.database(), field))
        .transpose()?;
    let seconds = ctx.field(EXPIRE).map(clustered::parse_change).transpose()?;
    let term = node.replica.writable_term()?;
    let _locks = ctx.lock_exclusive(&[&namespace]).await?;
    index_changes::check_routing(ctx, &namespace)?;
    let Some(collection) = node.replica.store.catalog().find(&namespace).cloned() else {
        return Err(CommandError::new(
            ErrorCode::NamespaceNotFound,
            "ns does not exist",
        ));
    };
    if seconds.is_some() && collection.clustered_index.is_none() {
        return Err(CommandError::new(
            ErrorCode::InvalidOptions,
            "'expireAfterSeconds' option is only supported on collections clustered by _id",
        ));
    }
    let mut reply = RawDocumentBuf::new();
    if let Some(option) = asked {
        let index = option.find(&collection)?;
        if index.hidden != option.hidden {
            check_hiding(ctx, &collection, &index, option.hidden)?;
            let change = CatalogChange::SetIndexSpec {
                collection: collection.id,
                index: IndexDefinition {
                    id: index.id,
                    spec: index_changes::with_hidden(&index.spec, option.hidden),
                },
            };
            catalog_ops::apply(&node.replica, &[change], term).await?;
            told(&mut reply, option.hidden);
        }
    }
    let mut options = collection.options.clone();
    if let Some(keep) = keep_images
        && keep != keeps_pre_images(&options)
    {
        options = images::with(&options, keep);
    }
    if let Some(seconds) = seconds {
        options = clustered::with_seconds(&options, seconds);
    }
    if options != collection.options {
        let id = collection.id;
        catalog_ops::apply(
            &node.replica,
            &[CatalogChange::SetOptions { id, options }],
            term,
        )
        .await?;
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
    if let Some(option) = [IMAGES, EXPIRE]
        .into_iter()
        .find(|name| ctx.field(name).is_some())
    {
        let text = format!(
            "an index and {option} of a sharded collection can only be changed by one collMod each"
        );
        return Err(CommandError::new(ErrorCode::InvalidOptions, text));
    }
    let option = HiddenOption::parse(ctx.required("index")?)?;
    let index = option.find(collection)?;
    let mut list = index_changes::list(collection);
    let mut reply = RawDocumentBuf::new();
    if index.hidden != option.hidden {
        check_hiding(ctx, collection, &index, option.hidden)?;
        let same =
            |spec: &&mut RawDocumentBuf| spec.get_str("name").ok() == Some(index.name.as_str());
        if let Some(spec) = list.iter_mut().find(same) {
            *spec = index_changes::with_hidden(spec, option.hidden);
        }
        told(&mut reply, option.hidden);
    }
    reply.append(cstr!("ok"), 1.0);
    Ok((list, reply))
}

fn told(reply: &mut RawDocumentBuf, hidden: bool) {
    reply.append(cstr!("hidden_old"), !hidden);
    reply.append(cstr!("hidden_new"), hidden);
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

/// The `index` of a `collMod`: which index is to be hidden or shown.
struct HiddenOption<'a> {
    name: Option<&'a str>,
    pattern: Option<&'a RawDocument>,
    hidden: bool,
}

impl<'a> HiddenOption<'a> {
    fn parse(field: Field<'a>) -> Result<HiddenOption<'a>, CommandError> {
        let (mut name, mut pattern, mut hidden) = (None, None, None);
        for field in params::fields(PARSER, field.document()?) {
            match field.name {
                "name" => name = Some(field.str()?),
                "keyPattern" => pattern = Some(field.document()?),
                "hidden" => hidden = Some(field.bool()?),
                "expireAfterSeconds" | "unique" | "prepareUnique" => {
                    return Err(unsupported(field.name));
                }
                other => return Err(params::unknown_field(PARSER, other)),
            }
        }
        let refuse = |message: &str| Err(CommandError::new(ErrorCode::InvalidOptions, message));
        if name.is_some() == pattern.is_some() {
            return refuse("Must specify either index name or key pattern, and not both");
        }
        match hidden {
            Some(hidden) => Ok(HiddenOption {
                name,
                pattern,
                hidden,
            }),
            None => refuse("no expireAfterSeconds, hidden, unique, or prepareUnique field"),
        }
    }

    fn find(&self, collection: &Collection) -> Result<Arc<Index>, CommandError> {
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
        let is_asked_for = |index: &&Arc<Index>| match (self.name, &pattern) {
            (Some(name), _) => index.name == name,
            (None, Some(pattern)) => catalog_ops::same_pattern(pattern, &index.pattern),
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
        if index.is_id() && self.hidden {
            return Err(CommandError::new(
                ErrorCode::BadValue,
                "can't hide _id index",
            ));
        }
        Ok(index.clone())
    }
}

/// Changes that would alter what the collection does are refused rather than forgotten.
fn refuse_unsupported(ctx: &CommandContext<'_>) -> Result<(), CommandError> {
    for (name, value) in ctx.body().iter().flatten() {
        let name = name.as_str();
        let has_effect = match name {
            "validator" => value.as_document().is_none_or(|rules| !rules.is_empty()),
            "viewOn" | "pipeline" | "cappedSize" | "cappedMax" | "timeseries" => true,
            _ => false,
        };
        if has_effect {
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
