//! Runs many seeds, or one with everything that happens.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use banyan_sim::{Bug, Failure, Kind, Plan, Summary, run, run_and_tell};
use clap::Parser;
use parking_lot::Mutex;

/// Simulates whole sets, and looks for a run in which they break their promises.
#[derive(Parser)]
struct Flags {
    /// How many seeds to run.
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// Replay this seed, and print what happens.
    #[arg(long)]
    seed: Option<u64>,
    /// Go on for so many minutes, however many seeds it takes.
    #[arg(long)]
    minutes: Option<u64>,
    /// How long each storm lasts, in simulated seconds.
    #[arg(long, default_value_t = 20)]
    storm: u64,
    /// The members' states: memory, store (the node's own machine over real stores, much slower)
    /// or both (one seed in eight over stores).
    #[arg(long, default_value = "both")]
    state: String,
    /// A mistake to plant: see `Bug` in crates/consensus/src/simulated.rs.
    #[arg(long, hide = true)]
    bug: Option<String>,
    /// Threads; each runs seeds of its own.
    #[arg(long)]
    threads: Option<usize>,
}

fn main() -> ExitCode {
    let flags = Flags::parse();
    if let Some(seed) = flags.seed {
        let plan = Plan {
            narrate: true,
            print: true,
            ..plan(&flags, seed)
        };
        return match run(plan) {
            Ok(summary) => {
                println!("seed {seed} holds: {summary:?}");
                ExitCode::SUCCESS
            }
            Err(failure) => {
                println!("seed {seed} fails: {}", failure.what);
                ExitCode::FAILURE
            }
        };
    }
    match search(&flags) {
        None => ExitCode::SUCCESS,
        Some(failure) => {
            println!("the last events:");
            for line in &failure.trace {
                println!("{line}");
            }
            let seed = failure.seed;
            let (storm, state) = (flags.storm, plan(&flags, seed).kind.name());
            println!("{failure}");
            println!("replay it with ./scripts/sim --seed {seed} --storm {storm} --state {state}");
            ExitCode::FAILURE
        }
    }
}

fn plan(flags: &Flags, seed: u64) -> Plan {
    let kind = match flags.state.as_str() {
        "memory" => Kind::Memory,
        "store" => Kind::Store,
        _ if seed.is_multiple_of(8) => Kind::Store,
        _ => Kind::Memory,
    };
    let named = |bug: &Bug| Some(format!("{bug:?}")) == flags.bug;
    Plan {
        kind,
        bug: Bug::ALL.into_iter().find(named),
        storm: Duration::from_secs(flags.storm),
        ..Plan::new(seed)
    }
}

/// Runs seeds until one fails, or enough of them have held.
fn search(flags: &Flags) -> Option<Failure> {
    let threads = flags
        .threads
        .or_else(|| std::thread::available_parallelism().ok().map(usize::from))
        .unwrap_or(1);
    let start = Instant::now();
    let next = AtomicU64::new(flags.from);
    let over = AtomicBool::new(false);
    let failure = Mutex::new(None);
    let total = Mutex::new((0, Summary::default()));
    let more = |seed: u64| match flags.minutes {
        Some(minutes) => start.elapsed() < Duration::from_secs(60 * minutes),
        None => seed < flags.from + flags.seeds,
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if !more(seed) {
                        return;
                    }
                    match run_and_tell(plan(flags, seed)) {
                        Ok(summary) => {
                            let mut total = total.lock();
                            total.0 += 1;
                            if total.0 % 100 == 0 {
                                eprintln!("{} seeds hold", total.0);
                            }
                            total.1.add(&summary);
                        }
                        Err(found) => {
                            over.store(true, Ordering::Relaxed);
                            failure.lock().get_or_insert(found);
                        }
                    }
                }
            });
        }
    });
    let (count, summary) = &*total.lock();
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{count} seeds hold in {seconds:.1} s ({:.1} a second)",
        *count as f64 / seconds
    );
    println!("{summary:#?}");
    failure.into_inner()
}
