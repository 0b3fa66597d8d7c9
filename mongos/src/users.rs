//! The cluster's users, who are kept by the config servers.
//!
//! A router remembers users, and what their roles grant, for as long as the config servers say that
//! nothing has changed: it is told of a change as soon as there is one, and asks again when it has
//! heard nothing for a while (`userCacheInvalidationIntervalSecs`). While the config servers cannot
//! be asked, who is logged in keeps what it had, as in MongoDB.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use banyan_access::control::{AccessControl, AccessOptions, is_member_name};
use banyan_access::identity::{AuthorizedUser, Client, Identity};
use banyan_access::users::FetchedUser;
use banyan_security::UserName;
use banyan_wire::{CommandError, Connection, ErrorCode, ReadMode, ReplicaSet, RequestOptions};
use bson::oid::ObjectId;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::fields;

/// How long a user is looked for.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);
/// Requests do not wait for config servers again that could not be reached a moment ago.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Users are fetched one after the other in this many lines: what many connections want to know
/// is asked for once.
const LINES: usize = 16;

/// `userCacheInvalidationIntervalSecs`.
pub const INTERVAL_SECONDS_DEFAULT: i64 = 30;
pub const INTERVAL_SECONDS_MAX: i64 = 86_400;

pub struct ClusterUsers {
    pub access: AccessControl,
    /// How long nothing is heard of the config servers until they are asked again, in seconds.
    pub interval_seconds: AtomicI64,
    /// `enableLocalhostAuthBypass`.
    pub localhost_bypass: AtomicBool,
    config: ReplicaSet,
    /// There have been users: from then on clients on this machine are like any other.
    any_known: AtomicBool,
    unreachable_at: Mutex<Option<Instant>>,
    lines: [tokio::sync::Mutex<()>; LINES],
}

impl ClusterUsers {
    pub fn new(options: AccessOptions, config: ReplicaSet) -> ClusterUsers {
        ClusterUsers {
            access: AccessControl::new(options),
            interval_seconds: AtomicI64::new(INTERVAL_SECONDS_DEFAULT),
            localhost_bypass: AtomicBool::new(true),
            config,
            any_known: AtomicBool::new(false),
            unreachable_at: Mutex::default(),
            lines: Default::default(),
        }
    }

    async fn ask(
        &self,
        command: &RawDocument,
        timeout: Duration,
    ) -> Result<RawDocumentBuf, CommandError> {
        let options = RequestOptions::read(ReadMode::Primary)
            .timeout(Some(timeout))
            .server_selection_timeout(FETCH_TIMEOUT);
        Ok(self.config.command(options, "admin", command).await?)
    }

    /// A user as it is now.
    pub async fn fetch(&self, name: &UserName) -> Result<Option<FetchedUser>, CommandError> {
        if is_member_name(name) || !self.access.has_users() {
            return Ok(None);
        }
        // Read before the user is: a change meanwhile has it read again.
        let generation = self.access.generation();
        let command = rawdoc! {
            "usersInfo": { "user": name.user.as_str(), "db": name.database.as_str() },
            "showCredentials": true,
            "showCustomData": false,
            "showPrivileges": true,
            "showAuthenticationRestrictions": true,
        };
        let reply = self.ask(&command, FETCH_TIMEOUT).await?;
        let Some(RawBsonRef::Array(users)) = fields::get(&reply, "users") else {
            return Err(unreadable(name, "no array of users"));
        };
        let Some(Ok(RawBsonRef::Document(user))) = users.into_iter().next() else {
            return Ok(None);
        };
        let user =
            FetchedUser::parse(user).map_err(|error| unreadable(name, &error.to_string()))?;
        self.access.keep(generation, user.authorized.clone());
        Ok(Some(user))
    }

    async fn authorized(
        &self,
        name: &UserName,
    ) -> Result<Option<Arc<AuthorizedUser>>, CommandError> {
        if let Some(user) = self.access.cached(name) {
            return Ok(Some(user));
        }
        let line = name
            .user
            .bytes()
            .fold(0, |sum, byte| sum + usize::from(byte));
        let _turn = self.lines[line % LINES].lock().await;
        if let Some(user) = self.access.cached(name) {
            return Ok(Some(user));
        }
        let failed_just_now = |at: Instant| at.elapsed() < RETRY_AFTER;
        if self.unreachable_at.lock().is_some_and(failed_just_now) {
            let text = "the config servers cannot be reached";
            return Err(CommandError::new(ErrorCode::HostUnreachable, text));
        }
        let fetched = self.fetch(name).await;
        if fetched.is_err() {
            *self.unreachable_at.lock() = Some(Instant::now());
        }
        Ok(fetched?.map(|user| user.authorized))
    }

    /// The users of a connection as of now: one that was dropped has left, and roles are those of
    /// the last change.
    pub async fn identity(&self, connection: &Connection) -> Arc<Identity> {
        let Some(client) = Client::of(connection) else {
            return Arc::default();
        };
        let known = client.identity();
        if self.access.is_current(&known) {
            return known;
        }
        let generation = self.access.generation();
        let mut found = Vec::with_capacity(known.users.len());
        for user in &known.users {
            found.push(match user.is_member() {
                true => Some(user.clone()),
                false => match self.authorized(&user.name).await {
                    Ok(found) => found,
                    Err(error) => {
                        debug!(user = %user.name, %error, "cannot look again what a user may do");
                        return known;
                    }
                },
            });
        }
        self.access.renew(connection, &known, found, generation)
    }

    /// Whether there is nobody yet who could log in, and the client sits at this machine.
    pub async fn is_localhost_exception(&self, connection: &Connection) -> bool {
        if !connection.peer.ip().to_canonical().is_loopback()
            || !self.localhost_bypass.load(Ordering::Relaxed)
            || self.any_known.load(Ordering::Relaxed)
        {
            return false;
        }
        match self.are_there_any().await {
            Ok(any) => {
                self.any_known.fetch_or(any, Ordering::Relaxed);
                !any
            }
            Err(error) => {
                debug!(%error, "cannot tell whether there are users");
                false
            }
        }
    }

    async fn are_there_any(&self) -> Result<bool, CommandError> {
        for collection in ["system.users", "system.roles"] {
            let command = rawdoc! { "find": collection, "limit": 1, "singleBatch": true };
            let reply = self.ask(&command, FETCH_TIMEOUT).await?;
            let batch = reply
                .get_document("cursor")
                .and_then(|cursor| cursor.get_array("firstBatch"));
            if batch.is_ok_and(|batch| !batch.is_empty()) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Notices changes for as long as the router runs.
    pub async fn follow_changes(&self, stop: CancellationToken) {
        if !self.access.has_users() {
            return;
        }
        let mut known = None;
        loop {
            let asked = Instant::now();
            let pause = tokio::select! {
                () = stop.cancelled() => return,
                heard = self.hear(known) => match heard {
                    Ok(generation) if known != Some(generation) => {
                        known = Some(generation);
                        self.access.forget_users();
                        Duration::ZERO
                    }
                    // It waits before it says that nothing has changed.
                    Ok(_) => RETRY_AFTER.saturating_sub(asked.elapsed()),
                    Err(error) => {
                        debug!(%error, "cannot ask whether users have changed");
                        RETRY_AFTER
                    }
                },
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// As of which state the config servers have users: another one than `known`, or the same
    /// after a while.
    async fn hear(&self, known: Option<ObjectId>) -> Result<ObjectId, CommandError> {
        let seconds = self.interval_seconds.load(Ordering::Relaxed);
        let wait = Duration::from_secs(seconds.unsigned_abs());
        let mut command = rawdoc! { "_getUserCacheGeneration": 1 };
        if let Some(known) = known {
            command.append(cstr!("known"), known);
            command.append(cstr!("maxAwaitTimeMS"), seconds.saturating_mul(1_000));
        }
        let reply = self.ask(&command, wait + FETCH_TIMEOUT).await?;
        match fields::get(&reply, "cacheGeneration") {
            Some(RawBsonRef::ObjectId(generation)) => Ok(generation),
            _ => Err(CommandError::new(
                ErrorCode::NoSuchKey,
                "the config servers do not tell their generation of users",
            )),
        }
    }
}

fn unreadable(name: &UserName, reason: &str) -> CommandError {
    CommandError::new(
        ErrorCode::UnsupportedFormat,
        format!("what the config servers tell of {name} cannot be read: {reason}"),
    )
}
