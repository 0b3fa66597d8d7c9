//! Users and roles as they lie in this member's state: `admin.system.users`, `admin.system.roles`.

use std::sync::Arc;

use banyan_execution::{Interrupt, InterruptSlot, Planned, ReadView, Request, Row, by_id};
use banyan_query::canonical::CanonicalQuery;
use banyan_query::filter::Filter;
use banyan_security::role::Roles;
use banyan_security::{DefinitionError, RoleDefinition, RoleName, UserDefinition, UserName};
use banyan_storage::{Catalog, Collection, Namespace, Snapshot};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use crate::errors;

pub const DATABASE: &str = "admin";
pub const USERS: &str = "system.users";
pub const ROLES: &str = "system.roles";

/// Whether users or roles would be gone with the collection, or be others.
pub fn is_protected(namespace: &Namespace) -> bool {
    namespace.database() == DATABASE && matches!(namespace.collection(), USERS | ROLES)
}

/// One state of both collections.
pub struct Stored {
    catalog: Arc<Catalog>,
    snapshot: Snapshot,
}

/// What is wrong with a definition, as a reply.
pub fn refused(error: DefinitionError) -> CommandError {
    let code = match &error {
        DefinitionError::Type { .. } => ErrorCode::TypeMismatch,
        DefinitionError::Resource(_) => ErrorCode::FailedToParse,
        DefinitionError::Empty => ErrorCode::CollectionIsEmpty,
        DefinitionError::Unknown(_) => ErrorCode::Location(40415),
        DefinitionError::Invalid(_) | DefinitionError::Action(_) | DefinitionError::Address(_) => {
            ErrorCode::BadValue
        }
    };
    CommandError::new(code, error.to_string())
}

fn damaged(id: &str, error: &DefinitionError) -> CommandError {
    CommandError::new(
        ErrorCode::UnsupportedFormat,
        format!("the stored definition of {id} cannot be read: {error}"),
    )
}

impl Stored {
    pub fn new((catalog, snapshot): (Arc<Catalog>, Snapshot)) -> Stored {
        Stored { catalog, snapshot }
    }

    fn collection(&self, name: &str) -> Option<&Arc<Collection>> {
        self.catalog.get(DATABASE, name)
    }

    fn by_id(&self, collection: &str, id: &str) -> Result<Option<RawDocumentBuf>, CommandError> {
        let Some(collection) = self.collection(collection) else {
            return Ok(None);
        };
        let id = RawBsonRef::String(id);
        let found = by_id::lookup(collection, &self.snapshot, id).map_err(errors::query)?;
        Ok(found.map(|record| RawDocument::to_owned(&record)))
    }

    pub fn user(&self, name: &UserName) -> Result<Option<UserDefinition>, CommandError> {
        let id = format!("{}.{}", name.database, name.user);
        let Some(document) = self.by_id(USERS, &id)? else {
            return Ok(None);
        };
        let user = UserDefinition::parse(&document).map_err(|error| damaged(&id, &error))?;
        // A dot may stand in either part of the `_id`.
        Ok(Some(user).filter(|user| user.name == *name))
    }

    /// A user-defined role.
    pub fn role(&self, name: &RoleName) -> Result<Option<RoleDefinition>, CommandError> {
        let id = format!("{}.{}", name.database, name.role);
        let Some(document) = self.by_id(ROLES, &id)? else {
            return Ok(None);
        };
        let role = RoleDefinition::parse(&document).map_err(|error| damaged(&id, &error))?;
        Ok(Some(role).filter(|role| role.name == *name))
    }

    /// The user-defined roles among these and those that they inherit.
    pub fn reachable(&self, direct: &[RoleName]) -> Result<Roles, CommandError> {
        let mut roles = Roles::default();
        let mut next: Vec<RoleName> = direct.to_vec();
        while let Some(name) = next.pop() {
            if roles.get(&name).is_some() {
                continue;
            }
            if let Some(role) = self.role(&name)? {
                next.extend(role.roles.iter().cloned());
                roles.insert(role);
            }
        }
        Ok(roles)
    }

    pub fn role_exists(&self, name: &RoleName) -> Result<bool, CommandError> {
        Ok(banyan_security::builtin::exists(name) || self.role(name)?.is_some())
    }

    /// Whether somebody could log in, or could have been meant to.
    pub fn has_users_or_roles(&self) -> bool {
        [USERS, ROLES]
            .iter()
            .filter_map(|name| self.collection(name))
            .any(|collection| collection.documents() > 0)
    }

    /// All documents of one of the collections that match.
    pub fn find(
        &self,
        collection: &str,
        filter: Filter,
        interrupt: &Interrupt,
    ) -> Result<Vec<RawDocumentBuf>, CommandError> {
        let slot = Arc::new(InterruptSlot::default());
        slot.set(Some(interrupt.clone()));
        let request = Request {
            query: Arc::new(CanonicalQuery::of_filter(Arc::new(filter))),
            ..Request::default()
        };
        let view = ReadView {
            collection: self.collection(collection).cloned(),
            snapshot: self.snapshot.clone(),
            later: None,
        };
        let open = || Planned::new(view, request)?.open(&slot);
        let rows = open().map_err(errors::query)?;
        rows.map(|row| row.map(Row::into_owned).map_err(errors::query))
            .collect()
    }
}
