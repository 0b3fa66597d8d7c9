//! Runs rounds of faults against sets of real processes, and says what clients saw.

use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use banyan_faults::nemesis::Nemesis;
use banyan_faults::report;
use banyan_faults::round::{self, Plan};
use banyan_faults::set::Set;
use clap::Parser;
use futures::FutureExt;

#[derive(Parser)]
#[command(name = "faults", about, disable_version_flag = true)]
struct Arguments {
    /// Rounds go on for this long
    #[arg(long, conflicts_with = "rounds")]
    minutes: Option<u64>,
    /// How many rounds [default: 5]
    #[arg(long)]
    rounds: Option<u64>,
    /// How many members the set has
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(3..=7))]
    members: u8,
    /// What is done to it, several with commas [default: all kinds, in turn at random]
    #[arg(long, value_delimiter = ',')]
    nemesis: Vec<Nemesis>,
    /// Decides what is done when [default: drawn, and printed]
    #[arg(long)]
    seed: Option<u64>,
    /// How long harm is done in each round
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// One more flag of the members: --flag=--oplogSize=1
    #[arg(long, allow_hyphen_values = true)]
    flag: Vec<String>,
    /// Another data node than the one built beside this program
    #[arg(long)]
    program: Option<PathBuf>,
    /// Where histories and logs of failing rounds are kept [default: a folder for temporary files]
    #[arg(long)]
    keep: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Arguments::parse()).await {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("faults: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// How many rounds have failed.
async fn run(arguments: Arguments) -> Result<u64> {
    let seed = arguments
        .seed
        .unwrap_or_else(|| u64::from(rand::random::<u32>()));
    let keep = arguments.keep.clone().unwrap_or_else(|| {
        std::env::temp_dir().join(format!("banyan-faults-kept-{}", std::process::id()))
    });
    let nemeses = match &arguments.nemesis[..] {
        [] => Nemesis::all().to_vec(),
        some => some.to_vec(),
    };
    let started = Instant::now();
    let goes_on = |number: u64| match (arguments.minutes, arguments.rounds) {
        (Some(minutes), _) => started.elapsed() < Duration::from_secs(60 * minutes),
        (None, rounds) => number < rounds.unwrap_or(5),
    };
    let members = usize::from(arguments.members);
    let mut set = None;
    let (mut number, mut failed, mut undecided) = (0, 0, 0);
    while goes_on(number) {
        let mut current = match set.take() {
            Some(set) => set,
            None => Set::start(members, arguments.program.as_deref(), &arguments.flag).await?,
        };
        let plan = Plan {
            number: number + 1,
            seed: seed + number,
            nemeses: nemeses.clone(),
            length: Duration::from_secs(arguments.seconds),
            stale_reads: false,
        };
        let mut done = Vec::new();
        let round = AssertUnwindSafe(round::run(&mut current, &plan, &mut done)).catch_unwind();
        let outcome = round.await.unwrap_or_else(|panic| Err(words(&*panic)));
        let kept = match &outcome {
            Ok(outcome) => {
                println!("{}", report::table(members, &plan, outcome));
                undecided += outcome.undecided.len();
                if outcome.problems.is_empty() {
                    None
                } else {
                    Some(report::keep(&keep, &current, &plan, Ok(outcome))?)
                }
            }
            Err(error) => {
                let error = format!("{}{error:#}", report::story(&done));
                println!(
                    "round {} · seed {}: did not end well:\n{error}",
                    plan.number, plan.seed
                );
                Some(report::keep(&keep, &current, &plan, Err(&error))?)
            }
        };
        if let Some(folder) = kept {
            println!("  kept: {}\n", folder.display());
            failed += 1;
            // The next round begins with a set that has no past.
        } else {
            set = Some(current);
        }
        number += 1;
    }
    println!(
        "{number} rounds, {failed} failed, {undecided} histories too long to judge; seed {seed}"
    );
    Ok(failed)
}

fn words(panic: &(dyn std::any::Any + Send)) -> anyhow::Error {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied());
    anyhow!("panicked: {}", text.unwrap_or("without a word"))
}
