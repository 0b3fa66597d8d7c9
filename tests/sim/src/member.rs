//! A member: what lies on its disk, and while it lives the group that runs over it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use banyan_consensus::simulated::{self, Disk, LogView, Stepper};
use banyan_consensus::{Group, Options, PeerId, Position, SyncMode};

use crate::life::Life;
use crate::network::{Wire, address};
use crate::random::Random;
use crate::state::{State, Surroundings};

pub const HEARTBEAT: Duration = Duration::from_millis(100);
pub const ELECTION: Duration = Duration::from_millis(1000);

pub struct Alive<S: State> {
    // Dropped first: the rest must outlive the group.
    pub group: Group<S::Machine>,
    pub stepper: Stepper<S::Machine>,
    pub machine: Arc<S::Machine>,
    pub life: Arc<Life>,
    disk: Arc<Disk>,
    /// What its log was when it was last looked at: term and hash, from an index on.
    log: Vec<(u64, u64)>,
    log_from: u64,
    commit_seen: u64,
    pub wakes_at: Option<u64>,
    pub applies: bool,
    pub busy_until: u64,
}

pub struct Member<S: State> {
    pub id: PeerId,
    home: PathBuf,
    pub state: S,
    pub alive: Option<Alive<S>>,
    /// What the life before has left.
    disk: Option<Arc<Disk>>,
    /// Which life it is: events of an earlier one come to nothing.
    pub lives: u64,
    /// Its clock's speed in thousandths of the true one.
    pub pace: u64,
}

/// How an attempt to start has ended.
pub enum Start {
    Started,
    /// It died over it, or its disk failed.
    Died,
}

impl<S: State> Member<S> {
    pub fn new(id: PeerId, home: &Path, around: &Arc<Surroundings<S::Machine>>) -> Member<S> {
        let home = home.join(id.to_string());
        Member {
            id,
            state: S::blank(id, &home, around),
            home,
            alive: None,
            disk: None,
            lives: 0,
            pace: 1000,
        }
    }

    pub fn log_dir(&self) -> PathBuf {
        self.home.join("log")
    }

    pub fn start(
        &mut self,
        life: Life,
        (log_bytes_max, sync): (u64, SyncMode),
        around: &Arc<Surroundings<S::Machine>>,
        random: &mut Random,
    ) -> Result<Start, String> {
        self.lives += 1;
        let life = Arc::new(life);
        let dir = self.log_dir();
        std::fs::create_dir_all(&dir).map_err(|error| error.to_string())?;
        let machine = self.state.start(&life)?;
        let disk = Disk::new(life.clone(), self.disk.as_deref());
        self.disk = Some(disk.clone());
        let wire = Arc::new(Wire {
            own: self.id,
            life: life.clone(),
            network: around.network.clone(),
        });
        let options = Options {
            heartbeat: HEARTBEAT,
            election_timeout: ELECTION,
            log_bytes_max,
            // Often less than what is committed at once.
            apply_queue_bytes_max: 1 << (self.lives % 16),
            on_fatal: |_| {},
            ..Options::new(self.id, sync)
        };
        let opened = catch_unwind(AssertUnwindSafe(|| {
            simulated::open(&dir, disk.clone(), options, machine.clone(), wire)
        }));
        match opened {
            Ok(Ok((group, stepper))) if !life.is_dead() => {
                around.machines.lock().insert(self.id, machine.clone());
                self.alive = Some(Alive {
                    group,
                    stepper,
                    machine,
                    life,
                    disk,
                    log: Vec::new(),
                    log_from: 1,
                    commit_seen: 0,
                    wakes_at: None,
                    applies: false,
                    busy_until: 0,
                });
                Ok(Start::Started)
            }
            outcome => {
                let excused = life.is_dead() || life.has_failed();
                life.end();
                let what = match &outcome {
                    Ok(Ok(_)) => String::new(),
                    Ok(Err(error)) => error.to_string(),
                    Err(panic) => crate::panic_text(panic.as_ref()),
                };
                drop(outcome);
                self.leave(machine, &disk, true, random)?;
                match excused {
                    true => Ok(Start::Died),
                    false => Err(format!("member {} cannot start: {what}", self.id)),
                }
            }
        }
    }

    /// Ends its life. With the power, what was not synced goes as well.
    pub fn crash(
        &mut self,
        power_cut: bool,
        around: &Surroundings<S::Machine>,
        random: &mut Random,
    ) -> Result<(), String> {
        let Some(alive) = self.alive.take() else {
            return Ok(());
        };
        around.machines.lock().remove(&self.id);
        let Alive {
            group,
            stepper,
            machine,
            life,
            disk,
            ..
        } = alive;
        life.end();
        drop((group, stepper));
        self.leave(machine, &disk, power_cut, random)
    }

    fn leave(
        &mut self,
        machine: Arc<S::Machine>,
        disk: &Disk,
        power_cut: bool,
        random: &mut Random,
    ) -> Result<(), String> {
        if power_cut {
            disk.cut_power(|below| random.below(below.max(1)))
                .map_err(|error| error.to_string())?;
        }
        self.state.crash(machine, random)
    }

    pub fn address(&self, number: u64) -> String {
        address(self.id, number)
    }
}

impl<S: State> Alive<S> {
    /// Compares what is new in its log with what is known. Returns the view, and whether it leads
    /// a term that nobody was known to lead.
    pub fn check(&mut self, id: PeerId, around: &Surroundings<S::Machine>) -> LogView {
        let life = self.life.clone();
        life.observe(|| self.compare(id, around))
    }

    fn compare(&mut self, id: PeerId, around: &Surroundings<S::Machine>) -> LogView {
        let view = self.stepper.look();
        let mut truth = around.truth.lock();
        let base = view.base;
        if base.index >= self.log_from + self.log.len() as u64 || base.index + 1 < self.log_from {
            self.log.clear();
            self.log_from = base.index + 1;
        }
        let mut same = (self.log_from + self.log.len() as u64 - 1).min(view.last);
        while same > base.index && same >= self.log_from {
            let known = self.log[(same - self.log_from) as usize].0;
            if self.stepper.term_of(same) == Some(known) {
                break;
            }
            same -= 1;
        }
        let same = same.max(base.index);
        self.log
            .truncate((same + 1).saturating_sub(self.log_from) as usize);
        let mut before = self.stepper.term_of(same).filter(|_| same > 0);
        match self.stepper.entries(same + 1, view.last + 1) {
            Ok(entries) => {
                for entry in entries {
                    truth.holds(id, entry.position, entry.hash, before);
                    before = Some(entry.position.term);
                    self.log.push((entry.position.term, entry.hash));
                }
            }
            Err(error) => truth.violated(|| format!("member {id} cannot read its log: {error}")),
        }
        let from = self.commit_seen.max(base.index) + 1;
        for index in from..=view.commit.min(view.last) {
            let Some(&(term, hash)) = index
                .checked_sub(self.log_from)
                .and_then(|at| self.log.get(at as usize))
            else {
                continue;
            };
            truth.commits(id, Position { term, index }, hash);
        }
        self.commit_seen = self.commit_seen.max(view.commit);
        if view.leads && truth.leads(id, view.term) {
            self.check_complete(id, &view, &mut truth);
        }
        truth.mark(view.term ^ (view.commit << 16) ^ (view.last << 32) ^ (id << 56));
        view
    }

    /// A new leader has everything that was committed. One that slept when it became the leader may
    /// be an old one by the time it is seen: it need not know of later terms.
    fn check_complete(&self, id: PeerId, view: &LogView, truth: &mut crate::truth::Truth) {
        let Some(newest) = truth.newest_committed_by(view.term) else {
            return;
        };
        let has = newest.index <= view.base.index
            || self.stepper.term_of(newest.index) == Some(newest.term);
        if !has {
            truth.violated(|| {
                format!(
                    "member {id} leads in term {} and lacks {newest:?}, which is committed",
                    view.term
                )
            });
        }
    }
}
