//! A fixed number of seeds, and whether the simulation would notice if something were wrong.

#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use banyan_sim::{Bug, Kind, Plan, Summary, run, run_and_tell};
use parking_lot::Mutex;

fn on_all_cores(work: impl Fn() + Sync) {
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(&work);
        }
    });
}

/// Runs so many seeds, all of which must hold.
fn hold(seeds: u64, kind: Kind) -> Summary {
    let next = AtomicU64::new(1);
    let total = Mutex::new(Summary::default());
    on_all_cores(|| {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed > seeds {
                return;
            }
            let plan = Plan {
                kind,
                ..Plan::new(seed)
            };
            match run_and_tell(plan) {
                Ok(summary) => total.lock().add(&summary),
                Err(failure) => panic!(
                    "{failure}\n{}\nreplay it with ./scripts/sim --seed {seed} --state {}",
                    failure.trace.join("\n"),
                    kind.name(),
                ),
            }
        }
    });
    total.into_inner()
}

#[test]
fn sets_keep_their_promises_in_any_storm() {
    let total = hold(80, Kind::Memory);
    // The storms were storms: otherwise this would prove little.
    assert!(total.acknowledged > 4000, "{total:?}");
    assert!(total.reads > 1500, "{total:?}");
    assert!(total.terms > 80, "{total:?}");
    assert!(total.power_cuts > 150, "{total:?}");
    assert!(total.disk_failures > 25, "{total:?}");
    assert!(total.snapshots > 10, "{total:?}");
    assert!(total.cut_logs > 100, "{total:?}");
    assert!(total.changes > 150, "{total:?}");
    assert!(total.retries_found_done > 40, "{total:?}");
}

#[test]
fn the_nodes_own_state_survives_the_same() {
    let total = hold(15, Kind::Store);
    assert!(total.acknowledged > 500, "{total:?}");
    assert!(total.power_cuts > 40, "{total:?}");
    assert!(total.snapshots > 2, "{total:?}");
}

#[test]
fn a_seed_repeats_itself() {
    for seed in [7, 4711] {
        assert_eq!(run(Plan::new(seed)).unwrap(), run(Plan::new(seed)).unwrap());
    }
}

/// The first seed that finds a mistake, and what it says.
fn found(bug: Bug, seeds: u64) -> (u64, String) {
    let next = AtomicU64::new(1);
    let first: Mutex<Option<(u64, String)>> = Mutex::new(None);
    on_all_cores(|| {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed > seeds || first.lock().is_some() {
                return;
            }
            let plan = Plan {
                bug: Some(bug),
                storm: Duration::from_secs(40),
                ..Plan::new(seed)
            };
            if let Err(failure) = run(plan) {
                first.lock().get_or_insert((seed, failure.what));
            }
        }
    });
    let first = first.into_inner();
    first.unwrap_or_else(|| panic!("{seeds} seeds do not find {bug:?}"))
}

#[test]
fn every_planted_bug_is_found() {
    // A broken promise, and not only a set that does not come to rest.
    const PROMISES: [&str; 6] = ["lost", "lacks", "lead", "differ", "appl", "stale"];
    for bug in Bug::ALL {
        let (seed, what) = found(bug, 40);
        println!("{bug:?} is found by seed {seed}: {what}");
        assert!(
            PROMISES.iter().any(|word| what.contains(word)),
            "{bug:?} was found for another reason: {what}"
        );
    }
}
