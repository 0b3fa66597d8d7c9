//! What an operator makes a set do: initiate, reconfigure, step down, freeze.

use std::sync::Arc;
use std::time::{Duration, Instant};

use banyan_consensus::{PeerId, Status};
use banyan_wire::{CommandError, ErrorCode};
use bson::oid::ObjectId;

use super::Replication;
use super::config::{MemberConfig, SetConfig};
use super::heartbeat::Heartbeat;
use super::state::MemberState;
use super::status::not_a_set;
use crate::node::Node;

/// How long a host may take to answer before a configuration that names it is refused.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
const LEAD_TIMEOUT: Duration = Duration::from_secs(10);
const SUCCESSOR_TIMEOUT: Duration = Duration::from_millis(1200);
const POLL: Duration = Duration::from_millis(5);

/// A host of a configuration, and what it answered.
struct Answer<'a> {
    member: &'a MemberConfig,
    outcome: Result<Heartbeat, CommandError>,
}

impl Replication {
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
    pub async fn initiate(
        &self,
        node: &Arc<Node>,
        mut config: SetConfig,
    ) -> Result<(), CommandError> {
        if !self.is_replica_set() {
            return Err(not_a_set());
        }
        let _configuring = self.configuring.lock().await;
        self.require_uninitialized()?;
        self.check_initial(&config)?;
        let host = self.find_self(&config).await?;
        config.config_server |= self.config_server;
        config.version = 1;
        config
            .settings
            .replica_set_id
            .get_or_insert_with(ObjectId::new);
        if !node.group.is_bootstrapped() {
            node.group.bootstrap(&host).map_err(|error| {
                CommandError::new(ErrorCode::AlreadyInitialized, error.to_string())
            })?;
        }
        wait("this member to lead its own set", LEAD_TIMEOUT, || {
            node.group.leader_term() != 0
        })
        .await?;
        config.term = node.group.leader_term() as i64;
        node.write_set_config(&config.to_document()).await?;
        wait("the configuration", LEAD_TIMEOUT, || {
            self.state() == MemberState::Primary
        })
        .await?;
        tracing::info!(set = config.name, host, "initiated the replica set");
        Ok(())
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
        if config.config_server && !self.config_server {
            return invalid(
                "Nodes being used for config servers must be started with the --configsvr flag"
                    .to_owned(),
            );
        }
        if config.version != 1 {
            return invalid(format!(
                "Configuration used to initiate a replica set must have version 1, but found {}",
                config.version
            ));
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
                    "No host described in new configuration with {{version: {}, term: {}}} for \
                     replica set {} maps to this node",
                    config.version, config.term, config.name
                ),
            ));
        };
        if !mine.member.electable() {
            return Err(CommandError::new(
                ErrorCode::NodeNotElectable,
                format!(
                    "This node, {}, is not electable in the new configuration",
                    mine.member.host
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

    async fn ask_members<'a>(&self, members: &'a [MemberConfig]) -> Vec<Answer<'a>> {
        let asking = members.iter().map(|member| async move {
            let outcome = self.ask(&member.host, ANSWER_TIMEOUT).await;
            Answer {
                member,
                outcome: outcome.map(|(heartbeat, _)| heartbeat),
            }
        });
        futures::future::join_all(asking).await
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

    /// Puts another configuration in the place of the current one.
    pub async fn reconfigure(
        &self,
        node: &Arc<Node>,
        mut new: SetConfig,
        force: bool,
    ) -> Result<(), CommandError> {
        let _configuring = self.configuring.lock().await;
        let old = self.require_config()?;
        let state = self.state();
        if state != MemberState::Primary {
            return Err(CommandError::new(
                ErrorCode::NotWritablePrimary,
                format!(
                    "New config is rejected :: caused by :: replSetReconfig should only be run on \
                     a writable PRIMARY. Current state {};",
                    state.name()
                ),
            ));
        }
        if new.settings.replica_set_id.is_none() {
            new.settings.replica_set_id = old.settings.replica_set_id;
        }
        if force {
            new.version = new.version.max(old.version + 1);
        }
        old.check_successor(&new, force)?;
        self.check_own_place(&new)?;
        let answers = self.ask_members(&new.members).await;
        self.check_newcomers(&answers, &old, &new)?;
        new.term = node.group.leader_term() as i64;
        node.write_set_config(&new.to_document()).await
    }

    fn check_own_place(&self, new: &SetConfig) -> Result<(), CommandError> {
        let own = self.own_host().unwrap_or_default();
        match new.by_host(&own) {
            None => Err(CommandError::new(
                ErrorCode::NodeNotFound,
                format!(
                    "No host described in new configuration with {{version: {}, term: {}}} for \
                     replica set {} maps to this node",
                    new.version, new.term, new.name
                ),
            )),
            Some(member) if !member.electable() => Err(CommandError::new(
                ErrorCode::NodeNotElectable,
                format!("This node, {own}, is not electable in the new configuration"),
            )),
            Some(_) => Ok(()),
        }
    }

    /// A newcomer that answered must be free to join.
    fn check_newcomers(
        &self,
        answers: &[Answer<'_>],
        old: &SetConfig,
        new: &SetConfig,
    ) -> Result<(), CommandError> {
        let set_id = new.settings.replica_set_id;
        for answer in answers {
            let Ok(heartbeat) = &answer.outcome else {
                continue;
            };
            let newcomer = old.by_host(&answer.member.host).is_none();
            let foreign = heartbeat.has_data && heartbeat.replica_set_id != set_id;
            if newcomer && foreign && heartbeat.peer != self.id {
                return Err(CommandError::new(
                    ErrorCode::NewReplicaSetConfigurationIncompatible,
                    format!(
                        "{} has data, or a history, that is not this set's; it has to start with \
                         an empty directory",
                        answer.member.host
                    ),
                ));
            }
        }
        Ok(())
    }

    /// Gives the lead to another member, and stays away from it for a while.
    pub async fn step_down(
        &self,
        node: &Arc<Node>,
        away: Duration,
        catch_up: Duration,
        force: bool,
    ) -> Result<(), CommandError> {
        if self.state() != MemberState::Primary {
            return Err(CommandError::new(
                ErrorCode::NotWritablePrimary,
                "not primary so can't step down",
            ));
        }
        let deadline = Instant::now() + catch_up;
        // One that does not take the lead (it may be frozen) is asked again after the others.
        let mut asked = Vec::new();
        while node.is_primary() {
            let status = node.group.status();
            if self.best_successor(&status, &asked).is_none() {
                asked.clear();
            }
            match self.best_successor(&status, &asked) {
                Some(successor) => {
                    asked.push(successor);
                    self.stay_away(away);
                    node.group.transfer_leadership(successor);
                    let moved = || !node.is_primary();
                    if wait("the successor", SUCCESSOR_TIMEOUT, moved)
                        .await
                        .is_ok()
                    {
                        return Ok(());
                    }
                }
                None if Instant::now() >= deadline => {
                    if force {
                        self.stay_away(away);
                        node.group.step_down();
                        let down = || !node.is_primary();
                        return wait("stepping down", Duration::from_secs(2), down).await;
                    }
                    self.come_back();
                    return Err(CommandError::new(
                        ErrorCode::ExceededTimeLimit,
                        "No electable secondaries caught up as of now. Please use the \
                         replSetStepDown command with the argument {force: true} to force node \
                         to step down.",
                    ));
                }
                None => tokio::time::sleep(Duration::from_millis(20)).await,
            }
            if Instant::now() >= deadline && !force && node.is_primary() {
                self.come_back();
                return Err(CommandError::new(
                    ErrorCode::ExceededTimeLimit,
                    "No secondary took over in time.",
                ));
            }
        }
        Ok(())
    }

    fn best_successor(&self, status: &Status, except: &[PeerId]) -> Option<PeerId> {
        let config = self.config()?;
        let electable = |address: &str| {
            config
                .by_host(address)
                .filter(|member| member.electable())
                .map(|m| m.priority)
        };
        status
            .peers
            .iter()
            .filter(|peer| peer.id != self.id && !except.contains(&peer.id))
            .filter(|peer| peer.voter && peer.recent_active)
            // Progress is looked at every tick, so it's a little old.
            .filter(|peer| peer.matched + 1000 >= status.commit)
            .filter_map(|peer| Some((electable(&peer.address)?, peer.matched, peer.id)))
            .max_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)))
            .map(|(.., id)| id)
    }

    /// Does not campaign for a while; a zero duration ends that.
    pub fn freeze(&self, duration: Duration) -> Result<&'static str, CommandError> {
        self.require_config()?;
        if self.state() == MemberState::Primary {
            return Err(CommandError::new(
                ErrorCode::NotSecondary,
                "Cannot freeze node when primary or running for election, state: Primary",
            ));
        }
        if duration.is_zero() {
            self.come_back();
            return Ok("unfreezing");
        }
        self.stay_away(duration);
        let odd = duration == Duration::from_secs(1);
        Ok(if odd {
            "you really want to freeze for only 1 second?"
        } else {
            ""
        })
    }

    fn stay_away(&self, duration: Duration) {
        *self.frozen_until.lock() = Some(Instant::now() + duration);
        self.reconsider();
    }

    fn come_back(&self) {
        *self.frozen_until.lock() = None;
        self.reconsider();
    }
}

/// Looks again and again, as nothing tells when the condition comes true.
async fn wait(
    what: &str,
    patience: Duration,
    condition: impl Fn() -> bool,
) -> Result<(), CommandError> {
    let deadline = Instant::now() + patience;
    while !condition() {
        if Instant::now() >= deadline {
            return Err(CommandError::new(
                ErrorCode::ExceededTimeLimit,
                format!("waited too long for {what}"),
            ));
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}
