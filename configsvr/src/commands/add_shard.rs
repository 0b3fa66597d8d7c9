//! `addShard`: a set or a standalone joins the cluster.

use std::time::Duration;

use banyan_node::commands::table::{CommandResult, CommandSpec, boxed, primary_only};
use banyan_node::context::CommandContext;
use banyan_wire::{CommandError, ErrorCode, ReadMode, ReplicaSet, RequestOptions};
use bson::{RawDocument, rawdoc};

use crate::metadata::ShardEntry;
use crate::role::ConfigRole;
use crate::shards::SHORT;
use crate::user_writes;

pub static SPEC: CommandSpec = primary_only("_configsvrAddShard", |ctx| boxed(run(ctx)));

/// How long a server that was just started gets to answer, and to elect a primary.
const TIMEOUT: Duration = Duration::from_secs(10);

async fn run(ctx: &CommandContext<'_>) -> CommandResult {
    let role = ConfigRole::of(ctx)?;
    let address = ctx.required("_configsvrAddShard")?.str()?;
    let name = match ctx.field("name") {
        Some(name) => Some(name.str()?),
        None => None,
    };
    if name == Some("") {
        return Err(CommandError::new(
            ErrorCode::BadValue,
            "shard name cannot be empty",
        ));
    }
    if name.is_some_and(|name| name == "config" || name == "local" || name == "admin") {
        return Err(CommandError::new(
            ErrorCode::BadValue,
            "that shard name is reserved",
        ));
    }
    let _lock = role.membership.lock().await;
    role.initialize().await?;
    let new_shard = examine(role, address).await?;
    let shards = role.metadata.shards().await?;
    if let Some(known) = already_there(&shards, &new_shard, name)? {
        return Ok(rawdoc! { "shardAdded": known, "ok": 1.0 });
    }
    let name = name.map_or_else(|| new_shard.default_name(&shards), str::to_owned);
    if shards.iter().any(|shard| *shard.id == *name) {
        let message = format!("a shard named {name} is already part of the cluster");
        return Err(CommandError::new(ErrorCode::OperationFailed, message));
    }
    let databases = its_databases(role, &new_shard).await?;
    claim(role, &new_shard, &name).await?;
    let request = user_writes::for_new_shard(role).await?;
    role.shards
        .command_if_up(&new_shard.host, &request, SHORT)
        .await?;
    let entry = rawdoc! {
        "_id": name.as_str(),
        "host": new_shard.host.as_str(),
        "state": 1,
        "topologyTime": role.metadata.tick(),
    };
    role.metadata.insert("shards", entry).await?;
    for database in &databases {
        let entry = super::create_database::entry(role, database, &name, false);
        role.metadata.put("databases", &[entry]).await?;
    }
    let details = rawdoc! { "name": name.as_str(), "host": new_shard.host.as_str() };
    role.note("addShard", "", details).await;
    tracing::info!(shard = name, host = new_shard.host, "a shard was added");
    Ok(rawdoc! { "shardAdded": name, "ok": 1.0 })
}

/// A server that wants to be a shard.
struct NewShard {
    /// What config.shards will say: all members of a set, not only those that were named.
    host: String,
    set_name: Option<String>,
    set: ReplicaSet,
}

impl NewShard {
    fn default_name(&self, shards: &[ShardEntry]) -> String {
        if let Some(name) = &self.set_name {
            return name.clone();
        }
        let taken = |name: &str| shards.iter().any(|shard| &*shard.id == name);
        let mut names = (0..).map(|n: u32| format!("shard{n:04}"));
        names.find(|name| !taken(name)).unwrap_or_default()
    }
}

/// Asks the server what it is.
async fn examine(role: &ConfigRole, address: &str) -> Result<NewShard, CommandError> {
    let failed = |message: String| CommandError::new(ErrorCode::OperationFailed, message);
    let set = role.shards.set(address)?;
    let request_options = RequestOptions::read(ReadMode::Primary)
        .timeout(Some(Duration::from_secs(5)))
        .server_selection_timeout(TIMEOUT);
    let hello = set.command(request_options, "admin", &rawdoc! { "hello": 1 }).await.map_err(|error| {
        failed(format!("failed to run command {{ hello: 1 }} when attempting to add shard {address} :: caused by :: {error}"))
    })?;
    if hello.get_str("msg").is_ok_and(|msg| msg == "isdbgrid") {
        let message = "can't add a mongos process as a shard";
        return Err(CommandError::new(ErrorCode::IllegalOperation, message));
    }
    if hello.get("configsvr").ok().flatten().is_some() || is_self(role, &hello).await {
        let message = format!("Cannot add {address} as a shard since it is a config server");
        return Err(CommandError::new(ErrorCode::OperationFailed, message));
    }
    let found = hello.get_str("setName").ok();
    match (set.name(), found) {
        (None, Some(found)) => Err(failed(format!(
            "host is part of set {found}; use replica set url format <setname>/<server1>,<server2>, ..."
        ))),
        (Some(asked), None) => Err(failed(format!(
            "host did not return a set name; is the replica set still initializing? {address} \
             (expected set {asked})"
        ))),
        (Some(asked), Some(found)) if asked != found => Err(failed(format!(
            "the provided connection string ({address}) does not match the actual set name {found}"
        ))),
        _ => Ok(()),
    }?;
    let host = match found {
        Some(name) => format!("{name}/{}", all_hosts(&hello, &set)?),
        None => address.to_owned(),
    };
    Ok(NewShard {
        host,
        set_name: found.map(str::to_owned),
        set,
    })
}

async fn is_self(role: &ConfigRole, hello: &RawDocument) -> bool {
    hello.get_str("me").is_ok_and(|me| me == role.address())
}

/// The members that the set itself lists; every host that was named must be among them.
fn all_hosts(hello: &RawDocument, set: &ReplicaSet) -> Result<String, CommandError> {
    let mut hosts: Vec<String> = Vec::new();
    for list in ["hosts", "passives"] {
        let members = hello.get_array(list).ok().into_iter().flatten().flatten();
        hosts.extend(members.filter_map(|host| host.as_str().map(str::to_owned)));
    }
    for seed in set.seeds() {
        let aliases = [seed.clone(), seed.replace("127.0.0.1", "localhost")];
        if !hosts.iter().any(|host| {
            aliases.contains(host) || aliases.contains(&host.replace("127.0.0.1", "localhost"))
        }) {
            tracing::warn!(seed, ?hosts, "the set knows this host by another name");
        }
    }
    if hosts.is_empty() {
        let message = "the set does not list its members";
        return Err(CommandError::new(ErrorCode::OperationFailed, message));
    }
    Ok(hosts.join(","))
}

/// Adding what is already there, in the same words, is no error.
fn already_there(
    shards: &[ShardEntry],
    new_shard: &NewShard,
    name: Option<&str>,
) -> Result<Option<String>, CommandError> {
    let hosts = |text: &str| -> Vec<String> {
        let list = text.split_once('/').map_or(text, |(_, list)| list);
        list.split(',').map(str::to_owned).collect()
    };
    let wanted = hosts(&new_shard.host);
    let shares = |shard: &&ShardEntry| hosts(&shard.host).iter().any(|h| wanted.contains(h));
    let Some(known) = shards.iter().find(shares) else {
        return Ok(None);
    };
    let same_set = known.host.split_once('/').map(|(set, _)| set) == new_shard.set_name.as_deref();
    if same_set && name.is_none_or(|name| name == &*known.id) {
        return Ok(Some(known.id.to_string()));
    }
    Err(CommandError::new(
        ErrorCode::IllegalOperation,
        format!(
            "A shard already exists containing the replica set or host '{}'",
            new_shard.host
        ),
    ))
}

/// The databases that the shard brings along; none of them may exist already.
async fn its_databases(
    role: &ConfigRole,
    new_shard: &NewShard,
) -> Result<Vec<String>, CommandError> {
    let request_options = RequestOptions::read(ReadMode::Primary).timeout(Some(SHORT));
    let body = rawdoc! { "listDatabases": 1, "nameOnly": true };
    let reply = new_shard
        .set
        .command(request_options, "admin", &body)
        .await?;
    let list = reply
        .get_array("databases")
        .ok()
        .into_iter()
        .flatten()
        .flatten();
    let names = list.filter_map(|entry| entry.as_document()?.get_str("name").ok());
    let own: Vec<String> = names
        .filter(|name| !matches!(*name, "admin" | "local" | "config"))
        .map(str::to_owned)
        .collect();
    for database in &own {
        if let Some(existing) = role.metadata.database(database).await? {
            return Err(CommandError::new(
                ErrorCode::OperationFailed,
                format!(
                    "can't add shard '{}' because a local database '{database}' exists in another \
                     {}",
                    new_shard.host, existing.primary
                ),
            ));
        }
    }
    Ok(own)
}

/// Writes the shard's identity into it, which also makes it refuse any other cluster.
async fn claim(role: &ConfigRole, new_shard: &NewShard, name: &str) -> Result<(), CommandError> {
    let identity = rawdoc! {
        "_id": "shardIdentity",
        "shardName": name,
        "clusterId": role.metadata.cluster_id().await?,
        "configsvrConnectionString": role.connection_string().await?,
    };
    let body = rawdoc! { "_addShard": 1, "shardIdentity": identity };
    let request_options = RequestOptions::write()
        .idempotent()
        .timeout(Some(SHORT))
        .server_selection_timeout(TIMEOUT);
    match new_shard.set.command(request_options, "admin", &body).await {
        Ok(_) => Ok(()),
        Err(error) if error.code() == ErrorCode::CommandNotFound => Err(CommandError::new(
            ErrorCode::NoShardingEnabled,
            format!(
                "{} must be started with --shardsvr to become a shard",
                new_shard.host
            ),
        )),
        Err(error) => Err(error.into()),
    }
}
