//! Clients: each has one write under way, and tries it again, wherever it thinks the leader is,
//! until it is acknowledged. Readers ask for an index that shows everything acknowledged before.

use banyan_consensus::{PeerId, Position, ProposeError, ProposeOptions};
use futures::FutureExt;
use futures::future::BoxFuture;

use crate::simulation::{Event, MILLI, SECOND, Simulation};
use crate::state::{Attempt, Op, State};

/// As long as a client waits for an answer before it tries again elsewhere.
const TIMEOUT: u64 = 2 * SECOND;

pub type Outcome = Result<Position, ProposeError>;

pub struct Client {
    pub id: u64,
    pub number: u64,
    /// Where it goes next.
    pub target: PeerId,
    pub under_way: Option<UnderWay>,
}

pub struct UnderWay {
    pub member: PeerId,
    pub lives: u64,
    pub since: u64,
    pub outcome: BoxFuture<'static, Outcome>,
}

impl Client {
    pub fn new(id: u64) -> Client {
        Client {
            id,
            number: 1,
            target: 1,
            under_way: None,
        }
    }

    pub fn op(&self) -> Op {
        Op {
            client: self.id,
            number: self.number,
        }
    }
}

pub struct Read {
    pub member: PeerId,
    pub lives: u64,
    /// What it must show.
    pub floor: u64,
    pub outcome: BoxFuture<'static, Result<u64, String>>,
}

impl<S: State> Simulation<S> {
    /// One write of a client, or another attempt at it.
    pub(crate) fn client(&mut self, number: usize) {
        let pause = match self.random.below(10) {
            0 => self.random.below(SECOND),
            _ => self.random.between(MILLI, 60 * MILLI),
        };
        self.schedule(pause, Event::Client(number));
        let ids: Vec<PeerId> = self.members.keys().copied().collect();
        let Some(client) = self.clients.get_mut(number) else {
            return;
        };
        if let Some(under_way) = &client.under_way {
            if under_way.since + TIMEOUT > self.now {
                return;
            }
            client.under_way = None;
            client.target = self.random.pick(&ids).copied().unwrap_or(1);
        }
        let (op, target) = (client.op(), client.target);
        let sync = self.random.once_in(2);
        let since = self.now;
        let other = self.random.pick(&ids).copied().unwrap_or(1);
        let Some(member) = self.members.get(&target) else {
            return;
        };
        let lives = member.lives;
        let serving = member
            .alive
            .as_ref()
            .map(|alive| (alive, alive.group.leader_term()))
            .filter(|&(_, term)| term != 0);
        let mut next = other;
        let mut outcome = None;
        let options = |term| ProposeOptions { sync, term };
        if let Some((alive, term)) = serving {
            next = target;
            let machine = alive.machine.clone();
            match S::write(&machine, op) {
                Attempt::Propose(data, prepared) => {
                    outcome = Some(alive.group.propose(data, prepared, options(term)));
                }
                Attempt::First(data, prepared) => {
                    // Whether it comes to something shows at the next attempt.
                    drop(alive.group.propose(data, prepared, options(term)));
                    self.touched(target);
                }
                Attempt::Done => {
                    // What has had its effect here may be answered: it is committed.
                    self.summary.retries_found_done += 1;
                    self.clients[number].number += 1;
                }
                Attempt::Busy => {}
            }
        }
        let client = &mut self.clients[number];
        client.target = next;
        if let Some(outcome) = outcome {
            client.under_way = Some(UnderWay {
                member: target,
                lives,
                since,
                outcome,
            });
            self.tell(|| format!("client {} writes {op:?} at {target}", op.client));
            self.touched(target);
        }
    }

    pub(crate) fn read(&mut self) {
        let pause = self.random.between(5 * MILLI, 200 * MILLI);
        self.schedule(pause, Event::Read);
        let ids: Vec<PeerId> = self.members.keys().copied().collect();
        let Some(&id) = self.random.pick(&ids) else {
            return;
        };
        let floor = self.around.truth.lock().newest_acknowledged();
        let Some(member) = self.members.get(&id) else {
            return;
        };
        let lives = member.lives;
        let Some(alive) = &member.alive else {
            return;
        };
        let outcome = alive.group.read_index();
        self.reads.push(Read {
            member: id,
            lives,
            floor,
            outcome: outcome
                .map(|outcome| outcome.map_err(|error| error.to_string()))
                .boxed(),
        });
        self.tell(|| format!("a reader asks {id} for everything up to {floor}"));
        self.touched(id);
    }

    /// Takes the answers that have come.
    pub(crate) fn ask_clients(&mut self) -> Result<(), String> {
        for number in 0..self.clients.len() {
            self.ask_client(number);
        }
        let mut reads = std::mem::take(&mut self.reads);
        let mut failure = None;
        reads.retain_mut(|read| {
            let Some(member) = self.members.get(&read.member) else {
                return false;
            };
            let Some(alive) = member.alive.as_ref().filter(|_| member.lives == read.lives) else {
                return false;
            };
            let Some(outcome) = (&mut read.outcome).now_or_never() else {
                return true;
            };
            let Ok(index) = outcome else {
                return false;
            };
            self.summary.reads += 1;
            let applied = alive.group.applied_index();
            if index < read.floor || applied < index {
                failure = Some(format!(
                    "a read at member {} is stale: it shows {index} (applied {applied}), and {} \
                     was acknowledged before it was asked",
                    read.member, read.floor
                ));
            }
            false
        });
        self.reads = reads;
        failure.map_or(Ok(()), Err)
    }

    fn ask_client(&mut self, number: usize) {
        let client = &mut self.clients[number];
        let op = client.op();
        let Some(under_way) = &mut client.under_way else {
            return;
        };
        let gone = self
            .members
            .get(&under_way.member)
            .is_none_or(|member| member.lives != under_way.lives || member.alive.is_none());
        let outcome = match gone {
            true => None,
            false => match (&mut under_way.outcome).now_or_never() {
                None => return,
                Some(outcome) => Some(outcome),
            },
        };
        let member = under_way.member;
        let client = &mut self.clients[number];
        client.under_way = None;
        match outcome {
            Some(Ok(position)) => {
                client.number += 1;
                let around = self.around.clone();
                if let Some(alive) = self.alive(member) {
                    // A group of one may answer before its next turn.
                    alive.check(member, &around);
                }
                self.around.truth.lock().acknowledge(op, position);
                self.tell(|| format!("{op:?} is acknowledged by {member} at {position:?}"));
            }
            other => {
                let ids: Vec<PeerId> = self.members.keys().copied().collect();
                let target = self.random.pick(&ids).copied().unwrap_or(1);
                self.clients[number].target = target;
                self.tell(|| format!("{op:?} at {member} ends with {other:?}"));
            }
        }
    }
}
