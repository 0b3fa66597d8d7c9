//! How a worker reaches the set, and what it makes of an error.

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use bson::Document;
use mongodb::error::{Error, ErrorKind, WriteFailure};
use mongodb::options::{ClientOptions, WriteConcern};
use mongodb::{Client, Collection};
use rand::Rng;
use rand::rngs::StdRng;

use super::{DATABASE, Round};
use crate::history::{End, Invoked, Recorder};
use crate::set::Set;

const DUPLICATE_KEY: i32 = 11000;
/// The server says that it did nothing, and the driver has not tried before.
const NOT_PRIMARY: [i32; 3] = [10107, 13435, 13436];

const TIMEOUT: Duration = Duration::from_secs(5);
/// Longer than any member is stopped for: such a client hears what it answers afterwards.
const STUBBORN_TIMEOUT: Duration = Duration::from_secs(15);
const REST: Duration = Duration::from_millis(60);

/// Connections to the set and to each member alone.
pub struct Clients {
    retrying: Client,
    plain: Client,
    pub direct: Vec<Client>,
}

impl Clients {
    pub async fn of(set: &Set) -> Result<Self> {
        let pooled = async |retry: bool| {
            let mut options = ClientOptions::parse(set.uri()).await?;
            options.retry_writes = Some(retry);
            options.retry_reads = Some(retry);
            options.server_selection_timeout = Some(Duration::from_secs(4));
            options.connect_timeout = Some(Duration::from_secs(2));
            options.heartbeat_freq = Some(Duration::from_secs(1));
            anyhow::Ok(Client::with_options(options)?)
        };
        let mut direct = Vec::new();
        for member in 0..set.len() {
            let mut options = ClientOptions::parse(set.direct_uri(member)).await?;
            options.retry_writes = Some(false);
            options.retry_reads = Some(false);
            options.server_selection_timeout = Some(Duration::from_secs(1));
            // A member that is stopped must not lose these clients: they ask it on.
            options.connect_timeout = Some(STUBBORN_TIMEOUT);
            options.min_pool_size = Some(4);
            options.max_pool_size = Some(80);
            direct.push(Client::with_options(options)?);
        }
        Ok(Self {
            retrying: pooled(true).await?,
            plain: pooled(false).await?,
            direct,
        })
    }

    /// As an application sees it.
    pub fn collection(&self, name: &str) -> Collection<Document> {
        self.retrying.database(DATABASE).collection(name)
    }

    pub fn session_client(&self) -> &Client {
        &self.retrying
    }
}

/// Whom a worker asks.
#[derive(Clone, Copy, Debug)]
pub enum Route {
    /// The set, with retryable reads and writes.
    Retrying,
    /// The set, each operation once.
    Plain,
    /// A member that it believes to be primary, until told otherwise.
    Believed,
    /// The same, and it waits long for an answer.
    Stubborn,
    /// This member, whatever it is.
    Member(usize),
}

/// What an error means for the operation.
#[derive(Debug)]
pub enum Trouble {
    /// It did not happen.
    Refused(String),
    /// A unique index has it already.
    Duplicate(String),
    Unknown(String),
}

impl Trouble {
    /// A read that failed has seen nothing, and changed nothing.
    pub fn of_a_read(self) -> Self {
        match self {
            Trouble::Unknown(error) => Trouble::Refused(error),
            other => other,
        }
    }

    pub fn outcome(self) -> (End, Option<String>) {
        match self {
            Trouble::Refused(error) | Trouble::Duplicate(error) => (End::Failed, Some(error)),
            Trouble::Unknown(error) => (End::Unknown, Some(error)),
        }
    }
}

pub struct Worker {
    pub client: u32,
    pub round: Arc<Round>,
    pub rng: StdRng,
    route: Route,
    believed: usize,
}

impl Worker {
    pub fn new(client: u32, round: Arc<Round>, route: Route, rng: StdRng) -> Self {
        Self {
            client,
            round,
            rng,
            route,
            believed: 0,
        }
    }

    pub fn via(&self) -> String {
        match self.route {
            Route::Retrying => "set, retrying".to_owned(),
            Route::Plain => "set".to_owned(),
            Route::Believed | Route::Stubborn => format!("member {}", self.believed),
            Route::Member(member) => format!("member {member}"),
        }
    }

    pub fn collection(&self, what: &str) -> Collection<Document> {
        let clients = &self.round.clients;
        let client = match self.route {
            Route::Retrying => &clients.retrying,
            Route::Plain => &clients.plain,
            Route::Believed | Route::Stubborn => &clients.direct[self.believed],
            Route::Member(member) => &clients.direct[member],
        };
        client.database(DATABASE).collection(&self.round.name(what))
    }

    pub fn patience(&self) -> Duration {
        match self.route {
            Route::Stubborn | Route::Member(_) => STUBBORN_TIMEOUT,
            _ => TIMEOUT,
        }
    }

    /// One of the write concerns that promise that it lasts.
    pub fn write_concern(&mut self) -> WriteConcern {
        match self.rng.random_range(0..3) {
            0 => WriteConcern::majority(),
            1 => WriteConcern::nodes(1),
            _ => {
                let mut concern = WriteConcern::nodes(1);
                concern.journal = Some(true);
                concern
            }
        }
    }

    /// A pause as of somebody who thinks.
    pub async fn rest(&mut self) {
        let pause = self.rng.random_range(Duration::ZERO..REST);
        tokio::time::sleep(pause).await;
    }

    /// Asks, and says what an error means.
    pub async fn attempt<T>(
        &self,
        question: impl IntoFuture<Output = mongodb::error::Result<T>>,
    ) -> Result<T, Trouble> {
        match tokio::time::timeout(self.patience(), question.into_future()).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(meaning(&error, matches!(self.route, Route::Retrying))),
            Err(_) => Err(Trouble::Unknown("no answer in time".to_owned())),
        }
    }

    /// Writes down how it went; after a failure, looks around for the primary.
    pub async fn note<A: Clone>(
        &mut self,
        recorder: &Recorder<A>,
        invoked: Invoked,
        action: A,
        outcome: Result<(), Trouble>,
    ) {
        let (end, error) = match outcome {
            Ok(()) => (End::Ok, None),
            Err(trouble) => trouble.outcome(),
        };
        let failed = error.is_some();
        recorder.end((self.client, &self.via()), invoked, end, action, error);
        if failed {
            if matches!(self.route, Route::Believed | Route::Stubborn) && end == End::Failed {
                let members = self.round.clients.direct.len();
                self.believed = (self.believed + 1) % members;
            }
            self.rest().await;
        }
    }
}

fn meaning(error: &Error, retried: bool) -> Trouble {
    let text = error.to_string();
    match error.kind.as_ref() {
        ErrorKind::Write(WriteFailure::WriteError(write)) if write.code == DUPLICATE_KEY => {
            Trouble::Duplicate(text)
        }
        ErrorKind::Command(command) if command.code == DUPLICATE_KEY => Trouble::Duplicate(text),
        ErrorKind::InsertMany(many) => {
            let mut writes = many.write_errors.iter().flatten();
            if writes.any(|write| write.code == DUPLICATE_KEY) {
                Trouble::Duplicate(text)
            } else {
                Trouble::Unknown(text)
            }
        }
        // A driver that retries says so only if nothing was sent before.
        ErrorKind::ServerSelection { .. } => Trouble::Refused(text),
        ErrorKind::Command(command) if !retried && NOT_PRIMARY.contains(&command.code) => {
            Trouble::Refused(text)
        }
        _ => Trouble::Unknown(text),
    }
}
