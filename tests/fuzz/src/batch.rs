//! Many messages to one server, out of a seed.

use anyhow::Result;
use banyan_diff::generate::Generator;
use banyan_diff::random::Random;
use bson::{Document, doc};

use crate::Kind;
use crate::connection::{Outcome, Sender};
use crate::members;
use crate::message::{self, Message, Parts, plain, with_database};
use crate::mutate;
use crate::places;
use crate::server::Server;
use crate::templates::{self, DATABASE, Learned};

/// How many connections a batch is sent over.
const LANES: usize = 3;
/// What is not sent: it ends the process, the log or the set, as it should.
const NEVER_SENT: &[&str] = &[
    "shutdown",
    "logRotate",
    "setParameter",
    "replSetReconfig",
    "replSetInitiate",
    "rotateCertificates",
];

#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub number: u64,
    pub kind: Kind,
    pub messages: usize,
}

/// A message and the process that it went to.
#[derive(Clone, Debug)]
pub struct Sent {
    pub to: u8,
    pub message: Message,
}

#[derive(Default, Debug)]
pub struct Counts {
    pub sent: u64,
    pub answered: u64,
    pub ok: u64,
    pub closed: u64,
    pub silent: u64,
    pub refused: u64,
}

impl Counts {
    pub fn add(&mut self, other: &Counts) {
        self.sent += other.sent;
        self.answered += other.answered;
        self.ok += other.ok;
        self.closed += other.closed;
        self.silent += other.silent;
        self.refused += other.refused;
    }

    fn note(&mut self, outcome: &Outcome) {
        self.sent += 1;
        match outcome {
            Outcome::Answered(reply) => {
                self.answered += 1;
                let ok = reply.as_ref().and_then(|reply| reply.get_f64("ok").ok());
                self.ok += u64::from(ok == Some(1.0));
            }
            Outcome::Closed => self.closed += 1,
            Outcome::Silent => self.silent += 1,
            Outcome::Refused(_) => self.refused += 1,
        }
    }
}

/// The reply to a command on a database.
pub fn answer(port: u16, database: &str, command: &Document) -> Result<Document> {
    let body = with_database(command, database).unwrap_or_default();
    let message = Message {
        bytes: plain(1, &body),
        streams: false,
    };
    match Sender::new(port).send(&message) {
        Outcome::Answered(Some(reply)) => Ok(reply),
        other => anyhow::bail!("{other:?}"),
    }
}

/// Sends the batch; what was sent, lane by lane, in order.
pub fn send(server: &Server, plan: &Plan) -> (Vec<Vec<Sent>>, Counts) {
    let facts = match plan.kind {
        Kind::Members => server.facts(),
        _ => Default::default(),
    };
    let lanes = std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..LANES)
            .map(|lane| {
                let facts = &facts;
                scope.spawn(move || Lane::new(server, plan, lane).run(facts))
            })
            .collect();
        lanes
            .into_iter()
            .map(|lane| lane.join().expect("a lane does not panic"))
            .collect::<Vec<_>>()
    });
    let mut counts = Counts::default();
    let mut sent = Vec::new();
    for (messages, of_lane) in lanes {
        counts.add(&of_lane);
        sent.push(messages);
    }
    (sent, counts)
}

/// Sends what was sent before, one after the other.
pub fn replay(server: &Server, messages: &[Sent]) {
    let mut senders: Vec<Sender> = server.ports().into_iter().map(Sender::new).collect();
    for sent in messages {
        if let Some(sender) = senders.get_mut(usize::from(sent.to)) {
            sender.send(&sent.message);
        }
    }
}

struct Lane<'a> {
    server: &'a Server,
    plan: &'a Plan,
    random: Random,
    generator: Generator,
    learned: Learned,
}

impl<'a> Lane<'a> {
    fn new(server: &'a Server, plan: &'a Plan, lane: usize) -> Self {
        let number = plan.number * LANES as u64 + lane as u64;
        Self {
            server,
            plan,
            random: Random::new(plan.seed, 2 * number),
            generator: Generator::new(Random::new(plan.seed, 2 * number + 1)),
            learned: Learned::default(),
        }
    }

    fn run(mut self, facts: &crate::forge::Facts) -> (Vec<Sent>, Counts) {
        let mut senders: Vec<Sender> = self.server.ports().into_iter().map(Sender::new).collect();
        let (mut sent, mut counts) = (Vec::new(), Counts::default());
        let first = self.documents();
        for at in 0..self.plan.messages / LANES {
            let for_members = self.plan.kind == Kind::Members;
            let to = self.server.target(&mut self.random, for_members);
            let message = match at {
                0 => first.clone(),
                _ => self.message(facts),
            };
            let outcome = senders[to].send(&message);
            if let Outcome::Answered(Some(reply)) = &outcome {
                self.learned.take_in(reply);
            }
            counts.note(&outcome);
            let is_refused = matches!(outcome, Outcome::Refused(_));
            let to = to as u8;
            sent.push(Sent { to, message });
            // Nobody is there any longer: what has done it is among what was sent.
            if is_refused {
                break;
            }
        }
        (sent, counts)
    }

    /// An insert of documents that filters and pipelines find something in.
    fn documents(&mut self) -> Message {
        let documents = self.generator.documents();
        let insert = doc! { "insert": "c", "documents": documents, "ordered": false };
        Message {
            bytes: plain(1, &with_database(&insert, DATABASE).unwrap_or_default()),
            streams: false,
        }
    }

    fn message(&mut self, facts: &crate::forge::Facts) -> Message {
        loop {
            let (database, mut command) = match self.plan.kind {
                Kind::Members => {
                    let command = members::command(&mut self.random, &mut self.generator, facts);
                    ("admin", command)
                }
                _ => templates::command(&mut self.random, &mut self.generator, &self.learned),
            };
            let changed = match self.plan.kind {
                Kind::Commands => 75,
                Kind::Members => 50,
                _ => 20,
            };
            if self.random.percent(changed) {
                mutate::mutate(&mut self.random, &mut self.generator, &mut command);
            }
            let name = command.keys().next().map_or("", String::as_str);
            if NEVER_SENT.contains(&name) {
                continue;
            }
            if let Some(body) = with_database(&command, database) {
                return self.written(body);
            }
        }
    }

    fn written(&mut self, mut body: Vec<u8>) -> Message {
        match self.plan.kind {
            Kind::Wire => {
                let count = self.random.below(4);
                let documents = (0..count).map(|_| self.generator.object(3));
                let documents = documents.filter_map(|document| document.to_vec().ok());
                let mut parts = Parts {
                    command: body,
                    documents: documents.collect(),
                    cursor: self.learned.cursor(&mut self.random).0,
                };
                if self.random.percent(10)
                    && let Some(document) = parts.documents.first_mut()
                {
                    places::damage(&mut self.random, document);
                }
                message::any(&mut self.random, &parts)
            }
            Kind::Bson => {
                places::damage(&mut self.random, &mut body);
                Message {
                    bytes: plain(2, &body),
                    streams: false,
                }
            }
            _ => Message {
                bytes: plain(2, &body),
                streams: false,
            },
        }
    }
}
