//! A client of a replica set, or of a single server: finds the member to talk to.
//!
//! The topology of the set ([`topology`]) is taken with `hello` when it is first needed and again when a
//! member refuses or can't be reached. A set that is used all the time is also watched
//! ([`monitor`]): its members tell of changes by themselves.

mod monitor;
mod topology;

use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use banyan_document::validate::validate_with_depth;
use bson::{RawDocument, RawDocumentBuf, rawdoc};
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::ErrorCode;
use crate::client::{ClientError, Pool, PoolOptions};
use crate::error::CommandError;
use crate::message::COMMAND_DEPTH_MAX;
use crate::outgoing::Outgoing;
use crate::read_preference::{ReadMode, ReadPreference};
use crate::selection::Kind;
use topology::{Greeting, Topology};

#[derive(Debug, thiserror::Error)]
pub enum ReplicaSetError {
    #[error("not a server or a set: {0:?} (expected host:port or set/host:port,host:port)")]
    Address(String),
    #[error(
        "Could not find host matching read preference {{ mode: \"{mode}\" }} for set {set} \
             within {waited:?}: {last}"
    )]
    NoMember {
        set: String,
        mode: &'static str,
        waited: Duration,
        last: String,
    },
    /// What whoever asked had allowed for the whole of it has passed.
    #[error("operation exceeded time limit")]
    Expired,
    #[error(transparent)]
    Client(#[from] ClientError),
}

impl ReplicaSetError {
    pub fn code(&self) -> ErrorCode {
        match self {
            ReplicaSetError::Address(_) => ErrorCode::FailedToParse,
            ReplicaSetError::NoMember { .. } => ErrorCode::FailedToSatisfyReadPreference,
            ReplicaSetError::Expired => ErrorCode::MaxTimeMSExpired,
            ReplicaSetError::Client(error) => error.code(),
        }
    }
}

impl From<ReplicaSetError> for CommandError {
    fn from(error: ReplicaSetError) -> CommandError {
        match error {
            ReplicaSetError::Client(error) => error.into(),
            other => CommandError::new(other.code(), other.to_string()),
        }
    }
}

/// How a request is sent, and how often it may be sent again.
#[derive(Clone, Debug)]
pub struct RequestOptions {
    pub preference: ReadPreference,
    /// Running it twice does no harm, so it is sent again when nobody knows whether it ran.
    pub idempotent: bool,
    /// For one attempt.
    pub timeout: Option<Duration>,
    /// How long a member that serves is looked for, as the drivers' option of this name.
    pub server_selection_timeout: Duration,
    /// A primary that takes longer to answer makes the others be asked who the primary is.
    pub ask_others_after: Duration,
    /// When all of it is given up, whatever it is that is waited for: the end of the client's
    /// `maxTimeMS`.
    pub deadline: Option<Instant>,
}

/// An election takes a second or two; a restart of the whole set a little longer.
const SERVER_SELECTION_TIMEOUT: Duration = Duration::from_secs(20);
const HELLO_TIMEOUT: Duration = Duration::from_secs(2);
const ASK_OTHERS_AFTER: Duration = Duration::from_secs(2);
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(50);
/// How often in a row another member is tried without looking at the set again.
const AT_ONCE_MAX: u32 = 3;

impl RequestOptions {
    pub fn read(preference: impl Into<ReadPreference>) -> RequestOptions {
        RequestOptions {
            preference: preference.into(),
            idempotent: true,
            timeout: None,
            server_selection_timeout: SERVER_SELECTION_TIMEOUT,
            ask_others_after: ASK_OTHERS_AFTER,
            deadline: None,
        }
    }

    pub fn write() -> RequestOptions {
        RequestOptions {
            idempotent: false,
            ..RequestOptions::read(ReadMode::Primary)
        }
    }

    pub fn ask_others_after(self, ask_others_after: Duration) -> RequestOptions {
        RequestOptions {
            ask_others_after,
            ..self
        }
    }

    pub fn timeout(self, timeout: Option<Duration>) -> RequestOptions {
        RequestOptions { timeout, ..self }
    }

    pub fn idempotent(self) -> RequestOptions {
        RequestOptions {
            idempotent: true,
            ..self
        }
    }

    pub fn server_selection_timeout(self, server_selection_timeout: Duration) -> RequestOptions {
        RequestOptions {
            server_selection_timeout,
            ..self
        }
    }

    pub fn deadline(self, deadline: Option<Instant>) -> RequestOptions {
        RequestOptions { deadline, ..self }
    }
}

#[derive(Clone)]
pub struct ReplicaSet {
    inner: Arc<Inner>,
}

struct Inner {
    name: Option<String>,
    seeds: Vec<String>,
    options: PoolOptions,
    pools: Mutex<HashMap<String, Pool>>,
    topology: RwLock<Arc<Topology>>,
    /// Sent when the topology has changed.
    changes: watch::Sender<()>,
    looking: tokio::sync::Mutex<()>,
    monitored: OnceLock<()>,
    turn: AtomicUsize,
}

impl ReplicaSet {
    /// Reads `set/host:port,host:port` or `host:port`.
    pub fn parse(address: &str, options: PoolOptions) -> Result<ReplicaSet, ReplicaSetError> {
        let wrong = || ReplicaSetError::Address(address.to_owned());
        let (name, hosts) = match address.split_once('/') {
            Some((name, hosts)) if !name.is_empty() => (Some(name.to_owned()), hosts),
            Some(_) => return Err(wrong()),
            None => (None, address),
        };
        let seeds: Vec<String> = hosts
            .split(',')
            .map(|host| host.trim().to_owned())
            .collect();
        if seeds.iter().any(|seed| !is_host_and_port(seed)) {
            return Err(wrong());
        }
        Ok(ReplicaSet::new(name, seeds, options))
    }

    /// A set of that name (any, if there is none) that has these members among its own.
    pub fn new(name: Option<String>, seeds: Vec<String>, options: PoolOptions) -> ReplicaSet {
        let inner = Inner {
            name,
            seeds,
            options,
            pools: Mutex::default(),
            topology: RwLock::default(),
            changes: watch::Sender::new(()),
            looking: tokio::sync::Mutex::default(),
            monitored: OnceLock::new(),
            turn: AtomicUsize::new(0),
        };
        ReplicaSet {
            inner: Arc::new(inner),
        }
    }

    pub fn name(&self) -> Option<&str> {
        self.inner.name.as_deref()
    }

    pub fn seeds(&self) -> &[String] {
        &self.inner.seeds
    }

    /// The members as the set itself names them, once it has been looked at; the seeds before.
    pub fn members(&self) -> Vec<String> {
        self.inner.members()
    }

    /// The address of the primary that was last seen.
    pub fn primary(&self) -> Option<String> {
        let topology = self.topology();
        topology.primary().map(|pool| pool.address().to_owned())
    }

    pub fn pool(&self, address: &str) -> Pool {
        self.inner.pool(address)
    }

    /// Runs a command (without `$db`); an `ok: 0` reply is an error.
    pub async fn command(
        &self,
        request_options: RequestOptions,
        database: &str,
        body: &RawDocument,
    ) -> Result<RawDocumentBuf, ReplicaSetError> {
        let (reply, pool) = self
            .exchange(request_options, &Outgoing::command(database, body))
            .await?;
        if validate_with_depth(reply.as_bytes(), COMMAND_DEPTH_MAX).is_err() {
            let address = pool.address().to_owned();
            return Err(ClientError::Protocol {
                address,
                what: "malformed BSON",
            }
            .into());
        }
        match CommandError::from_reply(&reply) {
            Some(error) => Err(ClientError::Command(error).into()),
            None => Ok(reply),
        }
    }

    /// Sends a prepared request and returns the reply whatever it says, with the member that gave
    /// it. Members that refuse because of their state, and (for what is idempotent) failed
    /// connections, are looked past until the request_options's server_selection_timeout or its deadline ends.
    pub async fn exchange(
        &self,
        request_options: RequestOptions,
        request: &Outgoing,
    ) -> Result<(RawDocumentBuf, Pool), ReplicaSetError> {
        let Some(deadline) = request_options.deadline else {
            return self.patiently(request_options, request).await;
        };
        let exchange = self.patiently(request_options, request);
        match tokio::time::timeout_at(deadline, exchange).await {
            Ok(outcome) => outcome,
            Err(_) => Err(ReplicaSetError::Expired),
        }
    }

    async fn patiently(
        &self,
        request_options: RequestOptions,
        request: &Outgoing,
    ) -> Result<(RawDocumentBuf, Pool), ReplicaSetError> {
        let started = Instant::now();
        let mut last = "no member is known".to_owned();
        let mut attempts = 0;
        loop {
            let topology = self.topology();
            if let Some(pool) = topology.choose(&request_options.preference, self.turn()) {
                match self.watched(pool, &request_options, request).await {
                    Ok(reply) => match refusal(&reply, request_options.idempotent) {
                        Some(error)
                            if started.elapsed() < request_options.server_selection_timeout =>
                        {
                            last = format!("{}: {error}", pool.address());
                            self.lost(pool, &topology, Kind::Other);
                        }
                        _ => return Ok((reply, pool.clone())),
                    },
                    Err(error) => {
                        let again = request_options.idempotent || !error.may_have_run();
                        let timeout = matches!(error, ClientError::Timeout { .. });
                        pool.clear();
                        self.lost(pool, &topology, Kind::Unknown);
                        if timeout
                            || !again
                            || started.elapsed() >= request_options.server_selection_timeout
                        {
                            return Err(error.into());
                        }
                        last = error.to_string();
                    }
                }
                // Another member may serve it right away.
                let topology = self.topology();
                let elsewhere = topology.choose(&request_options.preference, 0);
                attempts += 1;
                if elsewhere.is_some() && attempts <= AT_ONCE_MAX {
                    continue;
                }
            }
            if started.elapsed() >= request_options.server_selection_timeout {
                return Err(self.no_member(&request_options, last));
            }
            attempts += 1;
            let looked = tokio::select! {
                looked = self.look(topology.generation, &request_options.preference) => looked,
                () = self.suits(&request_options.preference) => Ok(()),
            };
            // A member that calls itself primary and refuses all the same is given a moment.
            let pause = looked.is_err() || attempts > 1;
            if let Err(reason) = looked {
                last = reason;
            }
            if pause {
                tokio::time::sleep(LOOK_AGAIN_AFTER).await;
            }
        }
    }

    /// One exchange with a member. A primary that hangs would be waited for without end: while it
    /// takes long, the others are asked now and then whether one of them is the primary by now; if
    /// the set is watched, they tell by themselves.
    async fn watched(
        &self,
        pool: &Pool,
        request_options: &RequestOptions,
        request: &Outgoing,
    ) -> Result<RawDocumentBuf, ClientError> {
        let mut exchange = pin!(pool.exchange(request, request_options.timeout));
        if request_options.preference.mode != ReadMode::Primary {
            return exchange.await;
        }
        let mut changes = self.inner.changes.subscribe();
        let mut ask_at = Instant::now() + request_options.ask_others_after;
        loop {
            let primary = tokio::select! {
                biased;
                outcome = &mut exchange => return outcome,
                _ = changes.changed() => self.topology().primary().cloned(),
                () = tokio::time::sleep_until(ask_at) => {
                    ask_at = Instant::now() + request_options.ask_others_after;
                    self.other_primary(pool).await
                }
            };
            if let Some(other) = primary.filter(|primary| !primary.is(pool)) {
                let text = format!("{} is the primary now", other.address());
                return Err(ClientError::Io {
                    address: pool.address().to_owned(),
                    source: std::io::Error::other(text),
                });
            }
        }
    }

    async fn other_primary(&self, pool: &Pool) -> Option<Pool> {
        let (greetings, _) = self.greet_everyone().await;
        let mut others = greetings.into_iter();
        others
            .find(|(other, said)| said.described.kind == Kind::Primary && !other.is(pool))
            .map(|(other, _)| other)
    }

    /// Resolves once a member is known that suits.
    async fn suits(&self, preference: &ReadPreference) {
        let mut changes = self.inner.changes.subscribe();
        while self.topology().choose(preference, 0).is_none() {
            if changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    fn turn(&self) -> usize {
        self.inner.turn.fetch_add(1, Ordering::Relaxed)
    }

    fn no_member(&self, request_options: &RequestOptions, last: String) -> ReplicaSetError {
        let mode = request_options.preference.mode.name();
        let set = match &self.inner.name {
            Some(name) => name.clone(),
            None => self.inner.seeds.join(","),
        };
        ReplicaSetError::NoMember {
            set,
            mode,
            waited: request_options.server_selection_timeout,
            last,
        }
    }

    fn topology(&self) -> Arc<Topology> {
        self.inner.topology.read().clone()
    }

    /// The next request does without this member until it is heard of again; unless it has been
    /// since it was `seen` to suit.
    fn lost(&self, pool: &Pool, seen: &Topology, kind: Kind) {
        self.inner.change(
            |topology| match topology.heard_at(pool) == seen.heard_at(pool) {
                true => topology.lost(pool, kind),
                false => topology.clone(),
            },
        );
    }

    /// Asks everybody unless somebody else has since `generation`; an error says what was seen
    /// instead of a member that suits.
    async fn look(&self, generation: u64, preference: &ReadPreference) -> Result<(), String> {
        let _one_at_a_time = self.inner.looking.lock().await;
        let topology = self.topology();
        if topology.generation != generation && topology.choose(preference, 0).is_some() {
            return Ok(());
        }
        let (greetings, failures) = self.greet_everyone().await;
        for (pool, greeting) in greetings {
            self.inner
                .change(|topology| topology.heard(&pool, greeting, None));
        }
        if self.topology().choose(preference, 0).is_some() {
            Ok(())
        } else {
            Err(failures.join("; "))
        }
    }

    /// Asks all known members at once; stops waiting as soon as the primary has answered and the
    /// others had a moment to.
    async fn greet_everyone(&self) -> (Vec<(Pool, Greeting)>, Vec<String>) {
        let mut asked = JoinSet::new();
        for address in self.inner.addresses() {
            let (pool, name) = (self.pool(&address), self.inner.name.clone());
            asked.spawn(async move {
                let greeted = greet(&pool, name.as_deref()).await;
                (pool, greeted)
            });
        }
        let (mut greetings, mut failures) = (Vec::new(), Vec::new());
        let mut enough_at = Instant::now() + HELLO_TIMEOUT;
        while let Ok(Some(answer)) = tokio::time::timeout_at(enough_at, asked.join_next()).await {
            match answer {
                Ok((pool, Ok(greeting))) => {
                    let address = pool.address();
                    match greeting.described.kind {
                        Kind::Primary => {
                            enough_at = enough_at.min(Instant::now() + Duration::from_millis(20));
                        }
                        Kind::Secondary => failures.push(format!("{address} is secondary")),
                        Kind::Other | Kind::Unknown => {
                            failures.push(format!("{address} is neither primary nor secondary"));
                        }
                    }
                    greetings.push((pool, greeting));
                }
                Ok((pool, Err(reason))) => {
                    self.inner
                        .change(|topology| topology.lost(&pool, Kind::Unknown));
                    failures.push(reason);
                }
                Err(error) => failures.push(error.to_string()),
            }
        }
        (greetings, failures)
    }
}

impl Inner {
    fn members(&self) -> Vec<String> {
        let topology = self.topology.read();
        if topology.hosts.is_empty() {
            self.seeds.clone()
        } else {
            topology.hosts.clone()
        }
    }

    /// The members and the seeds.
    fn addresses(&self) -> Vec<String> {
        let mut addresses = self.members();
        for seed in &self.seeds {
            if !addresses.contains(seed) {
                addresses.push(seed.clone());
            }
        }
        addresses
    }

    fn pool(&self, address: &str) -> Pool {
        let mut pools = self.pools.lock();
        let make = || Pool::new(address, self.options.clone());
        pools.entry(address.to_owned()).or_insert_with(make).clone()
    }

    fn change(&self, next: impl FnOnce(&Topology) -> Topology) {
        let mut topology = self.topology.write();
        *topology = Arc::new(next(&topology));
        drop(topology);
        self.changes.send_replace(());
    }
}

async fn greet(pool: &Pool, name: Option<&str>) -> Result<Greeting, String> {
    let hello = rawdoc! {"hello": 1};
    let reply = pool
        .command("admin", &hello, Some(HELLO_TIMEOUT))
        .await
        .map_err(|error| error.to_string())?;
    Greeting::read(&reply, name).map_err(|reason| format!("{} {reason}", pool.address()))
}

/// The error in a reply that another member would not have given, or this one a moment later.
fn refusal(reply: &RawDocument, idempotent: bool) -> Option<CommandError> {
    let error = CommandError::from_reply(reply)?;
    let not_run = matches!(
        error.code,
        ErrorCode::NotWritablePrimary
            | ErrorCode::NotPrimaryNoSecondaryOk
            | ErrorCode::NotPrimaryOrSecondary
            | ErrorCode::ShutdownInProgress
    );
    let again = not_run || idempotent && (error.code.is_not_primary() || error.code.is_shutdown());
    again.then_some(error)
}

fn is_host_and_port(address: &str) -> bool {
    address
        .rsplit_once(':')
        .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn addresses_parse() {
        let options = PoolOptions::default;
        let set = ReplicaSet::parse("set_a/a:1,b:2", options()).unwrap();
        assert_eq!((set.name(), set.seeds().len()), (Some("set_a"), 2));
        assert_eq!(ReplicaSet::parse("a:1", options()).unwrap().name(), None);
        for wrong in ["", "a", "set/", "/a:1", "a:1,b", "set/a:1,:2", "a:99999"] {
            assert!(ReplicaSet::parse(wrong, options()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn refusals_are_told_from_errors() {
        let refused = |code: i32, idempotent| {
            refusal(&rawdoc! {"ok": 0.0, "errmsg": "", "code": code}, idempotent).is_some()
        };
        assert!(refused(10107, false));
        assert!(!refused(11602, false));
        assert!(refused(11602, true));
        assert!(!refused(11000, true));
        assert!(refusal(&rawdoc! {"ok": 1.0}, true).is_none());
    }
}
