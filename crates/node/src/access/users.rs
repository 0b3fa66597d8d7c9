//! The users of this member's state, as logins and requests ask for them.

use std::sync::Arc;

use banyan_access::control::AccessControl;
use banyan_access::identity::{AuthorizedUser, Client, Identity};
use banyan_access::users::Users;
use banyan_replication::machine::Machine;
use banyan_replication::op_observer::Change;
use banyan_replication::replica::Replica;
use banyan_security::{UserDefinition, UserName};
use banyan_storage::Namespace;
use banyan_wire::{CommandError, Connection};

use super::stored::{DATABASE, ROLES, Stored, USERS};

/// Has what is known of users forgotten when the log changes them.
pub fn watch(access: &AccessControl, machine: &Machine) {
    if !access.has_users() {
        return;
    }
    for collection in [USERS, ROLES] {
        let generation = access.generations().clone();
        let listener = move |_: Option<Change<'_>>| generation.grow();
        machine.watch_collection(Namespace::new(DATABASE, collection), Box::new(listener));
    }
}

pub struct NodeUsers<'a> {
    pub access: &'a AccessControl,
    pub replica: &'a Replica,
}

impl Users for NodeUsers<'_> {
    fn definition(&self, name: &UserName) -> Result<Option<UserDefinition>, CommandError> {
        Stored::new(self.replica.view()).user(name)
    }

    fn authorized(&self, name: &UserName) -> Result<Option<Arc<AuthorizedUser>>, CommandError> {
        if let Some(user) = self.access.cached(name) {
            return Ok(Some(user));
        }
        // Read before the state is: a change meanwhile has it read again.
        let generation = self.access.generation();
        let stored = Stored::new(self.replica.view());
        let Some(definition) = stored.user(name)? else {
            return Ok(None);
        };
        let user = Arc::new(authorized(&stored, definition)?);
        self.access.keep(generation, user.clone());
        Ok(Some(user))
    }
}

impl NodeUsers<'_> {
    /// The users of a connection as of now: one that was dropped has left, and roles are those of
    /// the last change.
    pub fn identity(&self, connection: &Connection) -> Result<Arc<Identity>, CommandError> {
        let Some(client) = Client::of(connection) else {
            return Ok(Arc::default());
        };
        let known = client.identity();
        if self.access.is_current(&known) {
            return Ok(known);
        }
        let generation = self.access.generation();
        let found = known.users.iter().map(|user| match user.is_member() {
            true => Ok(Some(user.clone())),
            false => self.authorized(&user.name),
        });
        let found = found.collect::<Result<Vec<_>, CommandError>>()?;
        Ok(self.access.renew(connection, &known, found, generation))
    }

    /// Whether there is nobody yet who could log in, and the client sits at this machine.
    pub fn is_localhost_exception(&self, connection: &Connection) -> bool {
        connection.peer.ip().to_canonical().is_loopback()
            && !Stored::new(self.replica.view()).has_users_or_roles()
    }
}

fn authorized(stored: &Stored, definition: UserDefinition) -> Result<AuthorizedUser, CommandError> {
    let granted = stored
        .reachable(&definition.roles)?
        .granted(&definition.roles);
    Ok(AuthorizedUser {
        name: definition.name,
        id: Some(definition.id),
        roles: definition.roles,
        granted,
        restrictions: definition.restrictions,
    })
}
