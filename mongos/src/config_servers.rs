//! Finding the config servers, and making them a set when they are not one yet.
//!
//! `--configdb set/host,host` names a set; `host,host` is the old form. Either way the servers
//! may have been started a moment ago and never been initiated: then the first router that
//! reaches them all does it.

use std::time::Duration;

use banyan_wire::{
    ClientError, CommandError, ErrorCode, Pool, PoolOptions, ReadMode, ReplicaSet, RequestOptions,
};
use bson::{RawArrayBuf, RawDocument, rawdoc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// What a set is called that nobody gave a name.
pub const SET_NAME_DEFAULT: &str = "config";

const ASK_TIMEOUT: Duration = Duration::from_secs(3);
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(250);
/// A router that waits says so this often.
const COMPLAIN_EVERY: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum ConfigDbError {
    #[error("bad --configdb {0:?}: expected set/host:port,host:port or host:port,host:port")]
    Address(String),
    #[error("{address} is a member of the set {found}, not of {expected} as --configdb says")]
    OtherSet {
        address: String,
        found: String,
        expected: String,
    },
    #[error("{address} is not a config server: {reason}")]
    NotConfigServer { address: String, reason: String },
    #[error("the config servers refuse to become a set: {0}")]
    Initiate(CommandError),
    #[error("stopped while waiting for the config servers")]
    Stopped,
}

/// What `--configdb` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigDb {
    pub set: Option<String>,
    pub hosts: Vec<String>,
}

impl ConfigDb {
    pub fn parse(text: &str) -> Result<ConfigDb, ConfigDbError> {
        let parsed = ReplicaSet::parse(text, PoolOptions::default())
            .map_err(|_| ConfigDbError::Address(text.to_owned()))?;
        Ok(ConfigDb {
            set: parsed.name().map(str::to_owned),
            hosts: parsed.seeds().to_vec(),
        })
    }
}

/// What one server says of itself.
enum State {
    /// A member of the set of this name.
    Member(String),
    NotInitiated,
    Unreachable(String),
}

/// The config servers as a set with a primary, and its connection string. Waits as long as it
/// takes, saying why.
pub async fn connect(
    wanted: &ConfigDb,
    stop: &CancellationToken,
) -> Result<(ReplicaSet, String), ConfigDbError> {
    let mut complained: Option<Instant> = None;
    loop {
        let progress = tokio::select! {
            () = stop.cancelled() => return Err(ConfigDbError::Stopped),
            progress = attempt(wanted) => progress?,
        };
        let reason = match progress {
            Progress::Ready(set, address) => {
                info!(address, "config servers reached");
                return Ok((set, address));
            }
            Progress::Waiting(reason) => reason,
        };
        if complained.is_none_or(|at| at.elapsed() >= COMPLAIN_EVERY) {
            warn!("waiting for the config servers: {reason}");
            complained = Some(Instant::now());
        }
        tokio::time::sleep(ASK_AGAIN_AFTER).await;
    }
}

enum Progress {
    Ready(ReplicaSet, String),
    Waiting(String),
}

async fn attempt(wanted: &ConfigDb) -> Result<Progress, ConfigDbError> {
    let asked = wanted.hosts.iter().map(|host| ask(host));
    let states = futures::future::join_all(asked).await;
    let (mut name, mut not_initiated, mut reasons) = (None, 0, Vec::new());
    for (host, state) in wanted.hosts.iter().zip(states) {
        match state? {
            State::Member(found) => {
                if let Some(expected) = wanted.set.as_ref().filter(|set| **set != found) {
                    let (address, expected) = (host.clone(), expected.clone());
                    return Err(ConfigDbError::OtherSet {
                        address,
                        found,
                        expected,
                    });
                }
                name = Some(found);
            }
            State::NotInitiated => not_initiated += 1,
            State::Unreachable(reason) => reasons.push(reason),
        }
    }
    if let Some(name) = name {
        return look_for_primary(name, wanted).await;
    }
    if not_initiated == wanted.hosts.len() {
        initiate(wanted).await?;
        return Ok(Progress::Waiting("the set was just initiated".to_owned()));
    }
    if not_initiated > 0 {
        reasons.push("the others are not initiated, which takes all of them".to_owned());
    }
    Ok(Progress::Waiting(reasons.join("; ")))
}

async fn look_for_primary(name: String, wanted: &ConfigDb) -> Result<Progress, ConfigDbError> {
    let set = ReplicaSet::new(
        Some(name.clone()),
        wanted.hosts.clone(),
        PoolOptions::default(),
    );
    let look = RequestOptions::read(ReadMode::Primary)
        .timeout(Some(ASK_TIMEOUT))
        .server_selection_timeout(Duration::from_secs(2));
    // A read, so that it is known at once if they do not let this router in.
    match set
        .command(look, "config", &rawdoc! {"count": "shards"})
        .await
    {
        Ok(_) => {
            let address = format!("{name}/{}", set.members().join(","));
            Ok(Progress::Ready(set, address))
        }
        Err(error) => Ok(Progress::Waiting(error.to_string())),
    }
}

async fn ask(host: &str) -> Result<State, ConfigDbError> {
    let pool = Pool::new(host, PoolOptions::default());
    let hello = match pool
        .command("admin", &rawdoc! {"hello": 1}, Some(ASK_TIMEOUT))
        .await
    {
        Ok(hello) => hello,
        Err(error) => return Ok(State::Unreachable(error.to_string())),
    };
    if let Ok(name) = hello.get_str("setName") {
        return Ok(State::Member(name.to_owned()));
    }
    let status = rawdoc! {"replSetGetStatus": 1};
    match pool.command("admin", &status, Some(ASK_TIMEOUT)).await {
        // Initiated between the two questions.
        Ok(status) => Ok(State::Member(set_of(&status))),
        Err(ClientError::Command(error)) => match error.code {
            ErrorCode::NotYetInitialized => Ok(State::NotInitiated),
            ErrorCode::NoReplicationEnabled => Err(ConfigDbError::NotConfigServer {
                address: host.to_owned(),
                reason: error.message,
            }),
            _ => Ok(State::Unreachable(format!("{host}: {error}"))),
        },
        Err(error) => Ok(State::Unreachable(error.to_string())),
    }
}

fn set_of(status: &RawDocument) -> String {
    status.get_str("set").unwrap_or_default().to_owned()
}

/// Makes the listed servers a set. Several routers may try at once: they all ask the same member,
/// the first in order of name, and all but one find it done.
async fn initiate(wanted: &ConfigDb) -> Result<(), ConfigDbError> {
    let mut hosts = wanted.hosts.clone();
    hosts.sort();
    let Some(first) = hosts.first() else {
        return Ok(());
    };
    let name = wanted.set.as_deref().unwrap_or(SET_NAME_DEFAULT);
    let mut members = RawArrayBuf::new();
    for (id, host) in hosts.iter().enumerate() {
        members.push(rawdoc! {"_id": id as i32, "host": host.as_str()});
    }
    let configuration = rawdoc! {"_id": name, "configsvr": true, "version": 1, "members": members};
    info!(
        set = name,
        hosts = hosts.join(","),
        "initiating the config servers"
    );
    let command = rawdoc! {"replSetInitiate": configuration};
    let pool = Pool::new(first, PoolOptions::default());
    match pool
        .command("admin", &command, Some(Duration::from_secs(30)))
        .await
    {
        Ok(_) => Ok(()),
        Err(ClientError::Command(error)) if error.code == ErrorCode::AlreadyInitialized => Ok(()),
        Err(ClientError::Command(error)) if is_passing(error.code) => {
            warn!("initiating the config servers failed, trying again: {error}");
            Ok(())
        }
        Err(ClientError::Command(error)) => Err(ConfigDbError::Initiate(error)),
        Err(error) => {
            warn!("initiating the config servers failed, trying again: {error}");
            Ok(())
        }
    }
}

/// A reason that may be gone the next time.
fn is_passing(code: ErrorCode) -> bool {
    code.is_network()
        || code.is_shutdown()
        || matches!(
            code,
            ErrorCode::NodeNotFound
                | ErrorCode::ConfigurationInProgress
                | ErrorCode::NewReplicaSetConfigurationIncompatible
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn both_forms_are_read() {
        let named = ConfigDb::parse("cfg/a:1,b:2").unwrap();
        assert_eq!((named.set.as_deref(), named.hosts.len()), (Some("cfg"), 2));
        let old = ConfigDb::parse("a:1,b:2,c:3").unwrap();
        assert_eq!((old.set.as_deref(), old.hosts.len()), (None, 3));
        for wrong in ["", "a", "cfg/", "a:b"] {
            assert!(ConfigDb::parse(wrong).is_err(), "{wrong}");
        }
    }
}
