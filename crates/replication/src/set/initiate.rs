//! The beginning of a set: by `replSetInitiate`, or by itself with `--selfInitiate`.

use std::sync::Arc;
use std::time::Duration;

use banyan_wire::{CommandError, ErrorCode};
use bson::oid::ObjectId;
use futures::stream::{FuturesUnordered, StreamExt};

use super::config::{MemberConfig, SetConfig};
use super::health::Heartbeat;
use super::lead::wait;
use super::state::MemberState;
use super::status::not_a_set;
use super::{ReplicationCoordinator, StartError};
use crate::replica::Replica;

/// How long a host may take to answer before a configuration that names it is refused.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
const A_MOMENT: Duration = Duration::from_millis(200);
const LEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// A host of a configuration, and what it answered.
pub(super) struct Answer<'a> {
    pub member: &'a MemberConfig,
    pub outcome: Result<Heartbeat, CommandError>,
}

impl ReplicationCoordinator {
    /// The configuration that `rs.initiate()` makes when it's given none.
    pub fn default_config(&self) -> Result<SetConfig, CommandError> {
        let name = self.set_name().ok_or_else(|| {
            CommandError::new(
                ErrorCode::InvalidReplicaSetConfig,
                "no configuration was given, and no set name on the command line",
            )
        })?;
        let mut config = SetConfig::of_one(&name, &self.address);
        config.config_server = self.config_server;
        Ok(config)
    }

    pub fn require_uninitialized(&self) -> Result<(), CommandError> {
        match self.config() {
            None => Ok(()),
            Some(_) => Err(CommandError::new(
                ErrorCode::AlreadyInitialized,
                "already initialized",
            )),
        }
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    /// Begins the set: this member alone first, the others as they are admitted.
    pub async fn initiate(&self, replica: &Replica, config: SetConfig) -> Result<(), CommandError> {
        if !self.is_replica_set() {
            return Err(not_a_set());
        }
        let _configuring = self.begin_configuring("replSetInitiate")?;
        self.require_uninitialized()?;
        self.check_initial(&config)?;
        let host = self.find_self(&config).await?;
        self.begin(replica, config, &host).await
    }

    /// What is left to do once everybody agrees.
    async fn begin(
        &self,
        replica: &Replica,
        mut config: SetConfig,
        host: &str,
    ) -> Result<(), CommandError> {
        config.config_server |= self.config_server;
        config.version = 1;
        config
            .settings
            .replica_set_id
            .get_or_insert_with(ObjectId::new);
        if !replica.group.is_bootstrapped() {
            replica.group.bootstrap(host).map_err(|error| {
                CommandError::new(ErrorCode::AlreadyInitialized, error.to_string())
            })?;
        }
        wait("this member to lead its own set", LEAD_TIMEOUT, || {
            replica.group.leader_term() != 0
        })
        .await?;
        self.take_address(replica, host).await?;
        config.term = replica.group.leader_term() as i64;
        replica.write_set_config(&config.to_document()).await?;
        wait("the configuration", LEAD_TIMEOUT, || {
            self.state() == MemberState::Primary
        })
        .await?;
        tracing::info!(set = config.name, host, "initiated the replica set");
        Ok(())
    }

    /// A directory that was a standalone's may know itself by another address.
    async fn take_address(&self, replica: &Replica, host: &str) -> Result<(), CommandError> {
        if self.own_host().as_deref() == Some(host) {
            return Ok(());
        }
        let change = banyan_consensus::Change::UpdateAddress {
            id: self.id,
            address: host.to_owned(),
        };
        let changed = replica.group.change_membership(change).await;
        changed
            .map(drop)
            .map_err(|error| CommandError::new(ErrorCode::OperationFailed, error.to_string()))
    }

    /// `--selfInitiate`: what the directory holds decides. Whether there is something to do.
    pub(super) fn check_self_initiate(&self, replica: &Replica) -> Result<bool, StartError> {
        if !self.is_replica_set() {
            return Err(StartError(
                "--selfInitiate makes a replica set: give its name with --replSet".to_owned(),
            ));
        }
        let membership = replica.group.status().membership;
        let others = membership.members.iter().any(|member| member.id != self.id);
        if self.config().is_some() || others {
            tracing::info!("a member of a set already: --selfInitiate changes nothing");
            return Ok(false);
        }
        if replica.store.catalog().collections().next().is_some() {
            return Err(StartError(
                "--selfInitiate begins with an empty directory, and this one holds the data of a \
                 standalone; start it without the flag and run rs.initiate() to keep the data"
                    .to_owned(),
            ));
        }
        Ok(true)
    }

    /// A set of this member alone, under the address that it listens on.
    pub(super) async fn self_initiate(self: Arc<Self>, replica: Arc<Replica>) {
        let begun = async {
            let _configuring = self.begin_configuring("--selfInitiate")?;
            self.require_uninitialized()?;
            let config = self.default_config()?;
            self.begin(&replica, config, &self.address).await
        };
        if let Err(error) = begun.await {
            tracing::error!(%error, "--selfInitiate could not make the set");
        }
    }

    fn check_initial(&self, config: &SetConfig) -> Result<(), CommandError> {
        let invalid =
            |text: String| Err(CommandError::new(ErrorCode::InvalidReplicaSetConfig, text));
        if let Some(name) = &self.required_name
            && *name != config.name
        {
            return invalid(format!(
                "Rejecting initiate with a set name that differs from command line set name, \
                 initiate set name: {}, command line set name: {name}",
                config.name
            ));
        }
        config.check()?;
        if config.config_server && !self.config_server {
            return invalid(
                "Nodes being used for config servers must be started with the --configsvr flag"
                    .to_owned(),
            );
        }
        if config.version != 1 {
            return invalid(format!(
                "Configuration used to initiate a replica set must  have version 1, but found {}",
                config.version
            ));
        }
        if config.settings.replica_set_id.is_some() {
            return invalid(
                "replica set configuration cannot contain 'replicaSetId' field when called from \
                 replSetInitiate"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// Which host of the configuration is this process. All the others must answer, and be free.
    async fn find_self(&self, config: &SetConfig) -> Result<String, CommandError> {
        let answers = self.ask_members(&config.members).await;
        let mine = answers.iter().find(|answer| {
            answer
                .outcome
                .as_ref()
                .is_ok_and(|heartbeat| heartbeat.peer == self.id)
        });
        let Some(mine) = mine else {
            return Err(CommandError::new(
                ErrorCode::InvalidReplicaSetConfig,
                format!(
                    "No host described in new configuration with {{version: {}, term: 0}} for \
                     replica set {} maps to this node",
                    config.version, config.name
                ),
            ));
        };
        if !mine.member.electable() {
            return Err(CommandError::new(
                ErrorCode::InvalidReplicaSetConfig,
                format!(
                    "This node, {}, with _id MemberId({}) is not electable under the new \
                     configuration with {{version: {}, term: 0}} for replica set {}",
                    mine.member.host, mine.member.id, config.version, config.name
                ),
            ));
        }
        let problems = self.problems(&answers, config);
        if !problems.is_empty() {
            return Err(CommandError::new(
                ErrorCode::NodeNotFound,
                format!(
                    "replSetInitiate quorum check failed because not all proposed set members \
                     responded affirmatively: {}",
                    problems.join(", ")
                ),
            ));
        }
        Ok(mine.member.host.clone())
    }

    pub(super) async fn ask_members<'a>(&self, members: &'a [MemberConfig]) -> Vec<Answer<'a>> {
        self.ask_until(members, |_| false).await
    }

    /// Once the answers are enough the others get a moment, and no more: one that is stopped would
    /// hold up the change by which it is to be removed.
    pub(super) async fn ask_until<'a>(
        &self,
        members: &'a [MemberConfig],
        enough: impl Fn(&[Answer<'a>]) -> bool,
    ) -> Vec<Answer<'a>> {
        let asking = members.iter().map(|member| async move {
            let outcome = self.ask(&member.host, ANSWER_TIMEOUT).await;
            Answer {
                member,
                outcome: outcome.map(|(heartbeat, _)| heartbeat),
            }
        });
        let mut asking: FuturesUnordered<_> = asking.collect();
        let mut answers = Vec::new();
        while !enough(&answers)
            && let Some(answer) = asking.next().await
        {
            answers.push(answer);
        }
        let others = async {
            while let Some(answer) = asking.next().await {
                answers.push(answer);
            }
        };
        // Who does not answer in that time is told of below.
        let _ = tokio::time::timeout(A_MOMENT, others).await;
        let place = |of: &MemberConfig| members.iter().position(|member| member == of);
        let silent: Vec<_> = members
            .iter()
            .filter(|&member| answers.iter().all(|answer| answer.member != member))
            .collect();
        answers.extend(silent.into_iter().map(|member| Answer {
            member,
            outcome: Err(super::unreachable(&member.host, "no answer yet")),
        }));
        answers.sort_by_key(|answer| place(answer.member));
        answers
    }

    /// Why some hosts cannot be members.
    fn problems(&self, answers: &[Answer<'_>], config: &SetConfig) -> Vec<String> {
        let problem = |answer: &Answer<'_>| {
            let host = &answer.member.host;
            match &answer.outcome {
                Err(error) => Some(format!("{host} failed with {}", error.message)),
                Ok(heartbeat) if heartbeat.peer == self.id => None,
                Ok(heartbeat)
                    if !heartbeat.set_name.is_empty() && heartbeat.set_name != config.name =>
                {
                    Some(format!(
                        "{host} failed with Our set name of {} does not match name {} from \
                         remote node",
                        heartbeat.set_name, config.name
                    ))
                }
                Ok(heartbeat) if heartbeat.config_version > 0 => Some(format!(
                    "{host} failed with it has a replica set configuration already"
                )),
                Ok(heartbeat) if heartbeat.has_data => {
                    Some(format!("{host} failed with it has data already"))
                }
                Ok(_) => None,
            }
        };
        answers.iter().filter_map(problem).collect()
    }
}
