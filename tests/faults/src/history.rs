//! What clients asked, when, and what came back.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum End {
    /// Answered: it happened between the question and the answer.
    Ok,
    /// The answer says that it did not happen, and never will.
    Failed,
    /// No answer, or one that does not say: it may have happened, or may yet.
    Unknown,
}

#[derive(Clone, Debug, Serialize)]
pub struct Operation<A> {
    pub client: u32,
    /// Whom it asked.
    pub via: String,
    pub invoked_ns: u64,
    /// When the answer came, or the client stopped waiting.
    pub ended_ns: u64,
    pub end: End,
    pub action: A,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl<A> Operation<A> {
    pub fn is_ok(&self) -> bool {
        self.end == End::Ok
    }

    /// It was over before the other began.
    pub fn precedes<B>(&self, other: &Operation<B>) -> bool {
        self.is_ok() && self.ended_ns < other.invoked_ns
    }
}

/// One document with one number.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Register {
    /// With what was found, once it's answered.
    Read { key: u32, found: i64 },
    /// Values are never written twice.
    Write { key: u32, value: i64 },
    CompareAndSet {
        key: u32,
        expected: i64,
        value: i64,
        done: bool,
    },
}

impl Register {
    pub fn key(&self) -> u32 {
        match self {
            Register::Read { key, .. }
            | Register::Write { key, .. }
            | Register::CompareAndSet { key, .. } => *key,
        }
    }
}

/// One document with a list that only grows.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum List {
    /// Elements are never appended twice.
    Append { key: u32, element: i64 },
    Read {
        key: u32,
        found: Vec<i64>,
        /// A linearizable read; others may be old.
        fresh: bool,
    },
}

/// One document with a sum.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Counter {
    Add {
        key: u32,
        amount: i64,
    },
    /// Linearizable.
    Read {
        key: u32,
        found: i64,
    },
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Insert {
    /// Nobody else inserts these ids, and they are inserted together.
    Own { ids: Vec<i64>, duplicate: bool },
    /// Several clients insert it, and a unique index lets one of them.
    Claim {
        claim: i64,
        attempt: i64,
        duplicate: bool,
    },
}

/// A document that one session writes and all read. Its version grows with each write, and it names
/// the versions of the others that its writer had seen.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Causal {
    Read {
        key: u32,
        version: i64,
        saw: BTreeMap<u32, i64>,
    },
    Write {
        key: u32,
        version: i64,
    },
}

/// Collects the operations of one workload.
pub struct Recorder<A> {
    start: Instant,
    operations: Mutex<Vec<Operation<A>>>,
}

/// The moment at which an operation begins.
#[derive(Clone, Copy)]
pub struct Invoked(u64);

impl<A: Clone> Recorder<A> {
    /// All recorders of a round count from the same moment.
    pub fn new(start: Instant) -> Self {
        Self {
            start,
            operations: Mutex::default(),
        }
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    pub fn begin(&self) -> Invoked {
        Invoked(self.now_ns())
    }

    pub fn end(
        &self,
        (client, via): (u32, &str),
        Invoked(invoked_ns): Invoked,
        end: End,
        action: A,
        error: Option<String>,
    ) {
        let operation = Operation {
            client,
            via: via.to_owned(),
            invoked_ns,
            ended_ns: self.now_ns(),
            end,
            action,
            error,
        };
        let operations = self.operations.lock();
        operations
            .unwrap_or_else(PoisonError::into_inner)
            .push(operation);
    }

    /// Everything so far, in the order in which it began.
    pub fn take(&self) -> Vec<Operation<A>> {
        let operations = self.operations.lock();
        let mut all = operations.unwrap_or_else(PoisonError::into_inner).clone();
        all.sort_by_key(|operation| operation.invoked_ns);
        all
    }
}
