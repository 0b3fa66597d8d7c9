//! Sending requests to shards, and what to do when one says that the router's picture is stale.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use banyan_wire::{
    CommandError, ErrorCode, Outgoing, ReadMode, ReadPreference, Request, RequestOptions,
};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf};
use futures::future::join_all;

use crate::answer::Answer;
use crate::catalog::Route;
use crate::fields;
use crate::router::Router;

/// How long a command is tried again while shards keep saying that its routing is stale. A
/// migration's critical section is much shorter.
const STALE_RETRY_TIMEOUT: Duration = Duration::from_secs(30);
const STALE_PAUSE_MAX: Duration = Duration::from_millis(100);

/// How a client's request may be treated on its way to a shard.
pub fn request_options(request: &Request, writes: bool) -> RequestOptions {
    if writes {
        let request_options = RequestOptions::write();
        // A shard recognises a statement of a numbered transaction that it has run before.
        let numbered = request.get("txnNumber").is_some();
        return if numbered {
            request_options.idempotent()
        } else {
            request_options
        };
    }
    RequestOptions::read(read_preference(&request.body))
}

/// Which members may answer a read. One that has to see what came before goes to the primary,
/// which has all of it, unless it insists on a secondary.
pub fn read_preference(body: &RawDocument) -> ReadPreference {
    // A bad one was refused before the command ran.
    let asked = ReadPreference::of_command(body).ok().flatten();
    let Some(asked) = asked.filter(|asked| asked.mode != ReadMode::Primary) else {
        return ReadPreference::default();
    };
    let causal = match fields::get(body, "readConcern") {
        Some(RawBsonRef::Document(concern)) => fields::get(concern, "afterClusterTime").is_some(),
        _ => false,
    };
    if causal && asked.mode != ReadMode::Secondary {
        ReadPreference::default()
    } else {
        asked
    }
}

impl Router {
    /// Sends one request to one shard.
    pub async fn send(
        &self,
        shard: &str,
        request_options: RequestOptions,
        outgoing: &Outgoing,
    ) -> Result<Answer, CommandError> {
        let shard = self.shards.get(shard).await?;
        let sent = shard.set.exchange(request_options.clone(), outgoing).await;
        let (reply, member) =
            sent.map_err(|error| shard_failed(&shard.id, error.into(), &request_options))?;
        self.gossip.observe(&reply);
        Ok(Answer {
            shard: shard.id.clone(),
            member,
            reply,
        })
    }

    /// Sends each shard its request, all at once.
    pub async fn send_all(
        &self,
        requests: Vec<(Arc<str>, Outgoing)>,
        request_options: RequestOptions,
    ) -> Vec<Result<Answer, CommandError>> {
        let sends = requests
            .iter()
            .map(|(shard, outgoing)| self.send(shard, request_options.clone(), outgoing));
        join_all(sends).await
    }

    /// The same command, without versions, to each of the shards.
    pub async fn broadcast(
        &self,
        shards: &[Arc<str>],
        request_options: RequestOptions,
        database: &str,
        command: &RawDocument,
    ) -> Vec<(Arc<str>, Result<RawDocumentBuf, CommandError>)> {
        let outgoing = Outgoing::command(database, command);
        let request_options = &request_options;
        let sends = shards.iter().map(|shard| async {
            let answer = self.send(shard, request_options.clone(), &outgoing).await;
            (
                shard.clone(),
                answer.and_then(Answer::checked).map(|answer| answer.reply),
            )
        });
        join_all(sends).await
    }

    /// Runs a command on the primary of the config servers.
    pub async fn on_config(
        &self,
        database: &str,
        command: &RawDocument,
    ) -> Result<RawDocumentBuf, CommandError> {
        let request_options = RequestOptions::write().idempotent();
        let reply = self
            .config
            .command(request_options, database, command)
            .await?;
        self.gossip.observe(&reply);
        Ok(reply)
    }

    /// Runs `attempt` with the collection's route, and again with a newer one for as long as it
    /// says that the route is stale. Without the collection's database there is no route.
    pub async fn with_route<T, F>(
        &self,
        ns: &str,
        create: bool,
        mut attempt: impl FnMut(Option<Arc<Route>>) -> F,
    ) -> Result<T, CommandError>
    where
        F: Future<Output = Result<T, CommandError>>,
    {
        let mut retries = StaleRetries::new();
        loop {
            let route = if create {
                Some(self.catalog.route_or_create(ns).await?)
            } else {
                self.catalog.route(ns).await?
            };
            match attempt(route.clone()).await {
                Err(error) if error.code.is_stale_routing() && retries.is_left() => {
                    self.recover(route.as_deref(), &error).await?;
                    retries.pause().await;
                }
                outcome => return outcome,
            }
        }
    }

    /// Reads the route again that a shard objected to.
    pub async fn recover(
        &self,
        route: Option<&Route>,
        error: &CommandError,
    ) -> Result<(), CommandError> {
        tracing::debug!(%error, "stale routing");
        // It may be about another collection that the command reads.
        let named = error
            .extra
            .as_ref()
            .and_then(|extra| extra.get_str("ns").ok());
        if let Some(named) = named.filter(|ns| route.is_none_or(|route| route.ns != **ns)) {
            self.catalog.forget(named);
        }
        match route {
            Some(route) => self.catalog.refresh(route).await,
            None => Ok(()),
        }
    }
}

/// How often and how quickly a stale request is tried again.
pub struct StaleRetries {
    until: Instant,
    pause: Duration,
}

impl StaleRetries {
    pub fn new() -> StaleRetries {
        StaleRetries {
            until: Instant::now() + STALE_RETRY_TIMEOUT,
            pause: Duration::ZERO,
        }
    }

    pub fn is_left(&self) -> bool {
        Instant::now() < self.until
    }

    /// The first time costs nothing: a refresh usually is all it takes.
    pub async fn pause(&mut self) {
        if !self.pause.is_zero() {
            tokio::time::sleep(self.pause).await;
        }
        self.pause = (self.pause * 2).clamp(Duration::from_millis(2), STALE_PAUSE_MAX);
    }
}

impl Default for StaleRetries {
    fn default() -> StaleRetries {
        StaleRetries::new()
    }
}

/// A shard that can't be reached, told the way a driver understands: a numbered write may be sent
/// again.
fn shard_failed(
    shard: &str,
    error: CommandError,
    request_options: &RequestOptions,
) -> CommandError {
    let writes = request_options.preference.mode == ReadMode::Primary && request_options.idempotent;
    let reachable =
        !error.code.is_network() && error.code != ErrorCode::FailedToSatisfyReadPreference;
    let text = format!("{} :: caused by :: shard {shard}", error.message);
    let told = CommandError {
        message: text,
        ..error
    };
    if writes && !reachable {
        told.with_label("RetryableWriteError")
    } else {
        told
    }
}
