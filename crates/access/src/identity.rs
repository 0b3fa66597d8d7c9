//! Who has logged in on a connection.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use banyan_security::role::Granted;
use banyan_security::{Action, Privileges, Resource, Restrictions, RoleName, UserName};
use banyan_wire::Connection;
use bson::Uuid;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use super::conversation::Conversation;

/// The database of the one user that is not stored anywhere: a member of the cluster.
pub const MEMBER_DATABASE: &str = "local";
pub const MEMBER_USER: &str = "__system";

/// A user, and what its roles grant.
#[derive(Debug, Clone)]
pub struct AuthorizedUser {
    pub name: UserName,
    /// Tells it from a later one of the same name. `None`: the cluster's own.
    pub id: Option<Uuid>,
    pub roles: Vec<RoleName>,
    pub granted: Granted,
    pub restrictions: Restrictions,
}

impl AuthorizedUser {
    pub fn is_member(&self) -> bool {
        self.id.is_none()
    }
}

/// The users of a connection: at most one of each database.
#[derive(Debug, Clone, Default)]
pub struct Identity {
    pub users: Vec<Arc<AuthorizedUser>>,
    /// As of which state of users and roles.
    pub generation: u64,
    digest: UserDigest,
}

impl Identity {
    pub fn new(users: Vec<Arc<AuthorizedUser>>, generation: u64) -> Identity {
        let mut hash = Sha256::new();
        for user in &users {
            hash.update(user.name.to_string());
        }
        Identity {
            digest: hash.finalize().into(),
            users,
            generation,
        }
    }

    pub fn is_authenticated(&self) -> bool {
        !self.users.is_empty()
    }

    pub fn allows(&self, action: Action, resource: Resource<'_>) -> bool {
        self.privileges()
            .any(|privileges| privileges.allow(action, resource))
    }

    pub fn privileges(&self) -> impl Iterator<Item = &Privileges> {
        self.users.iter().map(|user| &user.granted.privileges)
    }

    pub fn names(&self) -> Vec<UserName> {
        self.users.iter().map(|user| user.name.clone()).collect()
    }

    /// What sessions and cursors are kept by: SHA-256 of `user@database`.
    pub fn digest(&self) -> UserDigest {
        self.digest
    }
}

pub type UserDigest = [u8; 32];

/// The digest of who has logged in as this user alone.
pub fn digest_of(name: &UserName) -> UserDigest {
    Sha256::digest(name.to_string()).into()
}

/// What a service remembers of a connection from one command to the next.
#[derive(Default)]
pub struct Client {
    /// The index of its last write in the log.
    pub last_write: AtomicU64,
    identity: Mutex<Arc<Identity>>,
    pub conversation: Mutex<Option<Conversation>>,
}

impl Client {
    /// `None` where a service keeps something else with its connections.
    pub fn of(connection: &Connection) -> Option<&Client> {
        connection.extension(Client::default)
    }

    pub fn identity(&self) -> Arc<Identity> {
        self.identity.lock().clone()
    }

    pub fn set_identity(&self, identity: Identity) {
        *self.identity.lock() = Arc::new(identity);
    }
}

/// As the connection's last command left it; see `AccessControl::identity` for what holds now.
pub fn known(connection: &Connection) -> Arc<Identity> {
    Client::of(connection).map_or_else(Arc::default, Client::identity)
}
