//! `convertToCapped` and `cloneCollectionAsCapped`: a capped collection of another's newest documents.
//!
//! The documents are copied in their order, those that would be removed at once left out. Nobody writes
//! to the collection that is copied until the copy is complete, so that nothing acknowledged is
//! missing. A converted collection is put in the other's place by one entry of the log: it is there
//! as it was, or as it is to be. Indexes but the one on `_id` are not copied, as in MongoDB.

use std::ops::Bound;
use std::sync::Arc;

use banyan_access::check::Access;
use banyan_access::reads_and_writes;
use banyan_execution::Ticker;
use banyan_query::view;
use banyan_replication::locks::Lock;
use banyan_replication::write::catalog_ops;
use banyan_replication::write::context::WriteContext;
use banyan_replication::write::insert::KeyedDocument;
use banyan_replication::write::staging::Staging;
use banyan_storage::{CatalogChange, Collection, Namespace, RecordId, Snapshot};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawDocumentBuf, cstr, rawdoc};
use rand::distr::{Alphanumeric, SampleString};

use super::capped::{self, Limits};
use super::drop::has_time_series;
use super::table::{BoxFuture, CommandResult, CommandSpec, Run};
use crate::access::stored;
use crate::context::CommandContext;
use crate::errors;
use crate::index_builds;
use crate::index_changes;
use crate::names::check_collection_name;
use crate::params;
use crate::views;
use crate::virtual_collections::local;

pub static CONVERT: CommandSpec = CommandSpec::new("convertToCapped", Run::Future(convert))
    .access(Access::Checked(reads_and_writes::convert_to_capped))
    .writes()
    .fields(&["size"])
    .lenient();

pub static CLONE: CommandSpec = CommandSpec::new("cloneCollectionAsCapped", Run::Future(clone))
    .access(Access::Checked(reads_and_writes::clone_as_capped))
    .writes()
    .fields(&["toCollection", "size", "temp"])
    .lenient();

fn convert<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move {
        let namespace = Namespace::new(ctx.database(), ctx.existing_collection()?);
        let limits = match limits(ctx)? {
            // A size that no collection can have is told of one that exists.
            Err(error) => {
                source(ctx, &namespace)?;
                return Err(error);
            }
            Ok(limits) => limits,
        };
        refuse_special(ctx, &namespace)?;
        let name = namespace.collection();
        let staged = format!("tmp{}.convertToCapped.{name}", random_name());
        let staged = Namespace::new(namespace.database(), &staged);
        let term = ctx.node.replica.writable_term()?;
        let locks = ctx.lock_exclusive(&[&namespace, &staged]).await?;
        let source = source(ctx, &namespace)?;
        index_changes::check_routing(ctx, &namespace)?;
        index_builds::refuse_builds(&source)?;
        let options = with_own_count(limits, &source).among(&source.options);
        let copied = copy(ctx, &source, &staged, options, &locks).await;
        let settled = match copied {
            Ok(copy) => {
                let changes = [
                    CatalogChange::DropCollection { id: source.id },
                    CatalogChange::RenameCollection {
                        id: copy,
                        to: namespace.clone(),
                    },
                ];
                catalog_ops::apply(&ctx.node.replica, &changes, term).await
            }
            Err(error) => Err(error),
        };
        if let Err(error) = settled {
            discard(ctx, &staged).await;
            return Err(error);
        }
        Ok(rawdoc! { "ok": 1.0 })
    })
}

fn clone<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move {
        let node = ctx.node;
        if !matches!(ctx.argument(), Some(bson::RawBsonRef::String(_))) {
            return Err(CommandError::new(
                ErrorCode::TypeMismatch,
                "'cloneCollectionAsCapped' must be of type String",
            ));
        }
        let to = match ctx.field("toCollection").map(|field| field.value) {
            Some(bson::RawBsonRef::String(to)) => to,
            _ => {
                return Err(CommandError::new(
                    ErrorCode::TypeMismatch,
                    "'toCollection' must be of type String",
                ));
            }
        };
        let from = match ctx.existing_collection()? {
            // A name that is too long is that of a collection which does not exist.
            name if !name.contains('$') => name,
            _ => ctx.collection()?,
        };
        let from = Namespace::new(ctx.database(), from);
        check_collection_name(ctx.database(), to)?;
        let limits = limits(ctx)?;
        let is_temporary = match ctx.field("temp") {
            Some(field) => field.bool()?,
            None => false,
        };
        let to = Namespace::new(ctx.database(), to);
        let locks = ctx.lock_exclusive(&[&from, &to]).await?;
        let source = source(ctx, &from)?;
        index_changes::check_routing(ctx, &from)?;
        refuse_sharded(ctx, &to)?;
        // Where there is a time-series collection, the definitions of views count as there.
        let keeps_views =
            to.collection() == view::COLLECTION && has_time_series(node, ctx.database());
        if keeps_views || node.replica.store.catalog().find(&to).is_some() {
            return Err(CommandError::new(
                ErrorCode::NamespaceExists,
                format!(
                    "cloneCollectionAsCapped failed - destination collection {to} already exists. \
                     source collection: {from}"
                ),
            ));
        }
        if views::is_view(&node.replica, &to)? {
            return Err(CommandError::new(
                ErrorCode::NamespaceExists,
                format!("A view already exists. NS: {to}"),
            ));
        }
        let limits = limits?;
        refuse_special(ctx, &to)?;
        // Scripts may be kept in a capped collection as well.
        if to.collection().starts_with("system.") && to.collection() != "system.js" {
            return Err(CommandError::new(
                ErrorCode::InvalidNamespace,
                format!("Invalid system namespace: {to}"),
            ));
        }
        let mut options = with_own_count(limits, &source).among(&source.options);
        if is_temporary {
            options.append(cstr!("temp"), true);
        }
        if let Err(error) = copy(ctx, &source, &to, options, &locks).await {
            discard(ctx, &to).await;
            return Err(error);
        }
        Ok(rawdoc! { "ok": 1.0 })
    })
}

/// The limits of the copy. That there may be no such size is told when all else is right.
fn limits(ctx: &CommandContext<'_>) -> Result<Result<Limits, CommandError>, CommandError> {
    let field = ctx.field("size");
    let size = field.and_then(|size| params::number(size.value));
    let is_told_late = size.is_some_and(|size| !(0..=capped::SIZE_MAX).contains(&size));
    let limits = capped::size_of_copy(ctx).map(|size| Limits {
        size: Some(size),
        max: None,
    });
    match limits {
        Err(error) if !is_told_late => Err(error),
        limits => Ok(limits),
    }
}

/// A capped collection keeps how many documents it holds at most.
fn with_own_count(limits: Limits, source: &Collection) -> Limits {
    let own = source.capped_limits();
    Limits {
        max: own.and_then(|own| own.documents),
        ..limits
    }
}

fn random_name() -> String {
    Alphanumeric.sample_string(&mut rand::rng(), 5)
}

/// The collection that is copied. Its lock is held.
fn source(
    ctx: &CommandContext<'_>,
    namespace: &Namespace,
) -> Result<Arc<Collection>, CommandError> {
    let replica = &ctx.node.replica;
    refuse_sharded(ctx, namespace)?;
    if let Some(found) = replica.store.catalog().find(namespace) {
        return match found.clustered_index {
            None => Ok(found.clone()),
            Some(_) => Err(CommandError::new(
                ErrorCode::NotImplemented,
                "a clustered collection cannot be made a capped one",
            )),
        };
    }
    views::refuse(replica, namespace)?;
    Err(CommandError::new(
        ErrorCode::NamespaceNotFound,
        format!("source collection {namespace} does not exist"),
    ))
}

/// Routers do as well; this is for who asks a shard itself.
fn refuse_sharded(ctx: &CommandContext<'_>, namespace: &Namespace) -> Result<(), CommandError> {
    match ctx.node.index_rules(namespace) {
        None => Ok(()),
        Some(_) => Err(CommandError::new(
            ErrorCode::IllegalOperation,
            format!(
                "can't do command: {} on a sharded collection",
                ctx.spec.name
            ),
        )),
    }
}

/// What is not the clients' to change.
fn refuse_special(ctx: &CommandContext<'_>, namespace: &Namespace) -> Result<(), CommandError> {
    let is_special = local::is_oplog(ctx.node, namespace)
        || stored::is_protected(namespace)
        || namespace.collection() == view::COLLECTION;
    match is_special {
        false => Ok(()),
        true => Err(CommandError::new(
            ErrorCode::IllegalOperation,
            format!("{namespace} cannot be made a capped collection"),
        )),
    }
}

/// Makes the capped collection and fills it; its id.
async fn copy(
    ctx: &CommandContext<'_>,
    source: &Collection,
    to: &Namespace,
    options: RawDocumentBuf,
    locks: &[Lock],
) -> Result<u32, CommandError> {
    let replica = &ctx.node.replica;
    let term = replica.writable_term()?;
    let creation = catalog_ops::creation(replica, to, options);
    let id = creation.collection();
    catalog_ops::apply(replica, &[creation], term).await?;
    let view = replica.store.snapshot();
    let limit = replica.store.catalog().by_id(id).cloned();
    let limit = limit.and_then(|made| made.capped_limits());
    let bytes = limit.map_or(i64::MAX, |limit| limit.bytes);
    let locks = locks.iter().map(Lock::again).collect();
    let context = WriteContext {
        // They have been let in before.
        bypass_validation: true,
        ..ctx.write_context()
    };
    let mut staging = Staging::under(context, locks, to.clone()).await?;
    let Some(target) = staging.collection.clone() else {
        return Err(errors::internal("a collection that was just made is gone"));
    };
    let mut from = ctx.compute(|| newest(ctx, &view, source, bytes)).await?;
    loop {
        let after = from.clone();
        let documents = ctx.compute(|| some(ctx, &view, source, after)).await?;
        let Some((last, _)) = documents.last() else {
            break;
        };
        from = Bound::Excluded(last.clone());
        for (_, document) in &documents {
            let mut keyed = KeyedDocument::new(&target, document)?;
            keyed.insert(&mut staging, &target).await?;
            if staging.unit.is_full() {
                staging.flush().await?;
            }
        }
        staging.flush().await?;
        ctx.check_interrupt()?;
    }
    staging.finish().await?;
    Ok(id)
}

/// Where the newest documents begin that come to no more than so many bytes together. One stays in
/// any case.
fn newest(
    ctx: &CommandContext<'_>,
    view: &Snapshot,
    source: &Collection,
    bytes: i64,
) -> Result<Bound<RecordId>, CommandError> {
    ctx.interrupt();
    let mut ticker = Ticker::new(ctx.slot().clone());
    let mut first = Bound::Unbounded;
    let mut sum: i64 = 0;
    for found in view.records(source.id, .., true) {
        let (record, document) = found.map_err(errors::storage)?;
        ticker.tick().map_err(errors::query)?;
        let length = i64::try_from(document.as_bytes().len()).unwrap_or(i64::MAX);
        sum = sum.saturating_add(length);
        if sum > bytes && !matches!(first, Bound::Unbounded) {
            break;
        }
        first = Bound::Included(record);
    }
    Ok(first)
}

/// So many documents are read at once, or so many bytes.
const READ_MAX: usize = 1_000;
const READ_BYTES_MAX: usize = 8 << 20;

type Found = Vec<(RecordId, banyan_storage::Record)>;

fn some(
    ctx: &CommandContext<'_>,
    view: &Snapshot,
    source: &Collection,
    from: Bound<RecordId>,
) -> Result<Found, CommandError> {
    let mut ticker = Ticker::new(ctx.slot().clone());
    let mut found: Found = Vec::new();
    let mut bytes = 0;
    for record in view.records(source.id, (from, Bound::Unbounded), false) {
        let (record, document) = record.map_err(errors::storage)?;
        ticker.tick().map_err(errors::query)?;
        bytes += document.as_bytes().len();
        found.push((record, document));
        if found.len() >= READ_MAX || bytes >= READ_BYTES_MAX {
            break;
        }
    }
    Ok(found)
}

/// Drops what was not finished, also when the command has been told to end. Its lock is held.
async fn discard(ctx: &CommandContext<'_>, namespace: &Namespace) {
    let replica = &ctx.node.replica;
    let Some(id) = replica
        .store
        .catalog()
        .find(namespace)
        .map(|found| found.id)
    else {
        return;
    };
    let dropped = match replica.writable_term() {
        Ok(term) => {
            let change = CatalogChange::DropCollection { id };
            catalog_ops::apply(replica, &[change], term).await.map(drop)
        }
        Err(error) => Err(error),
    };
    // The error that led here is the one to tell.
    if let Err(error) = dropped {
        tracing::warn!(%namespace, %error, "an unfinished copy could not be dropped");
    }
}
