//! `collectionUUID`: the command is for the collection with this id, and for no other one that has
//! come by its name.

use banyan_replication::{time_series, views};
use banyan_storage::Namespace;
use banyan_wire::{CommandError, ErrorCode};
use bson::spec::BinarySubtype;
use bson::{RawBsonRef, rawdoc};

use crate::context::CommandContext;
use crate::params::{self, Field};

pub const FIELD: &str = "collectionUUID";

type Uuid = [u8; 16];

/// What the field has to be.
pub fn check_form(field: Field<'_>) -> Result<(), CommandError> {
    read(field).map(drop)
}

/// The same where no other field has a form.
pub fn check_form_in(field: Field<'_>) -> Result<(), CommandError> {
    match field.name {
        FIELD => check_form(field),
        _ => Ok(()),
    }
}

fn read(field: Field<'_>) -> Result<Option<Uuid>, CommandError> {
    match field.value {
        _ if field.is_null() => Ok(None),
        RawBsonRef::Binary(binary) if binary.subtype == BinarySubtype::Uuid => {
            let uuid = Uuid::try_from(binary.bytes).map_err(|_| {
                CommandError::new(
                    ErrorCode::InvalidUUID,
                    "uuid must be a 16-byte binary field with UUID (4) subtype",
                )
            })?;
            Ok(Some(uuid))
        }
        _ => Err(field.wrong_type("type 'binData' (UUID)")),
    }
}

/// Refuses a command that names another collection than it is for.
pub fn check(ctx: &CommandContext<'_>, collection: &str) -> Result<(), CommandError> {
    check_in(ctx, ctx.database(), collection)
}

/// The same for a command that names the collection's database as well.
pub fn check_in(
    ctx: &CommandContext<'_>,
    database: &str,
    collection: &str,
) -> Result<(), CommandError> {
    let Some(uuid) = asked(ctx)? else {
        return Ok(());
    };
    let (catalog, _) = ctx.view();
    let named = catalog.get(database, collection);
    let namespace = Namespace::new(database, collection);
    // A sharded collection goes by one id on all of its shards, whatever each calls its part.
    let shared = ctx
        .node
        .role()
        .and_then(|role| role.collection_uuid(&namespace));
    let own = named.map(|named| shared.unwrap_or(named.uuid));
    if own == Some(uuid) {
        return Ok(());
    }
    let collections = catalog.database(database).into_iter();
    let mut collections = collections.flat_map(|database| database.collections());
    let actual = collections
        .find(|collection| collection.uuid == uuid)
        .map(|collection| collection.namespace.collection());
    let error = CommandError::new(
        ErrorCode::CollectionUUIDMismatch,
        "Collection UUID does not match that specified",
    );
    Err(error.with_extra(rawdoc! {
        "db": database,
        "collectionUUID": params::uuid(&uuid),
        "expectedCollection": collection,
        "actualCollection": actual.map_or(RawBsonRef::Null, RawBsonRef::String),
    }))
}

/// The same for a command that refuses views: it says so before it looks at the id.
pub fn check_unless_view(ctx: &CommandContext<'_>, collection: &str) -> Result<(), CommandError> {
    if asked(ctx)?.is_none() {
        return Ok(());
    }
    let namespace = Namespace::new(ctx.database(), collection);
    match views::refuse(&ctx.node.replica, &namespace) {
        Ok(()) => check(ctx, collection),
        Err(_) => Ok(()),
    }
}

/// The same for a command that changes measurements: their collection is that of their buckets.
pub fn check_written(ctx: &CommandContext<'_>, collection: &str) -> Result<(), CommandError> {
    if asked(ctx)?.is_none() {
        return Ok(());
    }
    let (catalog, _) = ctx.view();
    match time_series::find(&catalog, ctx.database(), collection) {
        Some((buckets, _)) => check(ctx, buckets.namespace.collection()),
        None => check_unless_view(ctx, collection),
    }
}

/// The id that is asked for.
fn asked(ctx: &CommandContext<'_>) -> Result<Option<Uuid>, CommandError> {
    let Some(field) = ctx.field(FIELD) else {
        return Ok(None);
    };
    read(field)
}

/// Whether it is asked for one.
pub fn is_asked(ctx: &CommandContext<'_>) -> bool {
    ctx.field(FIELD).is_some_and(|field| !field.is_null())
}
