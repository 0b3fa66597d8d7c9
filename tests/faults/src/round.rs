//! One round: load, harm, calm, and judgement.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use banyan_tests::within;
use bson::{RawDocumentBuf, Timestamp, doc};
use futures::TryStreamExt;
use mongodb::Client;
use mongodb::options::FindOptions;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use crate::check::{self, Verdict};
use crate::history::{End, Operation};
use crate::load::{DATABASE, Round};
use crate::nemesis::{self, Nemesis};
use crate::set::Set;
use crate::watch::Watch;

/// Load before the first harm and after the last.
const CALM: Duration = Duration::from_millis(1500);
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(60);

pub struct Plan {
    pub number: u64,
    pub seed: u64,
    pub nemeses: Vec<Nemesis>,
    /// How long harm is done.
    pub length: Duration,
    /// A lie that must be found out, for tests: registers are read without linearizability.
    pub stale_reads: bool,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub ok: usize,
    pub failed: usize,
    pub unknown: usize,
}

/// What a round has shown.
pub struct Outcome {
    /// What was done, when.
    pub done: Vec<(Duration, String)>,
    pub counts: Vec<(&'static str, Counts)>,
    pub longest_without_write: Duration,
    pub elections: usize,
    pub problems: Vec<String>,
    pub undecided: Vec<String>,
    /// Each workload's history, a line for each operation.
    pub histories: Vec<(&'static str, String)>,
}

pub async fn run(
    set: &mut Set,
    plan: &Plan,
    done: &mut Vec<(Duration, String)>,
) -> Result<Outcome> {
    let mut rng = StdRng::seed_from_u64(plan.seed);
    let panics = panics(set);
    let round = Round::prepare(set, plan.number, plan.stale_reads).await?;
    let watch = Watch::new(&round.clients.direct);
    let running = round.run(plan.seed);
    let mut problems = Vec::new();
    tokio::time::sleep(CALM).await;
    let until = Instant::now() + plan.length;
    while Instant::now() < until {
        let Some(&kind) = plan.nemeses.choose(&mut rng) else {
            break;
        };
        let at = round.start.elapsed();
        let mut what = nemesis::begin(kind, set, watch.leader(), &mut rng).await?;
        // Troubles come together.
        if rng.random_bool(0.3)
            && let Some(&other) = plan.nemeses.choose(&mut rng)
            && other != kind
        {
            what += " and ";
            what += &nemesis::begin(other, set, watch.leader(), &mut rng).await?;
        }
        let lasts = kind.duration(&mut rng);
        tokio::time::sleep(lasts).await;
        let mut ended = notice_ends(set, &mut problems);
        nemesis::heal(set, &mut rng)?;
        ended.insert(0, format!("{what}, for {:.1} s", lasts.as_secs_f64()));
        done.push((at, ended.join("; ")));
        let calm = Duration::from_millis(rng.random_range(100..2500));
        tokio::time::sleep(calm).await;
        // One that was just at the end of its disk may end only now.
        let late = notice_ends(set, &mut problems);
        if !late.is_empty() {
            done.push((round.start.elapsed(), late.join("; ")));
            nemesis::heal(set, &mut rng)?;
        }
        for member in &mut set.members {
            member.may_end = false;
        }
    }
    set.all_answer(RECOVERY_TIMEOUT).await?;
    set.complete().await?;
    set.settled().await;
    tokio::time::sleep(CALM).await;
    running.end().await?;
    let load_ended = round.start.elapsed();
    let inserted = round.last_reads().await?;

    let histories = &round.histories;
    let registers = histories.registers.take();
    let lists = histories.lists.take();
    let counters = histories.counters.take();
    let inserts = histories.inserts.take();
    let causal = histories.causal.take();
    let mut outcome = Outcome {
        done: done.clone(),
        counts: vec![
            ("registers", counts(&registers)),
            ("lists", counts(&lists)),
            ("counters", counts(&counters)),
            ("inserts", counts(&inserts)),
            ("causal", counts(&causal)),
        ],
        longest_without_write: longest_gap(&inserts, load_ended),
        elections: watch.elections(),
        problems,
        undecided: Vec::new(),
        histories: vec![
            ("registers", lines(&registers)?),
            ("lists", lines(&lists)?),
            ("counters", lines(&counters)?),
            ("inserts", lines(&inserts)?),
            ("causal", lines(&causal)?),
        ],
    };
    for verdict in [
        check::registers(&registers),
        check::lists(&lists),
        check::counters(&counters),
        check::inserts(&inserts, &inserted.own, &inserted.claims),
        check::causal(&causal),
    ] {
        let Verdict {
            problems,
            undecided,
        } = verdict;
        outcome.problems.extend(problems);
        outcome.undecided.extend(undecided);
    }
    outcome.problems.extend(watch.problems());
    outcome.problems.extend(members_differ(set, &round).await?);
    outcome.problems.extend(times(set).await?);
    for (member, (before, after)) in panics.iter().zip(self::panics(set)).enumerate() {
        if after > *before {
            outcome
                .problems
                .push(format!("member {member} panicked: see its log"));
        }
    }
    Ok(outcome)
}

/// Members that ended by themselves, in words; those that had no reason to are problems.
fn notice_ends(set: &mut Set, problems: &mut Vec<String>) -> Vec<String> {
    let mut words = Vec::new();
    for (member, how, may_end) in set.ended() {
        let text = format!("member {member} ended ({how})");
        let log = set.members[member].log();
        if !may_end {
            problems.push(format!("{text} although nobody killed it"));
        } else if !log.contains("fatal") {
            problems.push(format!("{text} without saying why"));
        }
        words.push(text);
    }
    words
}

fn panics(set: &Set) -> Vec<usize> {
    let count = |log: String| log.matches("panicked at").count();
    set.members
        .iter()
        .map(|member| count(member.log()))
        .collect()
}

fn counts<A>(history: &[Operation<A>]) -> Counts {
    let mut counts = Counts::default();
    for operation in history {
        match operation.end {
            End::Ok => counts.ok += 1,
            End::Failed => counts.failed += 1,
            End::Unknown => counts.unknown += 1,
        }
    }
    counts
}

/// The longest time in which nobody was told that something was written.
fn longest_gap<A>(writes: &[Operation<A>], until: Duration) -> Duration {
    let mut ends: Vec<u64> = writes
        .iter()
        .filter(|operation| operation.is_ok())
        .map(|operation| operation.ended_ns)
        .collect();
    ends.sort_unstable();
    ends.push(u64::try_from(until.as_nanos()).unwrap_or(u64::MAX));
    let gaps = ends.windows(2).map(|pair| pair[1] - pair[0]);
    Duration::from_nanos(gaps.max().unwrap_or(0))
}

fn lines<A: serde::Serialize>(history: &[Operation<A>]) -> Result<String> {
    let mut text = String::new();
    for operation in history {
        text += &serde_json::to_string(operation)?;
        text.push('\n');
    }
    Ok(text)
}

type Documents = BTreeMap<Vec<u8>, RawDocumentBuf>;

async fn documents(client: &Client, name: &str) -> Result<Documents> {
    let collection = client.database(DATABASE).collection::<RawDocumentBuf>(name);
    let all: Vec<RawDocumentBuf> = collection.find(doc! {}).await?.try_collect().await?;
    let by_id = |document: RawDocumentBuf| {
        let id = document.get("_id").ok().flatten();
        (format!("{id:?}").into_bytes(), document)
    };
    Ok(all.into_iter().map(by_id).collect())
}

/// Every member has the same documents, once all have caught up.
async fn members_differ(set: &Set, round: &Round) -> Result<Vec<String>> {
    let clients = &round.clients.direct;
    let mut problems = Vec::new();
    for name in round.names() {
        let started = Instant::now();
        loop {
            let mut all = Vec::new();
            for client in clients {
                all.push(documents(client, &name).await.context("a member is read")?);
            }
            let other = (1..set.len()).find(|&member| all[member] != all[0]);
            let Some(other) = other else { break };
            if started.elapsed() > RECOVERY_TIMEOUT / 2 {
                let differs = |(id, document): &(&Vec<u8>, &RawDocumentBuf)| {
                    all[other].get(*id) != Some(*document)
                };
                let example = all[0].iter().find(differs).map(|(_, document)| document);
                let lengths = (all[0].len(), all[other].len());
                problems.push(format!(
                    "{name}: members 0 and {other} differ: {lengths:?} documents; {example:?}"
                ));
                break;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
    Ok(problems)
}

/// Times grow along the log, whatever the clocks say, and all members have the same ones.
async fn times(set: &Set) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    let mut logs: Vec<Vec<Timestamp>> = Vec::new();
    for member in 0..set.len() {
        let client = set.direct(member).await;
        let oplog = client
            .database("local")
            .collection::<bson::Document>("oplog.rs");
        let options = FindOptions::builder().projection(doc! { "ts": 1 }).build();
        let read = async || -> Result<Vec<Timestamp>> {
            let mut times = Vec::new();
            let mut all = oplog.find(doc! {}).with_options(options.clone()).await?;
            while let Some(entry) = all.try_next().await? {
                times.push(entry.get_timestamp("ts")?);
            }
            Ok(times)
        };
        let what = format!("member {member}'s log is read");
        let times = within(RECOVERY_TIMEOUT, &what, || async { read().await }).await;
        if times.is_empty() {
            bail!("member {member}'s log is empty")
        }
        if let Some(pair) = times.windows(2).find(|pair| pair[0] >= pair[1]) {
            problems.push(format!(
                "member {member}: time {} before {}",
                pair[0], pair[1]
            ));
        }
        logs.push(times);
    }
    // One that joined late has only the end.
    let first = logs.iter().map(|times| times[0]).max();
    let last = logs.iter().map(|times| times[times.len() - 1]).min();
    let common = |times: &Vec<Timestamp>| -> Vec<Timestamp> {
        let inside = |time: &&Timestamp| first <= Some(**time) && Some(**time) <= last;
        times.iter().filter(inside).copied().collect()
    };
    let shared: Vec<_> = logs.iter().map(common).collect();
    if let Some(other) = (1..shared.len()).find(|&other| shared[other] != shared[0]) {
        problems.push(format!("the logs of members 0 and {other} differ"));
    }
    Ok(problems)
}
