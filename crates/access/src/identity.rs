//! Who has logged in on a connection.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use banyan_security::role::Granted;
use banyan_security::{Action, Privileges, Resource, Restrictions, RoleName, UserName};
use banyan_wire::Connection;
use bson::{RawDocumentBuf, Uuid};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use crate::conversation::Conversation;

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

    /// Whether its authentication restrictions, and those of its roles, let it log in from there.
    pub fn may_come_by(&self, connection: &Connection) -> bool {
        let (peer, local) = (connection.peer.ip(), connection.local.ip());
        let mut all = std::iter::once(&self.restrictions).chain(&self.granted.restrictions);
        all.all(|restrictions| restrictions.permit(peer, local))
    }
}

/// The users of a connection: at most one of each database.
#[derive(Debug, Clone, Default)]
pub struct Identity {
    pub users: Vec<Arc<AuthorizedUser>>,
    /// As of which state of users and roles.
    pub generation: u64,
    owner: Arc<Owner>,
    may_advance_clock: bool,
    /// What other processes are told of it: the same with every request.
    told: OnceLock<Arc<RawDocumentBuf>>,
}

/// Whom cursors, sessions and operations belong to: the users that one client has logged in as.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Owner {
    names: Vec<UserName>,
    digest: UserDigest,
}

impl Owner {
    pub fn new(names: Vec<UserName>) -> Owner {
        let mut hash = Sha256::new();
        for (at, name) in names.iter().enumerate() {
            // No name holds this byte.
            if at > 0 {
                hash.update([0xff]);
            }
            hash.update(name.to_string());
        }
        Owner {
            digest: hash.finalize().into(),
            names,
        }
    }

    pub fn names(&self) -> &[UserName] {
        &self.names
    }

    /// Whether it is somebody who has not logged in.
    pub fn is_nobody(&self) -> bool {
        self.names.is_empty()
    }

    /// What sessions and cursors are kept by: SHA-256 of `user@database`.
    pub fn digest(&self) -> UserDigest {
        self.digest
    }
}

impl Identity {
    pub fn new(users: Vec<Arc<AuthorizedUser>>, generation: u64) -> Identity {
        let names = users.iter().map(|user| user.name.clone()).collect();
        let mut identity = Identity {
            owner: Arc::new(Owner::new(names)),
            users,
            generation,
            may_advance_clock: false,
            told: OnceLock::new(),
        };
        identity.may_advance_clock = identity.allows(Action::AdvanceClusterTime, Resource::Cluster);
        identity
    }

    /// Whether it is believed what it says of the time, as members are. Asked with every reply, so
    /// it is found out once.
    pub fn may_advance_clock(&self) -> bool {
        self.may_advance_clock
    }

    pub fn is_authenticated(&self) -> bool {
        !self.users.is_empty()
    }

    pub fn allows(&self, action: Action, resource: Resource<'_>) -> bool {
        let mut users = self.users.iter();
        users.any(|user| user.granted.allow(action, resource))
    }

    pub fn privileges(&self) -> impl Iterator<Item = &Privileges> {
        self.users.iter().map(|user| user.granted.privileges())
    }

    /// What other processes are told of it, made when it is first asked for.
    pub fn told(&self, make: impl FnOnce() -> RawDocumentBuf) -> &Arc<RawDocumentBuf> {
        self.told.get_or_init(|| Arc::new(make()))
    }

    /// Whom belongs what this client opens.
    pub fn owner(&self) -> &Arc<Owner> {
        &self.owner
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
    is_authenticated: AtomicBool,
    /// Whom its last request was sent for, where that is somebody else, and how that was told.
    pub spoken_for: Mutex<Option<(RawDocumentBuf, Arc<Owner>)>>,
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
        let mut known = self.identity.lock();
        let is_authenticated = identity.is_authenticated();
        *known = Arc::new(identity);
        self.is_authenticated
            .store(is_authenticated, Ordering::Release);
    }
}

/// Whether somebody has logged in on a connection, as its last command left it. Asked before every
/// message is read.
pub fn is_authenticated(connection: &Connection) -> bool {
    let client = Client::of(connection);
    client.is_some_and(|client| client.is_authenticated.load(Ordering::Acquire))
}

/// As the connection's last command left it; see `AccessControl::identity` for what holds now.
pub fn known(connection: &Connection) -> Arc<Identity> {
    Client::of(connection).map_or_else(Arc::default, Client::identity)
}
