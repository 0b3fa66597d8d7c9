//! `collectionUUID`: the command is for the collection with this id, and for no other one that has
//! come by its name.

use banyan_replication::views;
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
    let uuid = match field.value {
        _ if field.is_null() => return Ok(None),
        RawBsonRef::Binary(binary) if binary.subtype == BinarySubtype::Uuid => {
            Uuid::try_from(binary.bytes).ok()
        }
        _ => None,
    };
    match uuid {
        Some(uuid) => Ok(Some(uuid)),
        None => Err(field.wrong_type("type 'binData' (UUID)")),
    }
}

/// Refuses a command that names another collection than it is for.
pub fn check(ctx: &CommandContext<'_>, collection: &str) -> Result<(), CommandError> {
    let Some(uuid) = asked(ctx)? else {
        return Ok(());
    };
    let (catalog, _) = ctx.view();
    let named = catalog.get(ctx.database(), collection);
    let namespace = Namespace::new(ctx.database(), collection);
    // A sharded collection goes by one id on all of its shards, whatever each calls its part.
    let shared = ctx
        .node
        .role()
        .and_then(|role| role.collection_uuid(&namespace));
    let own = named.map(|named| shared.unwrap_or(named.uuid));
    if own == Some(uuid) {
        return Ok(());
    }
    let database = catalog.database(ctx.database()).into_iter();
    let mut collections = database.flat_map(|database| database.collections());
    let actual = collections
        .find(|collection| collection.uuid == uuid)
        .map(|collection| collection.namespace.collection());
    let error = CommandError::new(
        ErrorCode::CollectionUUIDMismatch,
        "Collection UUID does not match that specified",
    );
    Err(error.with_extra(rawdoc! {
        "db": ctx.database(),
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
