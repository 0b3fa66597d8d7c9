//! A state machine in memory: it remembers every write in order, and what a crash leaves of it.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::path::Path;
use std::sync::Arc;

use banyan_consensus::simulated;
use banyan_consensus::{ApplyError, Committed, PeerId, Position, SnapshotMeta, StateMachine};
use bytes::Bytes;
use parking_lot::Mutex;

use crate::life::Life;
use crate::random::{Random, mix};
use crate::state::{Attempt, Op, State, Surroundings};

#[derive(Clone, Default)]
struct Image {
    applied: Position,
    digest: u64,
    /// How often each write was applied.
    writes: BTreeMap<Op, u64>,
}

impl Image {
    fn apply(&mut self, position: Position, op: Option<Op>) {
        self.applied = position;
        self.digest = mix(mix(self.digest, position.index), position.term);
        if let Some(op) = op {
            self.digest = mix(mix(self.digest, op.client), op.number);
            *self.writes.entry(op).or_insert(0) += 1;
        }
    }
}

#[derive(Clone, Default)]
struct Disk {
    durable: Image,
    /// Applied since.
    since: Vec<(Position, Option<Op>)>,
}

pub struct Model {
    id: PeerId,
    around: Arc<Surroundings<ModelMachine>>,
    disk: Disk,
}

pub struct ModelMachine {
    id: PeerId,
    life: Arc<Life>,
    around: Arc<Surroundings<ModelMachine>>,
    state: Mutex<(Image, Disk)>,
    /// Clients whose write is on its way.
    in_flight: Arc<Mutex<HashSet<u64>>>,
}

/// Keeps a client's next write away until this one is applied or lost.
pub struct Flight {
    client: u64,
    in_flight: Arc<Mutex<HashSet<u64>>>,
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.in_flight.lock().remove(&self.client);
    }
}

fn encode(op: Op, padding: u64) -> Vec<u8> {
    let wall = simulated::wall_ms().unwrap_or_default();
    let mut out = [
        op.client.to_le_bytes(),
        op.number.to_le_bytes(),
        wall.to_le_bytes(),
    ]
    .concat();
    let mut random = Random::new(mix(op.client, op.number));
    let words = random.below(padding / 8 + 1);
    out.extend((0..words).flat_map(|_| random.draw().to_le_bytes()));
    out
}

fn decode(data: &Bytes) -> Option<Op> {
    let (client, rest) = data.split_first_chunk()?;
    let (number, _) = rest.split_first_chunk()?;
    Some(Op {
        client: u64::from_le_bytes(*client),
        number: u64::from_le_bytes(*number),
    })
}

impl StateMachine for ModelMachine {
    type Prepared = Flight;

    fn applied(&self) -> Position {
        self.state.lock().0.applied
    }

    fn apply(&self, entries: Vec<Committed<Flight>>) -> Result<(), ApplyError> {
        if !self.life.lives_on() {
            return Ok(());
        }
        let mut state = self.state.lock();
        let (image, disk) = &mut *state;
        let mut truth = self.around.truth.lock();
        for entry in entries {
            let before = image.applied;
            if entry.position.index != before.index + 1 {
                truth.violated(|| {
                    format!(
                        "member {} applies {:?} after {before:?}",
                        self.id, entry.position
                    )
                });
            }
            let op = decode(&entry.data);
            image.apply(entry.position, op);
            disk.since.push((entry.position, op));
            if let Some(op) = op.filter(|op| image.writes[op] > 1) {
                truth.violated(|| format!("{op:?} is applied twice by member {}", self.id));
            }
            truth.state(self.id, entry.position, image.digest);
        }
        Ok(())
    }

    fn written_ms(&self, data: &[u8]) -> Option<i64> {
        let (wall, _) = data.get(16..)?.split_first_chunk()?;
        Some(i64::from_le_bytes(*wall))
    }

    fn durable(&self) -> u64 {
        self.state.lock().1.durable.applied.index
    }

    fn make_durable(&self) -> io::Result<u64> {
        let mut state = self.state.lock();
        if self.life.lives_on() {
            let (image, disk) = &mut *state;
            disk.durable = image.clone();
            disk.since.clear();
        }
        Ok(state.0.applied.index)
    }

    fn install_snapshot(&self, meta: SnapshotMeta) -> Result<(), ApplyError> {
        let source = self.around.reach(self.id, meta.leader);
        if !self.life.lives_on() {
            return Ok(());
        }
        let fetched = source.map(|machine| machine.state.lock().0.clone());
        {
            // Emptied first, and for good: it would be torn otherwise.
            let mut state = self.state.lock();
            *state = Default::default();
        }
        let Some(fetched) = fetched else {
            return Err(ApplyError("the leader cannot be reached".to_owned()));
        };
        if fetched.applied < meta.position {
            return Err(ApplyError("the leader's state is too old".to_owned()));
        }
        if !self.life.lives_on() {
            return Ok(());
        }
        let mut state = self.state.lock();
        state.1.durable = fetched.clone();
        state.0 = fetched;
        Ok(())
    }
}

impl State for Model {
    type Machine = ModelMachine;

    fn blank(id: PeerId, _home: &Path, around: &Arc<Surroundings<ModelMachine>>) -> Model {
        Model {
            id,
            around: around.clone(),
            disk: Disk::default(),
        }
    }

    fn start(&mut self, life: &Arc<Life>) -> Result<Arc<ModelMachine>, String> {
        let mut image = self.disk.durable.clone();
        for &(position, op) in &self.disk.since {
            image.apply(position, op);
        }
        // What is read back counts as durable from now on.
        self.disk = Disk {
            durable: image.clone(),
            since: Vec::new(),
        };
        Ok(Arc::new(ModelMachine {
            id: self.id,
            life: life.clone(),
            around: self.around.clone(),
            state: Mutex::new((image, self.disk.clone())),
            in_flight: Arc::default(),
        }))
    }

    fn crash(&mut self, machine: Arc<ModelMachine>, random: &mut Random) -> Result<(), String> {
        self.disk = machine.state.lock().1.clone();
        let kept = random.below(self.disk.since.len() as u64 + 1);
        self.disk.since.truncate(kept as usize);
        Ok(())
    }

    fn write(machine: &Arc<ModelMachine>, op: Op) -> Attempt<Flight> {
        if machine.state.lock().0.writes.contains_key(&op) {
            return Attempt::Done;
        }
        if !machine.in_flight.lock().insert(op.client) {
            return Attempt::Busy;
        }
        let flight = Flight {
            client: op.client,
            in_flight: machine.in_flight.clone(),
        };
        Attempt::Propose(encode(op, machine.around.padding), flight)
    }

    fn digest(
        machine: &ModelMachine,
        _thoroughly: bool,
    ) -> Result<(Position, Option<u64>), String> {
        let state = machine.state.lock();
        Ok((state.0.applied, Some(state.0.digest)))
    }

    fn counts(machine: &ModelMachine) -> Result<BTreeMap<Op, u64>, String> {
        Ok(machine.state.lock().0.writes.clone())
    }
}
