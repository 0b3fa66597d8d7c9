//! A client of a replica set, or of a single server: finds the member to talk to.
//!
//! The view of the set is taken with `hello` when it is first needed and again when a member
//! refuses or can't be reached; there is no background polling.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use banyan_document::validate::validate_with_depth;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use parking_lot::{Mutex, RwLock};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::ErrorCode;
use crate::client::{ClientError, Pool, PoolOptions};
use crate::error::CommandError;
use crate::message::COMMAND_DEPTH_MAX;
use crate::outgoing::Outgoing;

/// Which member may answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadPreference {
    #[default]
    Primary,
    PrimaryPreferred,
    Secondary,
    SecondaryPreferred,
    Nearest,
}

impl ReadPreference {
    /// Reads `{mode: …}` as drivers send it in `$readPreference`.
    pub fn parse(document: &RawDocument) -> Option<ReadPreference> {
        match document.get_str("mode").ok()? {
            "primary" => Some(ReadPreference::Primary),
            "primaryPreferred" => Some(ReadPreference::PrimaryPreferred),
            "secondary" => Some(ReadPreference::Secondary),
            "secondaryPreferred" => Some(ReadPreference::SecondaryPreferred),
            "nearest" => Some(ReadPreference::Nearest),
            _ => None,
        }
    }
}

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
    #[error(transparent)]
    Client(#[from] ClientError),
}

impl ReplicaSetError {
    pub fn code(&self) -> ErrorCode {
        match self {
            ReplicaSetError::Address(_) => ErrorCode::FailedToParse,
            ReplicaSetError::NoMember { .. } => ErrorCode::FailedToSatisfyReadPreference,
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

/// How a request may be treated.
#[derive(Clone, Copy, Debug)]
pub struct Treatment {
    pub preference: ReadPreference,
    /// Running it twice does no harm, so it is sent again when nobody knows whether it ran.
    pub idempotent: bool,
    /// For one attempt.
    pub timeout: Option<Duration>,
    /// How long to look for a member that answers.
    pub patience: Duration,
    /// A primary that takes longer to answer makes the others be asked who the primary is.
    pub ask_others_after: Duration,
}

/// An election takes a second or two; a restart of the whole set a little longer.
const PATIENCE: Duration = Duration::from_secs(20);
const HELLO_TIMEOUT: Duration = Duration::from_secs(2);
const ASK_OTHERS_AFTER: Duration = Duration::from_secs(2);
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(50);

impl Treatment {
    pub fn read(preference: ReadPreference) -> Treatment {
        Treatment {
            preference,
            idempotent: true,
            timeout: None,
            patience: PATIENCE,
            ask_others_after: ASK_OTHERS_AFTER,
        }
    }

    pub fn write() -> Treatment {
        Treatment {
            idempotent: false,
            ..Treatment::read(ReadPreference::Primary)
        }
    }

    pub fn ask_others_after(self, ask_others_after: Duration) -> Treatment {
        Treatment {
            ask_others_after,
            ..self
        }
    }

    pub fn timeout(self, timeout: Option<Duration>) -> Treatment {
        Treatment { timeout, ..self }
    }

    pub fn idempotent(self) -> Treatment {
        Treatment {
            idempotent: true,
            ..self
        }
    }

    pub fn patience(self, patience: Duration) -> Treatment {
        Treatment { patience, ..self }
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
    view: RwLock<Arc<View>>,
    looking: tokio::sync::Mutex<()>,
}

/// What `hello` last told.
#[derive(Clone, Default)]
struct View {
    primary: Option<Pool>,
    secondaries: Vec<Pool>,
    members: Vec<String>,
    /// Counts the looks, so that a task that waited for another one's look can use it.
    generation: u64,
}

/// One member's answer to `hello`.
struct Greeting {
    pool: Pool,
    primary: bool,
    secondary: bool,
    hosts: Vec<String>,
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
            view: RwLock::default(),
            looking: tokio::sync::Mutex::default(),
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
        let view = self.view();
        if view.members.is_empty() {
            self.inner.seeds.clone()
        } else {
            view.members.clone()
        }
    }

    /// The address of the primary that was last seen.
    pub fn primary(&self) -> Option<String> {
        self.view()
            .primary
            .as_ref()
            .map(|pool| pool.address().to_owned())
    }

    pub fn pool(&self, address: &str) -> Pool {
        let mut pools = self.inner.pools.lock();
        let make = || Pool::new(address, self.inner.options.clone());
        pools.entry(address.to_owned()).or_insert_with(make).clone()
    }

    /// Runs a command (without `$db`); an `ok: 0` reply is an error.
    pub async fn command(
        &self,
        treatment: Treatment,
        database: &str,
        body: &RawDocument,
    ) -> Result<RawDocumentBuf, ReplicaSetError> {
        let (reply, pool) = self
            .exchange(treatment, &Outgoing::command(database, body))
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
    /// connections, are looked past until the treatment's patience ends.
    pub async fn exchange(
        &self,
        treatment: Treatment,
        request: &Outgoing,
    ) -> Result<(RawDocumentBuf, Pool), ReplicaSetError> {
        let started = Instant::now();
        let mut last = "no member is known".to_owned();
        let mut attempts = 0;
        loop {
            let view = self.view();
            if let Some(pool) = view.choose(treatment.preference) {
                match self.watched(pool, treatment, request).await {
                    Ok(reply) => match refusal(&reply, treatment.idempotent) {
                        Some(error) if started.elapsed() < treatment.patience => {
                            last = format!("{}: {error}", pool.address());
                        }
                        _ => return Ok((reply, pool.clone())),
                    },
                    Err(error) => {
                        let again = treatment.idempotent || !error.may_have_run();
                        let timeout = matches!(error, ClientError::Timeout { .. });
                        if timeout || !again || started.elapsed() >= treatment.patience {
                            self.forget(pool);
                            return Err(error.into());
                        }
                        pool.clear();
                        last = error.to_string();
                    }
                }
            }
            if started.elapsed() >= treatment.patience {
                return Err(self.no_member(treatment, last));
            }
            attempts += 1;
            let looked = self.look(view.generation, treatment.preference).await;
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

    /// One exchange with a member. While it takes long, the others are asked now and then whether
    /// one of them is the primary by now: a member that hangs would be waited for without end.
    async fn watched(
        &self,
        pool: &Pool,
        treatment: Treatment,
        request: &Outgoing,
    ) -> Result<RawDocumentBuf, ClientError> {
        let mut exchange = pin!(pool.exchange(request, treatment.timeout));
        loop {
            match tokio::time::timeout(treatment.ask_others_after, &mut exchange).await {
                Ok(outcome) => return outcome,
                Err(_) if treatment.preference != ReadPreference::Primary => {}
                Err(_) => {
                    let (greetings, _) = self.greet_everyone().await;
                    let other = greetings
                        .iter()
                        .find(|greeting| greeting.primary && !greeting.pool.is(pool));
                    if let Some(other) = other {
                        let text = format!("{} is the primary now", other.pool.address());
                        let source = std::io::Error::other(text);
                        return Err(ClientError::Io {
                            address: pool.address().to_owned(),
                            source,
                        });
                    }
                }
            }
        }
    }

    fn no_member(&self, treatment: Treatment, last: String) -> ReplicaSetError {
        let mode = match treatment.preference {
            ReadPreference::Primary => "primary",
            ReadPreference::PrimaryPreferred => "primaryPreferred",
            ReadPreference::Secondary => "secondary",
            ReadPreference::SecondaryPreferred => "secondaryPreferred",
            ReadPreference::Nearest => "nearest",
        };
        let set = match &self.inner.name {
            Some(name) => name.clone(),
            None => self.inner.seeds.join(","),
        };
        ReplicaSetError::NoMember {
            set,
            mode,
            waited: treatment.patience,
            last,
        }
    }

    fn view(&self) -> Arc<View> {
        self.inner.view.read().clone()
    }

    /// The next request looks for members again, starting without this one.
    fn forget(&self, pool: &Pool) {
        pool.clear();
        let mut view = self.inner.view.write();
        let mut changed = View::clone(&view);
        changed.primary = changed
            .primary
            .filter(|known| known.address() != pool.address());
        changed
            .secondaries
            .retain(|known| known.address() != pool.address());
        changed.generation += 1;
        *view = Arc::new(changed);
    }

    /// Makes a new view unless somebody else has since `generation`; an error says what was seen
    /// instead of a member that suits.
    async fn look(&self, generation: u64, preference: ReadPreference) -> Result<(), String> {
        let _one_at_a_time = self.inner.looking.lock().await;
        if self.view().generation != generation {
            return Ok(());
        }
        let (greetings, failures) = self.greet_everyone().await;
        let mut view = View {
            generation: generation + 1,
            ..View::default()
        };
        for greeting in greetings {
            if greeting.primary {
                view.members = greeting.hosts;
                view.primary = Some(greeting.pool);
            } else {
                if view.members.is_empty() {
                    view.members = greeting.hosts;
                }
                if greeting.secondary {
                    view.secondaries.push(greeting.pool);
                }
            }
        }
        if view.members.is_empty() {
            view.members = self.view().members.clone();
        }
        let found = view.choose(preference).is_some();
        *self.inner.view.write() = Arc::new(view);
        if found {
            Ok(())
        } else {
            Err(failures.join("; "))
        }
    }

    /// Asks all known members at once; stops waiting as soon as the primary has answered and the
    /// others had a moment to.
    async fn greet_everyone(&self) -> (Vec<Greeting>, Vec<String>) {
        let mut addresses = self.members();
        for seed in &self.inner.seeds {
            if !addresses.contains(seed) {
                addresses.push(seed.clone());
            }
        }
        let mut asked = JoinSet::new();
        for address in addresses {
            asked.spawn(greet(self.pool(&address), self.inner.name.clone()));
        }
        let (mut greetings, mut failures) = (Vec::new(), Vec::new());
        let mut enough_at = Instant::now() + HELLO_TIMEOUT;
        while let Ok(Some(answer)) = tokio::time::timeout_at(enough_at, asked.join_next()).await {
            match answer {
                Ok(Ok(greeting)) => {
                    if greeting.primary {
                        enough_at = enough_at.min(Instant::now() + Duration::from_millis(20));
                    } else if !greeting.secondary {
                        failures.push(format!(
                            "{} is neither primary nor secondary",
                            greeting.pool.address()
                        ));
                    } else {
                        failures.push(format!("{} is secondary", greeting.pool.address()));
                    }
                    greetings.push(greeting);
                }
                Ok(Err(reason)) => failures.push(reason),
                Err(error) => failures.push(error.to_string()),
            }
        }
        (greetings, failures)
    }
}

impl View {
    fn choose(&self, preference: ReadPreference) -> Option<&Pool> {
        let secondary = || {
            let turn = self.secondaries.len().checked_sub(1)?;
            self.secondaries.get(turn_of(turn + 1))
        };
        match preference {
            ReadPreference::Primary => self.primary.as_ref(),
            ReadPreference::PrimaryPreferred | ReadPreference::Nearest => {
                self.primary.as_ref().or_else(secondary)
            }
            ReadPreference::Secondary => secondary(),
            ReadPreference::SecondaryPreferred => secondary().or(self.primary.as_ref()),
        }
    }
}

/// Secondaries take turns.
fn turn_of(count: usize) -> usize {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static TURN: AtomicUsize = AtomicUsize::new(0);
    TURN.fetch_add(1, Ordering::Relaxed) % count.max(1)
}

async fn greet(pool: Pool, name: Option<String>) -> Result<Greeting, String> {
    let hello = rawdoc! {"hello": 1};
    let reply = pool
        .command("admin", &hello, Some(HELLO_TIMEOUT))
        .await
        .map_err(|error| error.to_string())?;
    if let Some(expected) = &name {
        let set = reply.get_str("setName").unwrap_or_default();
        if set != expected {
            let what = if set.is_empty() {
                "not a member of a set"
            } else {
                set
            };
            return Err(format!("{} is {what}, not of {expected}", pool.address()));
        }
    }
    let flag = |field| reply.get_bool(field).unwrap_or(false);
    let hosts = ["hosts", "passives"]
        .into_iter()
        .filter_map(|field| reply.get_array(field).ok())
        .flatten()
        .filter_map(|host| Some(host.ok()?.as_str()?.to_owned()))
        .collect();
    let primary = flag("isWritablePrimary") || flag("ismaster");
    Ok(Greeting {
        primary,
        secondary: flag("secondary"),
        hosts,
        pool,
    })
}

/// The error in a reply that another member would not have given, or this one a moment later.
fn refusal(reply: &RawDocument, idempotent: bool) -> Option<CommandError> {
    match reply.get("ok") {
        Ok(Some(RawBsonRef::Double(ok))) if ok != 0.0 => return None,
        Ok(Some(RawBsonRef::Int32(ok))) if ok != 0 => return None,
        _ => {}
    }
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
