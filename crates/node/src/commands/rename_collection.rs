//! `renameCollection`: another name, perhaps in place of another collection.

use banyan_access::check::Access;
use banyan_access::reads_and_writes;
use banyan_document::time_series::visible_name;
use banyan_query::view;
use banyan_replication::time_series;
use banyan_replication::write::catalog_ops;
use banyan_storage::{CatalogChange, Namespace};
use banyan_wire::{CommandError, ErrorCode};
use bson::spec::BinarySubtype;
use bson::{RawBsonRef, rawdoc};

use super::create;
use super::table::{BoxFuture, CommandResult, CommandSpec, Run};
use crate::access::stored;
use crate::collection_uuid;
use crate::context::CommandContext;
use crate::index_builds;
use crate::names::{check_collection_name, check_database_name};
use crate::params::Field;
use crate::profiler::PROFILE;
use crate::views;
use crate::virtual_collections::local;

pub static SPEC: CommandSpec = CommandSpec::new("renameCollection", Run::Future(run))
    .access(Access::Checked(reads_and_writes::rename))
    .aliases(&["renamecollection"])
    .writes()
    .admin_only()
    .fields(&["to", "dropTarget", collection_uuid::FIELD])
    .required(&["to"])
    .ignored(&["stayTemp"])
    .form(check_form);

/// What a field has to be, whatever the others are.
fn check_form(field: Field<'_>) -> Result<(), CommandError> {
    match (field.name, field.value) {
        ("stayTemp" | "to", _) if field.is_null() => Ok(()),
        ("stayTemp", RawBsonRef::Boolean(_)) => Ok(()),
        ("stayTemp", _) => Err(field.wrong_type("type 'bool'")),
        ("dropTarget", RawBsonRef::Boolean(_)) => Ok(()),
        // A target by its UUID, as members of a set name it.
        ("dropTarget", RawBsonRef::Binary(binary)) if binary.subtype != BinarySubtype::Uuid => {
            Err(CommandError::new(
                ErrorCode::InvalidUUID,
                "uuid must be a 16-byte binary field with UUID (4) subtype",
            ))
        }
        ("dropTarget", _) => Err(field.wrong_type("types '[bool, binData]'")),
        ("to", _) => field.str().map(drop),
        (collection_uuid::FIELD, _) => collection_uuid::check_form(field),
        _ => Ok(()),
    }
}

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move {
        let node = ctx.node;
        let drop_target = ctx
            .field("dropTarget")
            .is_some_and(|field| field.value == RawBsonRef::Boolean(true));
        let from = namespace(match ctx.argument() {
            Some(value) => Field {
                command: ctx.spec.name,
                name: ctx.spec.name,
                value,
            },
            None => return Err(CommandError::new(ErrorCode::FailedToParse, "empty command")),
        })?;
        let to = ctx.required("to")?;
        let to = namespace(to)?;
        if from == to {
            return Err(CommandError::new(
                ErrorCode::IllegalOperation,
                "Can't rename a collection to itself",
            ));
        }
        if from.database() != to.database() && collection_uuid::is_asked(ctx) {
            return Err(CommandError::new(
                ErrorCode::InvalidOptions,
                "The collectionUUID parameter is not supported for renames between databases",
            ));
        }
        if local::is_oplog(node, &from) {
            return Err(CommandError::new(
                ErrorCode::IllegalOperation,
                "can't rename live oplog while replicating",
            ));
        }
        if let Some(protected) = [&from, &to]
            .into_iter()
            .find(|one| stored::is_protected(one))
        {
            return Err(CommandError::new(
                ErrorCode::IllegalOperation,
                format!("can't rename system collection {protected}"),
            ));
        }
        let is_own = |one: &Namespace| {
            create::refuse_reserved(one).is_err() || visible_name(one.collection()).is_some()
        };
        if let Some(own) = [&from, &to].into_iter().find(|one| is_own(one)) {
            return Err(CommandError::new(
                ErrorCode::IllegalOperation,
                format!("can't rename system collection {own}"),
            ));
        }
        let catalog = node.replica.store.catalog();
        if catalog
            .find(&from)
            .is_some_and(|found| time_series::of(found).is_some())
        {
            return Err(CommandError::new(
                ErrorCode::IllegalOperation,
                "Renaming system.buckets collections is not allowed",
            ));
        }
        for (end, one) in [("source", &from), ("target", &to)] {
            if matches!(one.collection(), view::COLLECTION | PROFILE) {
                return Err(CommandError::new(
                    ErrorCode::IllegalOperation,
                    format!("error with {end} namespace: cannot write to {one}"),
                ));
            }
        }
        let term = node.replica.writable_term()?;
        let _locks = ctx.lock_exclusive(&[&from, &to]).await?;
        collection_uuid::check_in(ctx, from.database(), from.collection())?;
        let catalog = node.replica.store.catalog();
        let Some(collection) = catalog.find(&from) else {
            if views::is_view(&node.replica, &from)? {
                return Err(CommandError::new(
                    ErrorCode::CommandNotSupportedOnView,
                    format!("cannot rename view: {from}"),
                ));
            }
            return Err(CommandError::new(
                ErrorCode::NamespaceNotFound,
                format!("Source collection {from} does not exist"),
            ));
        };
        if views::is_view(&node.replica, &to)? {
            return Err(CommandError::new(
                ErrorCode::NamespaceExists,
                format!("a view already exists with that name: {to}"),
            ));
        }
        index_builds::refuse_builds(collection)?;
        let mut changes = Vec::new();
        if let Some(target) = catalog.find(&to) {
            if !drop_target {
                return Err(CommandError::new(
                    ErrorCode::NamespaceExists,
                    "target namespace exists",
                ));
            }
            changes.push(CatalogChange::DropCollection { id: target.id });
        } else {
            catalog_ops::refuse_other_case(&node.replica, &to)?;
        }
        changes.push(CatalogChange::RenameCollection {
            id: collection.id,
            to,
        });
        catalog_ops::apply(&node.replica, &changes, term).await?;
        Ok(rawdoc! { "ok": 1.0 })
    })
}

fn namespace(field: Field<'_>) -> Result<Namespace, CommandError> {
    let text = field.str()?;
    let parsed = Namespace::parse(text).ok_or_else(|| {
        CommandError::new(
            ErrorCode::InvalidNamespace,
            format!("Invalid namespace: {text}"),
        )
    })?;
    if parsed.collection().is_empty() {
        return Err(CommandError::new(
            ErrorCode::InvalidNamespace,
            format!("Invalid namespace specified '{text}'"),
        ));
    }
    let is_database = check_database_name(parsed.database()).is_ok();
    check_collection_name(parsed.database(), parsed.collection()).map_err(
        |error| match is_database || text.contains('$') {
            true => CommandError::new(ErrorCode::IllegalOperation, error.message),
            false => error,
        },
    )?;
    Ok(parsed)
}
