//! What the process was told about access at its start, and what it knows of users.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use banyan_replication::machine::Machine;
use banyan_replication::op_observer::Change;
use banyan_replication::replica::Replica;
use banyan_security::{UserDefinition, UserName};
use banyan_storage::Namespace;
use banyan_wire::{CommandError, Connection};
use parking_lot::Mutex;
use rand::RngCore;
use tracing::info;

use super::identity::{AuthorizedUser, Client, Identity, MEMBER_DATABASE, MEMBER_USER};
use super::members::MemberKeys;
use super::stored::{DATABASE, ROLES, Stored, USERS};
use super::throttle::Throttle;

/// What a program's flags say.
#[derive(Clone, Default)]
pub struct AccessOptions {
    /// `--auth`, or a key file: clients have to prove who they are.
    pub authorization: bool,
    /// `--transitionToAuth`: they may, and need not.
    pub transition: bool,
    /// `--keyFile`.
    pub keys: Option<Arc<MemberKeys>>,
}

/// Users that are kept at once; beyond that they are read anew.
const CACHED_MAX: usize = 10_000;

#[derive(Default)]
struct Cache {
    generation: u64,
    users: HashMap<UserName, Arc<AuthorizedUser>>,
}

pub struct AccessControl {
    options: AccessOptions,
    /// Makes salts for users that do not exist.
    pub secret: [u8; 32],
    /// Grows when a user or a role has changed.
    generation: Arc<AtomicU64>,
    cache: Mutex<Cache>,
    throttle: Throttle,
    /// Held by whoever changes users or roles.
    pub changes: tokio::sync::Mutex<()>,
}

impl AccessControl {
    pub fn new(options: AccessOptions) -> AccessControl {
        let mut secret = [0; 32];
        rand::rng().fill_bytes(&mut secret);
        AccessControl {
            options,
            secret,
            generation: Arc::new(AtomicU64::new(1)),
            cache: Mutex::default(),
            throttle: Throttle::default(),
            changes: tokio::sync::Mutex::default(),
        }
    }

    /// Whether requests are checked.
    pub fn is_enforced(&self) -> bool {
        self.options.authorization && !self.options.transition
    }

    pub fn member_keys(&self) -> Option<&Arc<MemberKeys>> {
        self.options.keys.as_ref()
    }

    /// Has what is known of users forgotten when the log changes them.
    pub fn watch(&self, machine: &Machine) {
        if !self.options.authorization {
            return;
        }
        for collection in [USERS, ROLES] {
            let generation = self.generation.clone();
            let listener = move |_: Option<Change<'_>>| {
                generation.fetch_add(1, Ordering::Release);
            };
            machine.watch_collection(Namespace::new(DATABASE, collection), Box::new(listener));
        }
    }

    /// `invalidateUserCache`.
    pub fn forget_users(&self) {
        self.generation.fetch_add(1, Ordering::Release);
    }

    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The users of a connection as of now: one that was dropped has left, and roles are those of
    /// the last change.
    pub fn identity(
        &self,
        replica: &Replica,
        connection: &Connection,
    ) -> Result<Arc<Identity>, CommandError> {
        let Some(client) = Client::of(connection) else {
            return Ok(Arc::default());
        };
        let known = client.identity();
        if !known.is_authenticated() || known.generation == self.generation() {
            return Ok(known);
        }
        let generation = self.generation();
        let mut users = Vec::with_capacity(known.users.len());
        for user in &known.users {
            let found = match user.is_member() {
                true => Some(user.clone()),
                false => self.user(replica, &user.name)?,
            };
            match found.filter(|found| found.id == user.id) {
                Some(found) => users.push(found),
                None => info!(connection = connection.id, user = %user.name, "user is gone"),
            }
        }
        client.set_identity(Identity::new(users, generation));
        Ok(client.identity())
    }

    /// A user and what it may do.
    pub fn user(
        &self,
        replica: &Replica,
        name: &UserName,
    ) -> Result<Option<Arc<AuthorizedUser>>, CommandError> {
        // Read before the state is: a change meanwhile has it read again.
        let generation = self.generation();
        if self.options.authorization {
            let cache = self.cache.lock();
            if cache.generation == generation
                && let Some(user) = cache.users.get(name)
            {
                return Ok(Some(user.clone()));
            }
        }
        let stored = Stored::new(replica.view());
        let Some(definition) = stored.user(name)? else {
            return Ok(None);
        };
        let user = Arc::new(authorized(&stored, definition)?);
        if self.options.authorization {
            let mut cache = self.cache.lock();
            if cache.generation != generation || cache.users.len() >= CACHED_MAX {
                cache.users.clear();
                cache.generation = generation;
            }
            cache.users.insert(name.clone(), user.clone());
        }
        Ok(Some(user))
    }

    /// A user has proved itself on a connection.
    pub fn enter(&self, connection: &Connection, user: Arc<AuthorizedUser>) {
        self.throttle.succeeded(connection.peer.ip());
        let Some(client) = Client::of(connection) else {
            return;
        };
        let known = client.identity();
        let others = known.users.iter();
        let others = others.filter(|other| other.name.database != user.name.database);
        let mut users: Vec<_> = others.cloned().collect();
        users.push(user);
        // They are looked at again with the next command: something may have changed meanwhile.
        client.set_identity(Identity::new(users, 0));
    }

    /// How long the reply to a failed login waits.
    pub fn failed(&self, connection: &Connection) -> Duration {
        self.throttle.failed(connection.peer.ip())
    }

    /// Whether there is nobody yet who could log in, and the client sits at this machine.
    pub fn is_localhost_exception(&self, replica: &Replica, connection: &Connection) -> bool {
        connection.peer.ip().to_canonical().is_loopback()
            && !Stored::new(replica.view()).has_users_or_roles()
    }
}

pub fn authorized(
    stored: &Stored,
    definition: UserDefinition,
) -> Result<AuthorizedUser, CommandError> {
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

/// The name by which members know each other.
pub fn is_member_name(name: &UserName) -> bool {
    name.user == MEMBER_USER && name.database == MEMBER_DATABASE
}
