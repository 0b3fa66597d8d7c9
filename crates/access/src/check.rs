//! What a command needs, and whether a client has it.

use std::borrow::Cow;

use banyan_security::{Action, Resource, RoleName, UserName};
use banyan_wire::{CommandError, ErrorCode, Request, Sequence};
use bson::{RawBsonRef, RawDocument};

use crate::identity::Identity;
use crate::redaction;
use crate::shape;

/// What a command needs, when access is controlled.
#[derive(Clone, Copy)]
pub enum Access {
    /// Nobody has said: it is denied.
    Unnamed,
    /// Nothing, not even a login.
    Anyone,
    /// That somebody has logged in. What belongs to other users, the command itself looks after.
    LoggedIn,
    /// A member of the cluster.
    Member,
    Cluster(Action),
    /// On the database that it is sent to.
    Database(Action),
    /// On the collection that its own field names.
    Collection(Action),
    /// What depends on more of the request.
    Checked(fn(&Check<'_>) -> bool),
}

/// A request, and who it comes from.
#[derive(Clone, Copy)]
pub struct Check<'a> {
    pub identity: &'a Identity,
    /// There are no users yet, and the client sits at this machine.
    pub localhost: bool,
    pub database: &'a str,
    pub body: &'a RawDocument,
    pub sequences: &'a [Sequence],
}

impl<'a> Check<'a> {
    pub fn new(identity: &'a Identity, localhost: bool, request: &'a Request) -> Check<'a> {
        Check {
            identity,
            localhost,
            database: &request.database,
            body: &request.body,
            sequences: &request.sequences,
        }
    }

    /// The same client's other command, such as the one that `explain` explains.
    pub fn inner(self, body: &'a RawDocument) -> Check<'a> {
        Check {
            body,
            sequences: &[],
            ..self
        }
    }

    pub fn meets(&self, access: Access) -> bool {
        match access {
            Access::Unnamed => false,
            Access::Anyone => true,
            Access::LoggedIn => self.identity.is_authenticated(),
            Access::Member => self.cluster(Action::Internal),
            Access::Cluster(action) => self.cluster(action),
            Access::Database(action) => self.on_database(self.database, action),
            Access::Collection(action) => self.collection(action),
            Access::Checked(check) => check(self),
        }
    }

    fn allows(&self, action: Action, resource: Resource<'_>) -> bool {
        self.identity.allows(action, resource)
            || (self.localhost && is_for_first_user(action, resource))
    }

    pub fn cluster(&self, action: Action) -> bool {
        self.allows(action, Resource::Cluster)
    }

    pub fn on_database(&self, database: &str, action: Action) -> bool {
        self.allows(action, Resource::Database(database))
    }

    pub fn on(&self, database: &str, collection: &str, action: Action) -> bool {
        let resource = Resource::Collection {
            database,
            collection,
        };
        self.allows(action, resource)
    }

    /// On every database but `local` and `config`.
    pub fn everywhere(&self, action: Action) -> bool {
        self.identity.privileges().any(|privileges| {
            privileges.iter().any(|own| {
                use banyan_security::ResourcePattern::{AnyNormal, AnyResource};
                matches!(own.resource, AnyNormal | AnyResource) && own.actions.allows(action)
            })
        })
    }

    /// The collection that the command's own field names.
    pub fn named(&self) -> Option<&'a str> {
        banyan_document::first_value(self.body)?.as_str()
    }

    /// On that collection.
    pub fn collection(&self, action: Action) -> bool {
        self.named()
            .is_some_and(|name| self.on(self.database, name, action))
    }

    pub fn get(&self, field: &str) -> Option<RawBsonRef<'a>> {
        banyan_document::field(self.body, field)
    }

    /// Every value of a field. Which one a command takes of a field that is given twice is its own
    /// affair: here all of them count.
    pub fn all(&self, field: &'a str) -> impl Iterator<Item = RawBsonRef<'a>> {
        all_of(self.body, field)
    }

    /// Whether a field is there and not false.
    pub fn flag(&self, field: &'a str) -> bool {
        self.all(field).any(is_true)
    }

    pub fn is_user(&self, name: &UserName) -> bool {
        self.identity.users.iter().any(|user| user.name == *name)
    }

    pub fn has_role(&self, name: &RoleName) -> bool {
        let mut users = self.identity.users.iter();
        users.any(|user| user.granted.roles.contains(name))
    }
}

/// Every value of a field of a document.
pub fn all_of<'a>(
    document: &'a RawDocument,
    field: &'a str,
) -> impl Iterator<Item = RawBsonRef<'a>> {
    let all = banyan_document::elements(document);
    let named = all.filter(move |one| one.name_bytes() == field.as_bytes());
    named.map(|one| one.value())
}

pub fn is_true(value: RawBsonRef<'_>) -> bool {
    match value {
        RawBsonRef::Boolean(flag) => flag,
        RawBsonRef::Int32(n) => n != 0,
        RawBsonRef::Int64(n) => n != 0,
        RawBsonRef::Double(n) => n != 0.0,
        RawBsonRef::Null | RawBsonRef::Undefined => false,
        _ => true,
    }
}

/// What the first user is made with, before there is anybody who could be asked.
fn is_for_first_user(action: Action, resource: Resource<'_>) -> bool {
    match resource {
        Resource::Database("admin") => matches!(action, Action::CreateUser | Action::GrantRole),
        Resource::Database("$external") => action == Action::CreateUser,
        Resource::Cluster => matches!(
            action,
            Action::AddShard | Action::ReplSetConfigure | Action::ReplSetGetStatus
        ),
        _ => false,
    }
}

/// Whether who has not logged in may run such a command at all.
pub fn admit_stranger(
    check: &Check<'_>,
    access: Access,
    request: &Request,
) -> Result<(), CommandError> {
    if !check.localhost && !matches!(access, Access::Anyone) && !check.identity.is_authenticated() {
        let message = format!("command {} requires authentication", request.name);
        return Err(CommandError::new(ErrorCode::Unauthorized, message));
    }
    Ok(())
}

/// Lets a request pass, or says why not.
pub fn admit(check: &Check<'_>, access: Access, request: &Request) -> Result<(), CommandError> {
    admit_stranger(check, access, request)?;
    match check.meets(access) {
        true => Ok(()),
        false => Err(denied(request)),
    }
}

/// As MongoDB words it.
pub fn denied(request: &Request) -> CommandError {
    let shown: Cow<'_, Request> = redaction::redacted(request);
    CommandError::new(
        ErrorCode::Unauthorized,
        format!(
            "not authorized on {} to execute command {}",
            shape::shortened(&request.database),
            shape::of(&shown)
        ),
    )
}
