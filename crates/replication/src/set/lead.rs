//! Who leads, as far as an operator has a say: step down, step up, freeze, maintenance, sync from.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use banyan_consensus::{PeerId, Role, Status};
use banyan_wire::{CommandError, ErrorCode};

use super::ReplicationCoordinator;
use super::config::MemberConfig;
use super::health::Health;
use super::state::MemberState;
use crate::replica::Replica;

const SUCCESSOR_TIMEOUT: Duration = Duration::from_millis(1200);
const DOWN_TIMEOUT: Duration = Duration::from_secs(2);
const STEP_UP_TIMEOUT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(2);
const SUCCESSOR_POLL: Duration = Duration::from_millis(20);
/// What the others say of themselves is asked for again before one of them gets the lead: with the
/// last heartbeat they may have been frozen, or the primary.
const ANSWERS_TIMEOUT: Duration = Duration::from_millis(100);
/// Progress is looked at every tick, so it's a little old under load.
const CLOSE_ENTRIES: u64 = 1000;

impl ReplicationCoordinator {
    /// Gives the lead to another member, and stays away from it for a while.
    pub async fn step_down(
        &self,
        replica: &Replica,
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
        while replica.is_primary() {
            self.hear_candidates_out().await;
            let status = replica.group.status();
            if self.best_successor(&status, &asked).is_none() {
                asked.clear();
            }
            match self.best_successor(&status, &asked) {
                Some(successor) => {
                    asked.push(successor);
                    self.stay_away(away);
                    replica
                        .group
                        .hand_over(successor, "told to step down by command or by its own end");
                    let moved = || !replica.is_primary();
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
                        replica.group.step_down();
                        return wait("stepping down", DOWN_TIMEOUT, || !replica.is_primary()).await;
                    }
                    self.come_back();
                    return Err(nobody_caught_up());
                }
                None => tokio::time::sleep(SUCCESSOR_POLL).await,
            }
            if Instant::now() >= deadline && !force && replica.is_primary() {
                self.come_back();
                return Err(nobody_caught_up());
            }
        }
        Ok(())
    }

    /// Asks the others how they are, and waits for those who are up.
    async fn hear_candidates_out(&self) {
        let asked = Instant::now();
        self.pulse.notify_one();
        let all_answered = || {
            let fresh = |health: &Health| health.answered.is_some_and(|at| at >= asked);
            let health = self.health.lock();
            health.values().all(|other| !other.is_up() || fresh(other))
        };
        // Who does not answer now is judged by what it said before.
        let _ = wait("the members' answers", ANSWERS_TIMEOUT, all_answered).await;
    }

    fn best_successor(&self, status: &Status, except: &[PeerId]) -> Option<PeerId> {
        let config = self.config()?;
        let health = self.health.lock();
        let fit = |address: &str| -> Option<f64> {
            let member = config.by_host(address)?;
            let seen = health.get(address)?.last.as_ref()?;
            let fit = member.electable() && seen.may_lead && seen.state == MemberState::Secondary;
            fit.then_some(member.priority)
        };
        status
            .peers
            .iter()
            .filter(|peer| peer.id != self.id && !except.contains(&peer.id))
            .filter(|peer| peer.voter && peer.recent_active)
            .filter(|peer| peer.matched + CLOSE_ENTRIES >= status.commit)
            .filter_map(|peer| Some((fit(&peer.address)?, peer.matched, peer.id)))
            .max_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)))
            .map(|(.., id)| id)
    }

    /// Asks the others for the lead now, instead of when the primary is missed. The primary, if
    /// there is one, gives it away once this member has everything.
    pub async fn step_up(&self, replica: &Replica) -> Result<(), CommandError> {
        self.require_config()?;
        if self.state() == MemberState::Primary {
            return Ok(());
        }
        let failed = || CommandError::new(ErrorCode::CommandFailed, "Election failed.");
        let status = replica.group.status();
        if self.state() != MemberState::Secondary || !self.may_lead(&status) {
            return Err(failed());
        }
        match self.primary() {
            Some(primary) => self.ask_for_lead(&primary).await.map_err(|_| failed())?,
            None => replica.group.campaign(),
        }
        wait("the election", STEP_UP_TIMEOUT, || replica.is_primary())
            .await
            .map_err(|_| failed())
    }

    async fn ask_for_lead(&self, primary: &str) -> Result<(), CommandError> {
        let pool = self
            .peers
            .vital_pool(primary)
            .ok_or_else(|| super::unreachable(primary, "no runtime"))?;
        let body = bson::rawdoc! { "_giveLead": self.id as i64 };
        pool.command("admin", &body, Some(STEP_UP_TIMEOUT)).await?;
        Ok(())
    }

    /// Another member asked for the lead. It gets it once it has everything.
    pub fn give_lead(&self, replica: &Replica, to: PeerId) -> Result<(), CommandError> {
        let refused = |text: &str| CommandError::new(ErrorCode::CommandFailed, text);
        if !replica.is_primary() {
            return Err(refused("this member does not lead"));
        }
        let status = replica.group.status();
        let config = self.require_config()?;
        let member = status.membership.get(to).filter(|member| member.voter);
        let member = member.and_then(|member| config.by_host(&member.address));
        if !member.is_some_and(MemberConfig::electable) {
            return Err(refused("the member that asks for the lead may not have it"));
        }
        replica
            .group
            .hand_over(to, "told to by a member that steps up");
        Ok(())
    }

    /// A new primary here has everything that was ever acknowledged when it begins: there is no
    /// catching up to be ended.
    pub fn abort_catch_up(&self) -> CommandError {
        match self.require_config() {
            Err(error) => error,
            Ok(_) => CommandError::new(
                ErrorCode::IllegalOperation,
                "The node is not in catch-up mode.",
            ),
        }
    }

    /// Does not campaign for a while; a zero duration ends that. What there is to say about it.
    pub fn freeze(&self, duration: Duration) -> Result<Frozen, CommandError> {
        self.require_config()?;
        let running = self
            .status()
            .is_some_and(|status| status.role == Role::Candidate);
        let state = self.state();
        if state == MemberState::Primary || running {
            let state = if running { "Candidate" } else { "Primary" };
            return Err(CommandError::new(
                ErrorCode::NotSecondary,
                format!("Cannot freeze node when primary or running for election, state: {state}"),
            ));
        }
        if duration.is_zero() {
            self.come_back();
            return Ok(Frozen::NoMore);
        }
        self.stay_away(duration);
        if duration == Duration::from_secs(1) {
            return Ok(Frozen::ForOneSecond);
        }
        Ok(Frozen::ForAWhile)
    }

    pub(super) fn stay_away(&self, duration: Duration) {
        *self.frozen_until.lock() = Instant::now().checked_add(duration);
        self.reconsider();
    }

    pub(super) fn come_back(&self) {
        *self.frozen_until.lock() = None;
        self.reconsider();
    }

    /// In maintenance a member follows and answers no reads. It's counted: as often as it was
    /// asked for it has to be ended.
    pub fn maintain(&self, begin: bool) -> Result<(), CommandError> {
        self.require_config()?;
        if self.state() == MemberState::Primary {
            return Err(CommandError::new(
                ErrorCode::NotSecondary,
                "primaries can't modify maintenance mode",
            ));
        }
        let next = |count: u32| match begin {
            true => count.checked_add(1),
            false => count.checked_sub(1),
        };
        let changed = self
            .maintenance
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
        if changed.is_err() {
            return Err(CommandError::new(
                ErrorCode::OperationFailed,
                "already out of maintenance mode",
            ));
        }
        self.reconsider();
        self.topology_changed();
        Ok(())
    }

    /// Every member follows the primary, so that a request for another source is noted, checked as
    /// MongoDB does, and shown; it changes nothing. Answers the one requested before.
    pub fn sync_from(&self, host: &str) -> Result<Option<String>, CommandError> {
        let config = self.require_config()?;
        let not_secondary = |text: &str| Err(CommandError::new(ErrorCode::NotSecondary, text));
        let invalid = |text: String| Err(CommandError::new(ErrorCode::InvalidOptions, text));
        match self.state() {
            MemberState::Primary => return not_secondary("primaries don't sync"),
            MemberState::Arbiter => return not_secondary("arbiters don't sync"),
            MemberState::Removed | MemberState::Startup => {
                return not_secondary("Removed and uninitialized nodes do not sync");
            }
            _ => {}
        }
        if Some(host) == self.own_host().as_deref() {
            return invalid("I cannot sync from myself".to_owned());
        }
        let Some(member) = config.by_host(host) else {
            return Err(CommandError::new(
                ErrorCode::NodeNotFound,
                format!("Could not find member \"{host}\" in replica set"),
            ));
        };
        let cannot = |why: &str| invalid(format!("Cannot sync from \"{host}\" because {why}"));
        if member.arbiter_only {
            return cannot("it is an arbiter");
        }
        let own_builds = self.own_member().is_none_or(|own| own.build_indexes);
        if !member.build_indexes && own_builds {
            return cannot("it does not build indexes");
        }
        let up = self
            .health
            .lock()
            .get(host)
            .is_some_and(super::health::Health::is_up);
        if !up {
            return Err(CommandError::new(
                ErrorCode::HostUnreachable,
                format!("I cannot reach the requested member: {host}"),
            ));
        }
        Ok(self.sync_wish.lock().replace(host.to_owned()))
    }

    /// The host of the primary as this member sees it.
    pub fn primary(&self) -> Option<String> {
        self.primary_host(&self.status()?)
    }

    /// How much of the log is kept.
    pub fn oplog_limits(&self) -> super::retention::Limits {
        self.retention.limits()
    }

    /// Sets how much of the log is kept.
    pub fn resize_oplog(
        &self,
        replica: &Replica,
        megabytes: Option<u64>,
        hours: Option<f64>,
    ) -> std::io::Result<()> {
        self.retention.set(replica, megabytes, hours)
    }

    /// This member in the current configuration.
    pub fn own_member(&self) -> Option<MemberConfig> {
        let host = self.own_host()?;
        self.config()?.by_host(&host).cloned()
    }
}

/// The outcome of a request to freeze.
pub enum Frozen {
    NoMore,
    ForAWhile,
    ForOneSecond,
}

fn nobody_caught_up() -> CommandError {
    let now = bson::DateTime::now();
    let now = now.try_to_rfc3339_string().unwrap_or_default();
    CommandError::new(
        ErrorCode::ExceededTimeLimit,
        format!(
            "No electable secondaries caught up as of {now}. Please use the replSetStepDown \
             command with the argument {{force: true}} to force node to step down."
        ),
    )
}

/// Looks again and again, as nothing tells when the condition comes true.
pub(super) async fn wait(
    what: &str,
    timeout: Duration,
    condition: impl Fn() -> bool,
) -> Result<(), CommandError> {
    let deadline = Instant::now() + timeout;
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
