//! What the process was told about access at its start, and what it knows of users.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use banyan_security::UserName;
use banyan_wire::{Connection, login};
use bson::oid::ObjectId;
use parking_lot::Mutex;
use rand::RngCore;
use tokio::sync::Notify;
use tracing::info;

use crate::cluster_time::ClusterTimes;
use crate::identity::{AuthorizedUser, Client, Identity, MEMBER_DATABASE, MEMBER_USER};
use crate::members::MemberKeys;
use crate::throttle::Throttle;

/// What a program's flags say.
#[derive(Clone, Default)]
pub struct AccessOptions {
    /// `--auth`, or what members prove to each other: clients have to prove who they are.
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

/// Grows when a user or a role has changed, and wakes who waits for that.
pub struct Generation {
    /// Tells this life of the process from others.
    life: [u8; 4],
    count: AtomicU64,
    changed: Notify,
}

impl Generation {
    fn new() -> Generation {
        let mut life = [0; 4];
        rand::rng().fill_bytes(&mut life);
        Generation {
            life,
            count: AtomicU64::new(1),
            changed: Notify::new(),
        }
    }

    pub fn grow(&self) {
        self.count.fetch_add(1, Ordering::Release);
        self.changed.notify_waiters();
    }

    fn now(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// As other processes are told of it: it is another one after every change, and in another
    /// life of the process.
    pub fn shown(&self) -> ObjectId {
        let mut bytes = [0; 12];
        bytes[..4].copy_from_slice(&self.life);
        bytes[4..].copy_from_slice(&self.now().to_be_bytes());
        ObjectId::from_bytes(bytes)
    }

    /// Waits until it is shown as something else than `known`.
    pub async fn passed(&self, known: ObjectId) -> ObjectId {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Before it is looked at: a change meanwhile must not be missed.
            changed.as_mut().enable();
            let shown = self.shown();
            if shown != known {
                return shown;
            }
            changed.await;
        }
    }
}

pub struct AccessControl {
    options: AccessOptions,
    /// Makes salts for users that do not exist.
    pub secret: [u8; 32],
    /// What signs cluster times.
    pub times: Arc<ClusterTimes>,
    generation: Arc<Generation>,
    cache: Mutex<Cache>,
    throttle: Throttle,
}

impl AccessControl {
    pub fn new(options: AccessOptions) -> AccessControl {
        let mut secret = [0; 32];
        rand::rng().fill_bytes(&mut secret);
        AccessControl {
            options,
            secret,
            times: Arc::default(),
            generation: Arc::new(Generation::new()),
            cache: Mutex::default(),
            throttle: Throttle::default(),
        }
    }

    /// Whether requests are checked.
    pub fn is_enforced(&self) -> bool {
        self.options.authorization && !self.options.transition
    }

    /// Whether there are users who may log in.
    pub fn has_users(&self) -> bool {
        self.options.authorization
    }

    /// The keys that members may prove; none where they have to show certificates.
    pub fn member_keys(&self) -> Option<&Arc<MemberKeys>> {
        let keys = self.options.keys.as_ref();
        keys.filter(|_| login::cluster_auth_mode().takes_key_file())
    }

    /// Has what is known of users forgotten: one of them, or a role, is another one now.
    pub fn forget_users(&self) {
        self.generation.grow();
    }

    pub fn generations(&self) -> &Arc<Generation> {
        &self.generation
    }

    /// As of which state a user is that is read from now on.
    pub fn generation(&self) -> u64 {
        self.generation.now()
    }

    /// A user that was read before, if nothing has changed since.
    pub fn cached(&self, name: &UserName) -> Option<Arc<AuthorizedUser>> {
        let cache = self.cache.lock();
        let is_current = cache.generation == self.generation();
        is_current.then(|| cache.users.get(name).cloned()).flatten()
    }

    /// Keeps a user; `generation` is that of before it was read.
    pub fn keep(&self, generation: u64, user: Arc<AuthorizedUser>) {
        if !self.options.authorization {
            return;
        }
        let mut cache = self.cache.lock();
        if cache.generation > generation {
            return;
        }
        if cache.generation != generation || cache.users.len() >= CACHED_MAX {
            cache.users.clear();
            cache.generation = generation;
        }
        cache.users.insert(user.name.clone(), user);
    }

    /// Whether what is known of a client's users still holds.
    pub fn is_current(&self, known: &Identity) -> bool {
        !known.is_authenticated() || known.generation == self.generation()
    }

    /// The client's users were looked for again, in the order that they have: who is not there any
    /// more, or is somebody else of that name, has left.
    pub fn renew(
        &self,
        connection: &Connection,
        known: &Identity,
        found: Vec<Option<Arc<AuthorizedUser>>>,
        generation: u64,
    ) -> Arc<Identity> {
        let mut users = Vec::with_capacity(found.len());
        for (user, found) in known.users.iter().zip(found) {
            match found.filter(|found| found.id == user.id) {
                Some(found) => users.push(found),
                None => info!(connection = connection.id, user = %user.name, "user is gone"),
            }
        }
        let Some(client) = Client::of(connection) else {
            return Arc::default();
        };
        client.set_identity(Identity::new(users, generation));
        client.identity()
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

    /// The reply to a login that failed waits, so that guessing takes long. Answers how long.
    pub async fn slow_down(&self, connection: &Connection) -> Duration {
        let delay = self.failed(connection);
        tokio::select! {
            () = tokio::time::sleep(delay) => {}
            () = connection.closed().cancelled() => {}
        }
        delay
    }
}

/// The name by which members know each other.
pub fn is_member_name(name: &UserName) -> bool {
    name.user == MEMBER_USER && name.database == MEMBER_DATABASE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_waits_for_a_change_is_told_of_it() {
        let generation = Arc::new(Generation::new());
        let known = generation.shown();
        let waiting = tokio::spawn({
            let generation = generation.clone();
            async move { generation.passed(known).await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        generation.grow();
        assert_eq!(waiting.await.unwrap(), generation.shown());
        assert_ne!(generation.shown(), known);
        assert_eq!(generation.passed(known).await, generation.shown());
        assert_ne!(Generation::new().life, generation.life);
    }

    #[test]
    fn what_was_read_before_a_change_is_not_kept() {
        let options = AccessOptions {
            authorization: true,
            ..AccessOptions::default()
        };
        let access = AccessControl::new(options);
        let user = Arc::new(AuthorizedUser {
            name: UserName::new("a", "b"),
            id: None,
            roles: Vec::new(),
            granted: Default::default(),
            restrictions: Default::default(),
        });
        let before = access.generation();
        access.keep(before, user.clone());
        assert!(access.cached(&user.name).is_some());
        access.forget_users();
        assert!(access.cached(&user.name).is_none());
        access.keep(before, user.clone());
        assert!(
            access.cached(&user.name).is_none(),
            "read before the change"
        );
        access.keep(access.generation(), user.clone());
        assert!(access.cached(&user.name).is_some());
    }
}
