//! `create`: a collection that is made on purpose, with options.

use banyan_document::Collator;
use banyan_replication::write::catalog_ops;
use banyan_storage::{CatalogChange, Namespace};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawDocumentBuf, cstr, rawdoc};

use super::images::{self, IMAGES};
use super::table::{BoxFuture, CommandResult, CommandSpec, Run};
use crate::collation;
use crate::context::CommandContext;
use crate::params;

pub static SPEC: CommandSpec = CommandSpec::new("create", Run::Future(run))
    .privilege("createCollection")
    .writes()
    .fields(&[
        "capped",
        "size",
        "max",
        "validator",
        "validationLevel",
        "validationAction",
        "viewOn",
        "pipeline",
        "timeseries",
        "clusteredIndex",
        "expireAfterSeconds",
        "collation",
        IMAGES,
    ])
    .ignored(&[
        "autoIndexId",
        "idIndex",
        "storageEngine",
        "indexOptionDefaults",
        "encryptedFields",
        "temp",
        "flags",
    ])
    .computes();

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(create(ctx))
}

async fn create(ctx: &CommandContext<'_>) -> CommandResult {
    let node = ctx.node;
    let namespace = Namespace::new(ctx.database(), ctx.collection()?);
    refuse_unsupported(ctx)?;
    let mut options = RawDocumentBuf::new();
    if let Some(field) = ctx.field(IMAGES)
        && images::parse(ctx.database(), field)?
    {
        images::append(&mut options);
    }
    if let Some(collator) = collation(ctx)? {
        let completed = collator.collation().to_document();
        options.append(cstr!("collation"), completed);
    }
    let term = node.writable_term()?;
    let _locks = ctx.lock_exclusive(&[&namespace]).await?;
    if node.store.catalog().find(&namespace).is_some() {
        return Err(CommandError::new(
            ErrorCode::NamespaceExists,
            format!("Collection {namespace} already exists."),
        ));
    }
    catalog_ops::refuse_other_case(node, &namespace)?;
    let change: CatalogChange = catalog_ops::creation(node, &namespace, options);
    catalog_ops::apply(node, &[change], term).await?;
    Ok(rawdoc! { "ok": 1.0 })
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

/// Options that would change what the collection does are refused rather than forgotten.
fn refuse_unsupported(ctx: &CommandContext<'_>) -> Result<(), CommandError> {
    for field in params::fields("create", ctx.body()) {
        let asked = match field.name {
            "capped" => field.bool()?,
            "validator" => field
                .document_or_null()?
                .is_some_and(|validator| !validator.is_empty()),
            "viewOn" | "timeseries" | "clusteredIndex" => !field.is_null(),
            _ => false,
        };
        if asked {
            return Err(CommandError::new(
                ErrorCode::NotImplemented,
                format!("create with '{}' is not supported", field.name),
            ));
        }
    }
    Ok(())
}
