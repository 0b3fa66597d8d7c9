//! The clients: several of each workload, through the driver as an application uses it, and some that
//! stick to the member that they believe to be primary.

mod causal;
mod client;
mod counter;
mod insert;
mod keys;
mod list;
mod register;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use banyan_tests::within;
use bson::{Document, doc};
use futures::TryStreamExt;
use mongodb::IndexModel;
use mongodb::options::IndexOptions;
use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::task::JoinSet;

use crate::history::{Causal, Counter, Insert, List, Recorder, Register};
use crate::set::Set;

pub use client::Clients;
use client::{Route, Worker};
use keys::Keys;

pub const DATABASE: &str = "faults";
const COUNTERS: u32 = 3;
const CAUSAL_KEYS: u32 = 4;
const SETUP_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a worker may take to notice the end of a round.
const END_TIMEOUT: Duration = Duration::from_secs(40);

/// Everything that the clients of one round have seen.
pub struct Histories {
    pub registers: Recorder<Register>,
    pub lists: Recorder<List>,
    pub counters: Recorder<Counter>,
    pub inserts: Recorder<Insert>,
    pub causal: Recorder<Causal>,
}

/// What the workers of one round share.
pub struct Round {
    pub clients: Clients,
    pub histories: Histories,
    pub start: Instant,
    number: u64,
    stop: AtomicBool,
    /// A lie, for tests: registers are read from wherever, and taken for linearizable.
    stale_reads: bool,
    /// Numbers that are never used twice: values, elements, ids.
    next: AtomicU64,
    registers: Keys,
    lists: Keys,
}

impl Round {
    /// Collections of this round, with their documents.
    pub async fn prepare(set: &Set, number: u64, stale_reads: bool) -> Result<Arc<Self>> {
        let start = Instant::now();
        let round = Self {
            clients: Clients::of(set).await?,
            histories: Histories {
                registers: Recorder::new(start),
                lists: Recorder::new(start),
                counters: Recorder::new(start),
                inserts: Recorder::new(start),
                causal: Recorder::new(start),
            },
            start,
            number,
            stop: AtomicBool::new(false),
            stale_reads,
            next: AtomicU64::new(1),
            registers: Keys::new(600, 4, 30),
            lists: Keys::new(300, 2, 60),
        };
        round
            .fill("registers", round.registers.count, doc! { "value": 0_i64 })
            .await;
        round
            .fill("lists", round.lists.count, doc! { "list": [] })
            .await;
        round
            .fill("counters", COUNTERS, doc! { "sum": 0_i64 })
            .await;
        round
            .fill("causal", CAUSAL_KEYS, doc! { "version": 0_i64, "saw": [] })
            .await;
        let options = IndexOptions::builder().unique(true).build();
        let by_claim = IndexModel::builder()
            .keys(doc! { "claim": 1 })
            .options(options)
            .build();
        let claims = round.clients.collection(&round.name("claims"));
        claims.create_index(by_claim).await?;
        Ok(Arc::new(round))
    }

    async fn fill(&self, what: &str, count: u32, document: Document) {
        let collection = self.clients.collection(&self.name(what));
        let documents: Vec<Document> = (0..count)
            .map(|key| {
                let mut document = document.clone();
                document.insert("_id", i64::from(key));
                document
            })
            .collect();
        within(SETUP_TIMEOUT, "documents to begin with", || async {
            collection.delete_many(doc! {}).await?;
            collection.insert_many(&documents).await?;
            anyhow::Ok(())
        })
        .await;
    }

    /// The name of this round's collection.
    pub fn name(&self, what: &str) -> String {
        format!("{what}_{}", self.number)
    }

    pub fn names(&self) -> Vec<String> {
        let all = [
            "registers",
            "lists",
            "counters",
            "causal",
            "inserts",
            "claims",
        ];
        all.map(|what| self.name(what)).to_vec()
    }

    pub fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    fn fresh(&self) -> i64 {
        self.next.fetch_add(1, Ordering::Relaxed) as i64
    }

    /// Starts the workers.
    pub fn run(self: &Arc<Self>, seed: u64) -> Running {
        let mut tasks = JoinSet::new();
        let mut clients = 0;
        let mut worker = |route| {
            clients += 1;
            let rng = StdRng::seed_from_u64(seed ^ u64::from(clients) << 32);
            Worker::new(clients, self.clone(), route, rng)
        };
        let members = self.clients.direct.len();
        for route in [
            Route::Retrying,
            Route::Retrying,
            Route::Plain,
            Route::Believed,
            Route::Stubborn,
        ] {
            tasks.spawn(register::work(worker(route)));
        }
        for member in 0..members {
            tasks.spawn(register::pulse(worker(Route::Member(member))));
        }
        for route in [
            Route::Retrying,
            Route::Retrying,
            Route::Plain,
            Route::Believed,
        ] {
            tasks.spawn(list::work(worker(route)));
        }
        tasks.spawn(list::read_anywhere(worker(Route::Retrying)));
        for route in [Route::Retrying, Route::Plain, Route::Believed] {
            tasks.spawn(counter::work(worker(route)));
            tasks.spawn(insert::work(worker(route)));
        }
        for key in 0..CAUSAL_KEYS {
            tasks.spawn(causal::work(worker(Route::Retrying), key));
        }
        Running {
            round: self.clone(),
            tasks,
        }
    }

    /// What is there once nobody writes any more: reads that end each history, and the documents
    /// that were inserted.
    pub async fn last_reads(self: &Arc<Self>) -> Result<Inserted> {
        let rng = StdRng::seed_from_u64(self.number);
        let mut worker = Worker::new(0, self.clone(), Route::Retrying, rng);
        for key in self.registers.used() {
            again(async || register::read(&mut worker, key).await).await?;
        }
        for key in self.lists.used() {
            again(async || list::read(&mut worker, key, true).await).await?;
        }
        for key in 0..COUNTERS {
            again(async || counter::read(&mut worker, key).await).await?;
        }
        let mut inserted = Inserted::default();
        let field = |document: &Document, name: &str| document.get_i64(name).unwrap_or(-1);
        let mut all = self
            .clients
            .collection(&self.name("inserts"))
            .find(doc! {})
            .await?;
        while let Some(document) = all.try_next().await? {
            inserted.own.push(field(&document, "id"));
        }
        let mut all = self
            .clients
            .collection(&self.name("claims"))
            .find(doc! {})
            .await?;
        while let Some(document) = all.try_next().await? {
            let claim = (field(&document, "claim"), field(&document, "attempt"));
            inserted.claims.push(claim);
        }
        Ok(inserted)
    }
}

/// Until it succeeds: the set is healthy when it's asked for the last time.
async fn again<T>(mut read: impl AsyncFnMut() -> Result<T, String>) -> Result<()> {
    let started = Instant::now();
    while let Err(trouble) = read().await {
        if started.elapsed() > SETUP_TIMEOUT {
            bail!("the last read: {trouble}")
        }
    }
    Ok(())
}

/// The documents that were found after all.
#[derive(Default)]
pub struct Inserted {
    pub own: Vec<i64>,
    /// Claim and attempt.
    pub claims: Vec<(i64, i64)>,
}

/// The workers of a round.
pub struct Running {
    round: Arc<Round>,
    tasks: JoinSet<()>,
}

impl Running {
    /// Lets every worker finish what it does, and no more.
    pub async fn end(mut self) -> Result<()> {
        self.round.stop.store(true, Ordering::Relaxed);
        let all = async {
            while let Some(ended) = self.tasks.join_next().await {
                ended?;
            }
            anyhow::Ok(())
        };
        match tokio::time::timeout(END_TIMEOUT, all).await {
            Ok(ended) => ended,
            Err(_) => bail!("a client does not end"),
        }
    }
}
