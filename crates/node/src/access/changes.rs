//! Changing users and roles: one change after the other, through the ordinary write path.

use banyan_security::{RoleName, UserDefinition, UserName};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawArrayBuf, RawDocumentBuf, rawdoc};
use tokio::sync::MutexGuard;

use super::stored::{DATABASE, ROLES, Stored, USERS};
use crate::context::CommandContext;
use crate::errors;

/// Waits until nobody else changes users or roles: what is read then holds until it is written.
pub async fn begin<'a>(ctx: &CommandContext<'a>) -> Result<MutexGuard<'a, ()>, CommandError> {
    let node = ctx.node;
    tokio::select! {
        turn = node.access_changes.lock() => Ok(turn),
        () = ctx.interrupt().raised() => {
            ctx.check_interrupt()?;
            Err(CommandError::new(ErrorCode::Interrupted, "operation was interrupted"))
        }
    }
}

pub fn stored(ctx: &CommandContext<'_>) -> Stored {
    Stored::new(ctx.node.replica.view())
}

/// Roles that are to be given have to be there.
pub fn check_exist(stored: &Stored, roles: &[RoleName]) -> Result<(), CommandError> {
    for role in roles {
        if !stored.role_exists(role)? {
            return Err(no_role(role));
        }
    }
    Ok(())
}

pub fn no_role(role: &RoleName) -> CommandError {
    CommandError::new(
        ErrorCode::RoleNotFound,
        format!("Could not find role: {role}"),
    )
}

/// A new document; `exists` says what a known `_id` means.
pub async fn insert(
    ctx: &CommandContext<'_>,
    collection: &str,
    document: RawDocumentBuf,
    exists: impl FnOnce() -> CommandError,
) -> Result<(), CommandError> {
    let documents = RawArrayBuf::from_iter([document]);
    let body = rawdoc! { "insert": collection, "documents": documents };
    match ctx.nested(DATABASE, body).await {
        Ok(_) => Ok(()),
        Err(error) if error.code == ErrorCode::DuplicateKey => Err(exists()),
        Err(error) => Err(error),
    }
}

/// Puts a document in the place of the one with its `_id`.
pub async fn replace(
    ctx: &CommandContext<'_>,
    collection: &str,
    document: RawDocumentBuf,
) -> Result<(), CommandError> {
    let id = document.get_str("_id").unwrap_or_default().to_owned();
    update(ctx, collection, rawdoc! { "_id": id }, document, false).await
}

/// Takes roles from all that have them.
pub async fn take_roles(
    ctx: &CommandContext<'_>,
    database: &str,
    names: &[String],
) -> Result<(), CommandError> {
    let names: RawArrayBuf = names.iter().map(String::as_str).collect();
    let these = rawdoc! { "db": database, "role": { "$in": names } };
    for collection in [USERS, ROLES] {
        let query = rawdoc! { "roles": { "$elemMatch": these.clone() } };
        let change = rawdoc! { "$pull": { "roles": these.clone() } };
        update(ctx, collection, query, change, true).await?;
    }
    Ok(())
}

async fn update(
    ctx: &CommandContext<'_>,
    collection: &str,
    query: RawDocumentBuf,
    change: RawDocumentBuf,
    multi: bool,
) -> Result<(), CommandError> {
    let statement = rawdoc! { "q": query, "u": change, "multi": multi };
    let updates = RawArrayBuf::from_iter([statement]);
    let body = rawdoc! { "update": collection, "updates": updates };
    ctx.nested(DATABASE, body).await.map(drop)
}

/// Removes what matches; answers how many there were.
pub async fn remove(
    ctx: &CommandContext<'_>,
    collection: &str,
    query: RawDocumentBuf,
) -> Result<i32, CommandError> {
    let deletes = RawArrayBuf::from_iter([rawdoc! { "q": query, "limit": 0 }]);
    let body = rawdoc! { "delete": collection, "deletes": deletes };
    let reply = ctx.nested(DATABASE, body).await?;
    Ok(reply.get_i32("n").unwrap_or(0))
}

/// All definitions of a database, or of all of them.
pub fn listed(
    ctx: &CommandContext<'_>,
    collection: &str,
    database: Option<&str>,
) -> Result<Vec<RawDocumentBuf>, CommandError> {
    let filter = match database {
        Some(database) => rawdoc! { "db": database },
        None => rawdoc! {},
    };
    let filter = errors::parse_filter(&filter)?;
    let mut found = stored(ctx).find(collection, filter, ctx.interrupt())?;
    found.sort_by_cached_key(|document| document.get_str("_id").unwrap_or_default().to_owned());
    Ok(found)
}

/// A user that is to be changed.
pub fn user(stored: &Stored, name: &UserName) -> Result<UserDefinition, CommandError> {
    stored.user(name)?.ok_or_else(|| {
        CommandError::new(
            ErrorCode::UserNotFound,
            format!(
                "Could not find user \"{}\" for db \"{}\"",
                name.user, name.database
            ),
        )
    })
}
