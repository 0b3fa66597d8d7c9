//! One run: a set, its clients, its operator and a storm, on one thread, from one seed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use banyan_consensus::simulated::{self, Bug, describe};
use banyan_consensus::{Membership, PeerId, SyncMode};
use bytes::Bytes;
use parking_lot::Mutex;

use crate::client::{Client, Read};
use crate::life::Life;
use crate::member::{Member, Start};
use crate::network::{Network, Sent, address};
use crate::random::Random;
use crate::state::{State, Surroundings};
use crate::truth::Truth;

pub const MILLI: u64 = 1000;
pub const SECOND: u64 = 1000 * MILLI;
const UPKEEP: u64 = SECOND;
/// Lines of the trace that are kept.
const TRACE_LINES: usize = 60;

/// What the members' states are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A list of writes in memory.
    Memory,
    /// The node's own machine, over a store.
    Store,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Memory => "memory",
            Kind::Store => "store",
        }
    }
}

/// What a run is like.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub bug: Option<Bug>,
    pub kind: Kind,
    /// How long the storm lasts, in simulated time.
    pub storm: Duration,
    /// Remember what happens in words.
    pub narrate: bool,
    /// Print it at once.
    pub print: bool,
}

impl Plan {
    pub fn new(seed: u64) -> Plan {
        Plan {
            seed,
            bug: None,
            kind: Kind::Memory,
            storm: Duration::from_secs(20),
            narrate: false,
            print: false,
        }
    }
}

/// What a run has seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// A hash of all that happened.
    pub trace: u64,
    pub events: u64,
    pub acknowledged: usize,
    pub retries_found_done: u64,
    pub reads: u64,
    pub terms: usize,
    pub crashes: u64,
    pub power_cuts: u64,
    pub disk_failures: u64,
    pub snapshots: u64,
    pub cut_logs: u64,
    pub changes: u64,
    pub cuts: u64,
    pub simulated_ms: u64,
}

impl Summary {
    pub fn add(&mut self, other: &Summary) {
        self.events += other.events;
        self.acknowledged += other.acknowledged;
        self.retries_found_done += other.retries_found_done;
        self.reads += other.reads;
        self.terms += other.terms;
        self.crashes += other.crashes;
        self.power_cuts += other.power_cuts;
        self.disk_failures += other.disk_failures;
        self.snapshots += other.snapshots;
        self.cut_logs += other.cut_logs;
        self.changes += other.changes;
        self.cuts += other.cuts;
        self.simulated_ms += other.simulated_ms;
    }
}

/// What went wrong, and what was last seen before.
#[derive(Debug)]
pub struct Failure {
    pub seed: u64,
    pub at_ms: u64,
    pub what: String,
    pub trace: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "seed {} fails after {} ms: {}",
            self.seed, self.at_ms, self.what
        )
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    Deliver(PeerId, PeerId, Bytes),
    Wake(PeerId, u64),
    Apply(PeerId, u64),
    Upkeep(PeerId, u64),
    /// Whatever is left of the member's life ends.
    Kill(PeerId, u64, bool),
    Restart(PeerId),
    /// A full disk has room again, a slow one is fast.
    Repair(PeerId, u64),
    Client(usize),
    Read,
    Operate,
    Storm,
}

pub struct Simulation<S: State> {
    pub(crate) plan: Plan,
    pub(crate) random: Random,
    pub(crate) now: u64,
    queue: BinaryHeap<Reverse<(u64, u64, Event)>>,
    scheduled: u64,
    pub(crate) around: Arc<Surroundings<S::Machine>>,
    pub(crate) members: BTreeMap<PeerId, Member<S>>,
    pub(crate) clients: Vec<Client>,
    pub(crate) reads: Vec<Read>,
    pub(crate) changing: Option<(PeerId, u64, ChangeOutcome)>,
    pub(crate) stormy: bool,
    log_bytes_max: u64,
    pub(crate) summary: Summary,
    narration: VecDeque<String>,
    /// Removed at the end.
    home: tempfile::TempDir,
}

pub(crate) type ChangeOutcome = futures::future::BoxFuture<'static, Result<Membership, String>>;

impl<S: State> Simulation<S> {
    pub fn new(plan: Plan) -> Result<Simulation<S>, String> {
        let mut random = Random::new(plan.seed);
        simulated::enter(random.draw(), plan.bug);
        let home = crate::home().map_err(|error| error.to_string())?;
        let bulky = random.once_in(4);
        let around = Arc::new(Surroundings {
            truth: Mutex::new(Truth::default()),
            network: Arc::new(Network::default()),
            machines: Mutex::default(),
            padding: if bulky { 60_000 } else { 600 },
            clustered: plan.seed.is_multiple_of(3),
        });
        let size = random.between(3, 5);
        let members = (1..=size)
            .map(|id| (id, Member::new(id, home.path(), &around)))
            .collect();
        let clients = random.between(2, 8);
        let mut simulation = Simulation {
            random,
            now: 0,
            queue: BinaryHeap::new(),
            scheduled: 0,
            around,
            members,
            clients: (1..=clients).map(Client::new).collect(),
            reads: Vec::new(),
            changing: None,
            stormy: true,
            log_bytes_max: if bulky { 3 << 20 } else { 64 << 10 },
            summary: Summary::default(),
            narration: VecDeque::new(),
            home,
            plan,
        };
        simulation.begin(size)?;
        Ok(simulation)
    }

    fn begin(&mut self, size: u64) -> Result<(), String> {
        for id in 1..=size {
            self.start(id)?;
        }
        let first = self
            .members
            .get(&1)
            .and_then(|member| member.alive.as_ref());
        if let Some(alive) = first {
            alive
                .group
                .bootstrap(&address(1, 0))
                .map_err(|error| error.to_string())?;
        }
        self.touched(1);
        for client in 0..self.clients.len() {
            self.schedule(1500 * MILLI, Event::Client(client));
        }
        self.schedule(2 * SECOND, Event::Read);
        self.schedule(SECOND, Event::Operate);
        self.schedule(4 * SECOND, Event::Storm);
        Ok(())
    }

    pub(crate) fn schedule(&mut self, after: u64, event: Event) {
        self.scheduled += 1;
        self.queue
            .push(Reverse((self.now + after, self.scheduled, event)));
    }

    pub(crate) fn tell(&mut self, what: impl FnOnce() -> String) {
        if !self.plan.narrate {
            return;
        }
        let line = format!("{:>10.3} ms  {}", self.now as f64 / 1000.0, what());
        if self.plan.print {
            println!("{line}");
        }
        self.narration.push_back(line);
        if self.narration.len() > TRACE_LINES {
            self.narration.pop_front();
        }
    }

    /// Runs to the end, or to the first contradiction.
    pub fn run(mut self) -> Result<Summary, Failure> {
        let outcome = self.play();
        let Err(what) = outcome else {
            let truth = self.around.truth.lock();
            return Ok(Summary {
                trace: truth.trace,
                acknowledged: truth.acknowledged_count(),
                terms: truth.terms(),
                simulated_ms: self.now / 1000,
                ..self.summary.clone()
            });
        };
        let home = self.home.path().to_string_lossy().into_owned();
        Err(Failure {
            seed: self.plan.seed,
            at_ms: self.now / 1000,
            what: what.replace(&home, ""),
            trace: std::mem::take(&mut self.narration).into(),
        })
    }

    fn play(&mut self) -> Result<(), String> {
        let end = self.plan.storm.as_micros() as u64;
        while self.now < end {
            self.step()?;
        }
        self.calm();
        let patience = self.now + 120 * SECOND;
        let mut look_at = self.now + SECOND;
        while !(self.now >= look_at && self.agree()?) {
            if self.now >= look_at {
                look_at = self.now + SECOND / 2;
            }
            if self.now >= patience {
                return Err(format!("no agreement in the end:\n{}", self.picture()));
            }
            self.step()?;
        }
        self.check_end()
    }

    fn step(&mut self) -> Result<(), String> {
        let Some(Reverse((at, _, event))) = self.queue.pop() else {
            return Err("nothing happens any more".to_owned());
        };
        self.now = at;
        simulated::set_time(Duration::from_micros(at));
        self.summary.events += 1;
        self.happen(event)?;
        self.ask_clients()?;
        match self.around.truth.lock().violation() {
            Some(what) => Err(what.to_owned()),
            None => Ok(()),
        }
    }

    fn happen(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Deliver(from, to, frame) => self.deliver(from, to, frame),
            Event::Wake(id, lives) => self.wake(id, lives)?,
            Event::Apply(id, lives) => self.apply(id, lives)?,
            Event::Upkeep(id, lives) => self.keep_up(id, lives)?,
            Event::Kill(id, lives, power_cut) => {
                if self
                    .members
                    .get(&id)
                    .is_some_and(|member| member.lives == lives)
                {
                    self.crash(id, power_cut)?;
                }
            }
            Event::Restart(id) => self.start(id)?,
            Event::Repair(id, lives) => self.repair(id, lives),
            Event::Client(number) => self.client(number),
            Event::Read => self.read(),
            Event::Operate => self.operate(),
            Event::Storm => self.storm()?,
        }
        Ok(())
    }

    fn deliver(&mut self, from: PeerId, to: PeerId, frame: Bytes) {
        if self.around.network.is_cut(from, to) {
            self.tell(|| format!("{from} -> {to}  cut off: {}", describe(&frame)));
            return;
        }
        self.tell(|| format!("{from} -> {to}  {}", describe(&frame)));
        if let Some(alive) = self.alive(to) {
            alive.group.step(frame);
            self.touched(to);
        }
    }

    pub(crate) fn alive(&mut self, id: PeerId) -> Option<&mut crate::member::Alive<S>> {
        self.members.get_mut(&id)?.alive.as_mut()
    }

    fn current(&mut self, id: PeerId, lives: u64) -> Option<&mut crate::member::Alive<S>> {
        let member = self.members.get_mut(&id)?;
        member.alive.as_mut().filter(|_| member.lives == lives)
    }

    /// Something waits for a member, perhaps: sees to it that it wakes in time.
    pub(crate) fn touched(&mut self, id: PeerId) {
        let now = self.now;
        let slack = self.random.between(20, 200);
        let Some(member) = self.members.get_mut(&id) else {
            return;
        };
        let lives = member.lives;
        let Some(alive) = &mut member.alive else {
            return;
        };
        let sleeps = alive.stepper.sleeps_for().unwrap_or_default().as_micros() as u64;
        let at = (now + sleeps + slack).max(alive.busy_until);
        if alive
            .wakes_at
            .is_some_and(|other| other > now && other <= at)
        {
            return;
        }
        alive.wakes_at = Some(at);
        self.schedule(at - now, Event::Wake(id, lives));
    }

    fn wake(&mut self, id: PeerId, lives: u64) -> Result<(), String> {
        let now = self.now;
        let Some(alive) = self.current(id, lives) else {
            return Ok(());
        };
        if alive.wakes_at != Some(now) {
            return Ok(());
        }
        alive.wakes_at = None;
        if alive.busy_until > now {
            self.touched(id);
            return Ok(());
        }
        alive.life.take_spent();
        alive.stepper.turn();
        alive.busy_until = now + alive.life.take_spent();
        if !self.survives(id)? {
            return Ok(());
        }
        let delay = match self.random.below(50) {
            0 if self.stormy => self.random.below(400 * MILLI),
            1..5 => self.random.below(20 * MILLI),
            _ => self.random.between(50, 1500),
        };
        if let Some(alive) = self.alive(id)
            && !alive.applies
        {
            alive.applies = true;
            self.schedule(delay, Event::Apply(id, lives));
        }
        self.touched(id);
        Ok(())
    }

    fn apply(&mut self, id: PeerId, lives: u64) -> Result<(), String> {
        let Some(alive) = self.current(id, lives) else {
            return Ok(());
        };
        let installing = alive.stepper.look().installing;
        let again = alive.stepper.apply();
        alive.applies = again;
        if !self.survives(id)? {
            return Ok(());
        }
        if again {
            self.summary.snapshots += u64::from(installing);
            let delay = self.random.between(30, 1000);
            self.schedule(delay, Event::Apply(id, lives));
        }
        self.touched(id);
        Ok(())
    }

    fn keep_up(&mut self, id: PeerId, lives: u64) -> Result<(), String> {
        let Some(alive) = self.current(id, lives) else {
            return Ok(());
        };
        let before = alive.stepper.look();
        alive.stepper.keep_up();
        let after = alive.stepper.look();
        if before.base != after.base {
            self.summary.cut_logs += 1;
            self.tell(|| format!("{id} cuts its log after {:?}", after.base));
        }
        if self.survives(id)? {
            self.touched(id);
            self.schedule(UPKEEP, Event::Upkeep(id, lives));
        }
        Ok(())
    }

    /// After a member did something: takes what it sent, and buries it if it died over it.
    fn survives(&mut self, id: PeerId) -> Result<bool, String> {
        self.post();
        let around = self.around.clone();
        let Some(alive) = self.alive(id) else {
            return Ok(false);
        };
        if alive.life.is_dead() {
            let power_cut = self.random.once_in(2);
            self.tell(|| format!("{id} dies in the middle of it"));
            self.crash(id, power_cut)?;
            return Ok(false);
        }
        if alive.stepper.has_failed() {
            // Its process ends itself; the system below may go on, or not.
            let power_cut = self.random.once_in(2);
            self.summary.disk_failures += 1;
            self.tell(|| format!("{id} stops itself"));
            self.crash(id, power_cut)?;
            return Ok(false);
        }
        if alive.life.has_failed() {
            return Err(format!(
                "the disk of member {id} has failed, and it goes on"
            ));
        }
        let view = alive.check(id, &around);
        if view.leads {
            self.tell(|| format!("{id} leads in term {}, commit {}", view.term, view.commit));
        }
        let (position, digest) = match self.alive(id) {
            Some(alive) => S::digest(&alive.machine, false)?,
            None => return Ok(false),
        };
        if let Some(digest) = digest.filter(|_| position.index > 0) {
            self.around.truth.lock().state(id, position, digest);
        }
        Ok(true)
    }

    /// Messages go on their way.
    fn post(&mut self) {
        let sent = std::mem::take(&mut *self.around.network.outbox.lock());
        for Sent {
            from,
            to,
            frame,
            after_micros,
        } in sent
        {
            let copies = match self.random.below(25) {
                0 if self.stormy => 0,
                1 if self.stormy => 2,
                _ => 1,
            };
            for _ in 0..copies {
                let slow = self.stormy && self.random.once_in(12);
                let limit = if slow { 150 * MILLI } else { 2 * MILLI };
                let delay = after_micros + self.random.between(100, limit);
                self.schedule(delay, Event::Deliver(from, to, frame.clone()));
            }
        }
    }

    pub(crate) fn start(&mut self, id: PeerId) -> Result<(), String> {
        let sync_micros = self.random.between(200, 4000);
        let life = Life::new(self.random.draw(), sync_micros);
        if self.stormy && self.now > 0 && self.random.once_in(8) {
            // It may not even come up.
            life.light_fuse(self.random.below(6));
        }
        let Some(member) = self.members.get_mut(&id) else {
            return Ok(());
        };
        if member.alive.is_some() {
            return Ok(());
        }
        let sync = match self.plan.bug {
            Some(Bug::AcknowledgeBeforeSync) => SyncMode::Interval(Duration::from_millis(100)),
            _ => SyncMode::EveryEntry,
        };
        let options = (self.log_bytes_max, sync);
        let started = member.start(life, options, &self.around, &mut self.random)?;
        let lives = member.lives;
        match started {
            Start::Started => {
                self.tell(|| format!("{id} starts"));
                self.schedule(UPKEEP, Event::Upkeep(id, lives));
                self.schedule(0, Event::Apply(id, lives));
                if self.survives(id)? {
                    self.touched(id);
                }
            }
            Start::Died => {
                self.tell(|| format!("{id} dies while it starts"));
                self.summary.crashes += 1;
                self.schedule(50 * MILLI, Event::Restart(id));
            }
        }
        Ok(())
    }

    pub(crate) fn crash(&mut self, id: PeerId, power_cut: bool) -> Result<(), String> {
        let Some(member) = self.members.get_mut(&id) else {
            return Ok(());
        };
        if member.alive.is_none() {
            return Ok(());
        }
        self.tell(|| {
            format!(
                "{id} is gone{}",
                if power_cut { ", with its power" } else { "" }
            )
        });
        let Some(member) = self.members.get_mut(&id) else {
            return Ok(());
        };
        member.crash(power_cut, &self.around, &mut self.random)?;
        self.summary.crashes += 1;
        self.summary.power_cuts += u64::from(power_cut);
        let away = match self.random.below(6) {
            0 => self.random.between(1000 * MILLI, 6000 * MILLI),
            _ => self.random.between(MILLI, 600 * MILLI),
        };
        self.schedule(away, Event::Restart(id));
        Ok(())
    }

    /// The storm is over.
    fn calm(&mut self) {
        self.stormy = false;
        self.around.network.heal();
        self.tell(|| "the storm is over".to_owned());
        for id in self.members.keys().copied().collect::<Vec<_>>() {
            let lives = self.members.get(&id).map_or(0, |member| member.lives);
            self.repair(id, lives);
            if let Some(alive) = self.alive(id) {
                alive.group.set_electable(true);
                alive.group.set_apply_delay(Duration::ZERO);
                alive.busy_until = 0;
            }
            self.touched(id);
        }
    }

    pub(crate) fn repair(&mut self, id: PeerId, lives: u64) {
        if let Some(alive) = self.current(id, lives) {
            alive.life.trouble(None);
            alive.life.set_sync_micros(2000);
        }
    }

    /// All members are there, have everything and are the same.
    fn agree(&mut self) -> Result<bool, String> {
        let Some(newest) = self.around.truth.lock().newest_committed() else {
            return Ok(false);
        };
        let size = self.members.len();
        for member in self.members.values() {
            let Some(alive) = &member.alive else {
                return Ok(false);
            };
            let (position, _) = S::digest(&alive.machine, false)?;
            let membership = alive.stepper.look().membership;
            if position != newest || membership.voters().count() != size {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn check_end(&mut self) -> Result<(), String> {
        let around = self.around.clone();
        let truth = around.truth.lock();
        let mut digests = None;
        for (id, member) in &self.members {
            let Some(alive) = &member.alive else {
                continue;
            };
            let (_, digest) = S::digest(&alive.machine, true)?;
            if *digests.get_or_insert(digest) != digest {
                return Err(format!("the states differ in the end, at member {id}"));
            }
            let counts = S::counts(&alive.machine)?;
            for (&op, position) in truth.acknowledged() {
                let count = counts.get(&op).copied().unwrap_or(0);
                if count != 1 {
                    return Err(format!(
                        "{op:?}, acknowledged at {position:?}, is there {count} times at {id}"
                    ));
                }
            }
        }
        Ok(())
    }

    fn picture(&mut self) -> String {
        let mut picture = String::new();
        for (id, member) in &self.members {
            let line = match &member.alive {
                None => "is away".to_owned(),
                Some(alive) => format!("{:?}", alive.group.status()),
            };
            picture += &format!("  member {id} {line}\n");
        }
        picture
    }
}

impl<S: State> Drop for Simulation<S> {
    fn drop(&mut self) {
        self.clients.clear();
        self.reads.clear();
        for member in self.members.values_mut() {
            // Nobody looks at what it leaves.
            let _ = member.crash(false, &self.around, &mut self.random);
        }
        simulated::leave();
    }
}
