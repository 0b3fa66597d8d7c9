//! One crash under load, the restart, and the comparison.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use banyan_crash::Point;
use bson::{Document, doc};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::bed::Bed;
use super::definitions::Definer;
use super::load::{DATABASE, Gone, Shared, Writer};

const WRITERS: i64 = 6;
const LOAD_MAX: Duration = Duration::from_millis(1500);
const EQUAL_TIMEOUT: Duration = Duration::from_secs(60);

/// A bed with its writers, over many rounds.
pub struct Trial {
    pub bed: Bed,
    writers: Vec<Writer>,
    definer: Definer,
    rng: StdRng,
    seed: u64,
}

/// What is done in a round.
#[derive(Clone, Debug)]
pub struct Plan {
    /// None: at some moment.
    pub crash: Option<(Point, u32)>,
    /// What was not synced is lost too.
    pub power: bool,
    /// The member with the crash point, or which is killed; none: all at once.
    pub victim: Option<usize>,
    /// The victim misses so much that it needs a snapshot.
    pub behind: bool,
}

#[derive(Debug, Default)]
pub struct Outcome {
    pub statements: u64,
    /// It died where it was to die, and not of our own kill.
    pub reached: bool,
    pub files_cut: usize,
    pub restart: Duration,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.crash {
            Some((point, count)) => write!(f, "{}:{count}", point.name())?,
            None => f.write_str("some moment")?,
        }
        match self.victim {
            Some(member) => write!(f, ", member {member}")?,
            None => f.write_str(", all members")?,
        }
        if self.behind {
            f.write_str(", behind")?;
        }
        if self.power {
            f.write_str(", power cut")?;
        }
        Ok(())
    }
}

/// About how often a round passes it.
fn passes(point: Point) -> u32 {
    use Point::*;
    match point {
        LogAppending | LogAppended | Applying | Applied | StateCommitting | StateCommitted => 60,
        LogSyncing | LogSynced | CatalogChanging | CatalogChanged => 8,
        ImportSlice | CleanupPart | CleanupEnding => 2,
        _ => 1,
    }
}

/// Passed only by a member that takes a snapshot.
fn is_joining(point: Point) -> bool {
    use Point::*;
    matches!(
        point,
        ImportBegun
            | ImportCleared
            | ImportSlice
            | ImportEnding
            | ImportEnded
            | SnapshotInstalled
            | LogReplaced
    )
}

impl Trial {
    pub async fn start(
        members: usize,
        seed: u64,
        program: Option<&std::path::Path>,
    ) -> Result<Trial> {
        let mut bed = Bed::start(members, program).await?;
        let primary = bed.primary().await?.context("it has died")?;
        let database = bed.client(primary).await?.database(DATABASE);
        let indexes = [
            doc! { "key": { "w": 1, "n": 1 }, "name": "w_n" },
            doc! { "key": { "u": 1 }, "name": "u", "unique": true },
            doc! { "key": { "tags": 1 }, "name": "tags" },
        ];
        database
            .run_command(doc! { "createIndexes": "docs", "indexes": indexes.to_vec() })
            .await?;
        Ok(Trial {
            bed,
            writers: (0..WRITERS)
                .map(|number| Writer::new(number, seed.wrapping_add(number as u64)))
                .collect(),
            definer: Definer::new(seed),
            rng: StdRng::seed_from_u64(seed),
            seed,
        })
    }

    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// A third at any moment, the rest at these crash points (none: all) in turn.
    pub fn plan(&mut self, round: usize, only: &[Point]) -> Plan {
        let members = self.bed.members.len();
        let points: Vec<Point> = (Point::ALL.iter())
            .copied()
            .filter(|&point| members > 1 || !is_joining(point))
            .filter(|point| only.is_empty() || only.contains(point))
            .collect();
        let point =
            (!round.is_multiple_of(3)).then(|| points[(round - round / 3 - 1) % points.len()]);
        let crash = point.map(|point| (point, self.rng.random_range(1..=passes(point))));
        let all = crash.is_none() && self.rng.random_bool(0.4);
        Plan {
            crash,
            power: self.rng.random_bool(0.5),
            victim: (!all).then(|| self.rng.random_range(0..members)),
            behind: point.is_some_and(is_joining),
        }
    }

    pub async fn round(&mut self, plan: &Plan) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        if let Some(victim) = plan.victim.filter(|_| plan.crash.is_some()) {
            self.bed.kill(victim);
            if plan.behind {
                self.leave_behind()
                    .await
                    .context("leaving a member behind")?;
            }
            self.bed.spawn(victim, plan.crash);
            outcome.reached = !self.bed.settled().await?;
            if !outcome.reached {
                // Other places are passed by a member that leads.
                if self.bed.is_set() && self.rng.random_bool(0.5) {
                    let admin = self.bed.client(victim).await?.database("admin");
                    // It may decline, and follows then.
                    let _ = admin.run_command(doc! { "replSetStepUp": 1 }).await;
                    outcome.reached = !self.bed.settled().await?;
                }
            }
        }
        outcome.statements = self.load(plan, &mut outcome).await?;
        let died = self.crash(plan, &mut outcome)?;
        let restarted = Instant::now();
        for member in died {
            if plan.power {
                outcome.files_cut += self.bed.lose_unsynced(member, &mut self.rng)?;
            }
            self.bed.spawn(member, None);
        }
        ensure!(self.bed.settled().await?, "a member died after its restart");
        outcome.restart = restarted.elapsed();
        self.check().await?;
        Ok(outcome)
    }

    /// Writers at work until the victim is dead or it is time.
    async fn load(&mut self, plan: &Plan, outcome: &mut Outcome) -> Result<u64> {
        // What it is armed for may come up while it starts.
        let Some(primary) = self.bed.primary().await? else {
            outcome.reached = true;
            return Ok(0);
        };
        let client = self.bed.client(primary).await?;
        let concern = match (self.bed.is_set(), plan.power || self.rng.random_bool(0.5)) {
            (true, _) => doc! { "w": "majority" },
            (false, true) => doc! { "w": 1, "j": true },
            (false, false) => doc! { "w": 1 },
        };
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            statements: AtomicU64::new(0),
            concern,
            host: self.bed.members[primary].process.host(),
            has_sessions: self.bed.is_set(),
        });
        let limit = match plan.crash {
            Some(_) => LOAD_MAX,
            None => self
                .rng
                .random_range(Duration::from_millis(100)..Duration::from_millis(800)),
        };
        let bed = &mut self.bed;
        let watch = async {
            let started = Instant::now();
            let mut dead = Vec::new();
            while dead.is_empty() && started.elapsed() < limit {
                tokio::time::sleep(Duration::from_millis(5)).await;
                dead = bed.died()?;
            }
            outcome.reached |= !dead.is_empty();
            if plan.crash.is_none() {
                let victims = plan
                    .victim
                    .map_or((0..bed.members.len()).collect(), |one| vec![one]);
                for victim in victims {
                    bed.kill(victim);
                }
            }
            shared.stop.store(true, Ordering::Relaxed);
            anyhow::Ok(())
        };
        let writers = futures::future::try_join_all(
            self.writers
                .iter_mut()
                .map(|writer| writer.run(&client, &shared)),
        );
        let (watched, written, defined) =
            tokio::join!(watch, writers, self.definer.run(&client, &shared));
        watched?;
        written?;
        defined?;
        Ok(shared.statements.load(Ordering::Relaxed))
    }

    /// Sees to it that the victims are dead, and says who is.
    fn crash(&mut self, plan: &Plan, outcome: &mut Outcome) -> Result<Vec<usize>> {
        let members = self.bed.members.len();
        let victims = plan.victim.map_or((0..members).collect(), |one| vec![one]);
        outcome.reached |= !self.bed.died()?.is_empty();
        for &victim in &victims {
            self.bed.kill(victim);
        }
        Ok(victims)
    }

    /// Writes until the log no longer reaches back to where it was.
    async fn leave_behind(&mut self) -> Result<()> {
        let primary = self.bed.primary().await?.context("it has died")?;
        let client = self.bed.client(primary).await?;
        let oplog = client.database("local").collection::<Document>("oplog.rs");
        let filler = client.database(DATABASE).collection::<Document>("filler");
        // A log that begins after a snapshot may show nothing yet.
        filler.insert_one(doc! { "_id": -1 }).await?;
        let last = oplog
            .find_one(doc! {})
            .sort(doc! { "$natural": -1 })
            .await?;
        let last = last.context("an entry")?.get_timestamp("ts")?;
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(30) {
            let documents: Vec<Document> = (0..20)
                .map(|n| doc! { "_id": n, "pad": "z".repeat(50_000) })
                .collect();
            filler.insert_many(documents).await?;
            filler.delete_many(doc! {}).await?;
            let first = oplog.find_one(doc! {}).await?;
            if first.context("an entry")?.get_timestamp("ts")? > last {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        bail!("the log is not cut")
    }

    async fn check(&mut self) -> Result<()> {
        let primary = self.bed.primary().await?.context("it has died")?;
        let client = self.bed.client(primary).await?;
        let host = self.bed.members[primary].process.host();
        for writer in &mut self.writers {
            writer.check(&client, &host).await?;
        }
        self.definer.check(&client).await?;
        self.equal().await?;
        for member in 0..self.bed.members.len() {
            let database = self.bed.client(member).await?.database(DATABASE);
            let named = database.list_collection_names();
            let named = named.await;
            for collection in named.context(Gone)? {
                let command = doc! { "validate": &collection, "full": true };
                let found = database.run_command(command).await.context(Gone)?;
                ensure!(found.get_bool("valid")?, "member {member}: {found}");
            }
        }
        Ok(())
    }

    /// Waits until all members hold the same.
    async fn equal(&self) -> Result<()> {
        if !self.bed.is_set() {
            return Ok(());
        }
        let started = Instant::now();
        loop {
            let mut hashes = Vec::new();
            for member in 0..self.bed.members.len() {
                let database = self.bed.client(member).await?.database(DATABASE);
                let found = database
                    .run_command(doc! { "dbHash": 1 })
                    .await
                    .context(Gone)?;
                hashes.push(found.get_document("collections")?.clone());
            }
            if hashes.iter().all(|hash| *hash == hashes[0]) {
                return Ok(());
            }
            ensure!(
                started.elapsed() < EQUAL_TIMEOUT,
                "the members differ: {hashes:#?}"
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}
