//! Runs rounds of crashes against a single server and a set, and says what was found after each.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use banyan_crash::Point;
use banyan_faults::durability::round::Trial;
use clap::Parser;

#[derive(Parser)]
#[command(name = "durability", about, disable_version_flag = true)]
struct Arguments {
    /// How many rounds, half of them against a set unless --members says otherwise
    #[arg(long, default_value_t = 200)]
    rounds: usize,
    /// Only this: 1 is a single server [default: 1, then 3]
    #[arg(long)]
    members: Option<usize>,
    /// Decides what is done when [default: drawn, and printed]
    #[arg(long)]
    seed: Option<u64>,
    /// Only these places, several with commas, such as import-slice
    #[arg(long, value_delimiter = ',', value_parser = point)]
    points: Vec<Point>,
    /// Another data node than the one built beside this program
    #[arg(long)]
    program: Option<PathBuf>,
}

fn point(name: &str) -> Result<Point, String> {
    let known = Point::ALL.iter().find(|point| point.name() == name);
    known.copied().ok_or_else(|| {
        let names: Vec<&str> = Point::ALL.iter().map(|point| point.name()).collect();
        format!("places are {}", names.join(", "))
    })
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Arguments::parse()).await {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("durability: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Arguments) -> Result<usize> {
    let seed = arguments
        .seed
        .unwrap_or_else(|| u64::from(rand::random::<u32>()));
    let shares = match arguments.members {
        Some(members) => vec![(members, arguments.rounds)],
        None => vec![(1, arguments.rounds.div_ceil(2)), (3, arguments.rounds / 2)],
    };
    let mut failed = 0;
    for (members, rounds) in shares {
        failed += trials(members, rounds, seed, &arguments).await?;
    }
    Ok(failed)
}

async fn trials(members: usize, rounds: usize, seed: u64, arguments: &Arguments) -> Result<usize> {
    let started = Instant::now();
    let program = arguments.program.as_deref();
    let mut trial = Trial::start(members, seed, program).await?;
    let (mut failed, mut statements, mut cut) = (0, 0, 0);
    let mut reached: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for round in 0..rounds {
        let plan = trial.plan(round, &arguments.points);
        match trial.round(&plan).await {
            Ok(outcome) => {
                println!(
                    "{members} · round {round}: {plan}: {}{} statements, {} files cut, back after {:?}",
                    if outcome.reached || plan.crash.is_none() {
                        ""
                    } else {
                        "not reached, killed; "
                    },
                    outcome.statements,
                    outcome.files_cut,
                    outcome.restart
                );
                statements += outcome.statements;
                cut += outcome.files_cut;
                let name = plan.crash.map_or("some moment", |(point, _)| point.name());
                let counts = reached.entry(name).or_default();
                counts.0 += usize::from(outcome.reached || plan.crash.is_none());
                counts.1 += 1;
            }
            Err(error) => {
                failed += 1;
                println!("{members} · round {round}: {plan}: FAILED: {error:#}");
                for (number, member) in trial.bed.members.iter().enumerate() {
                    let log = member.process.log();
                    let lines: Vec<&str> = log.lines().collect();
                    let tail = lines[lines.len().saturating_sub(12)..].join("\n");
                    println!("-- member {number}:\n{tail}");
                }
                // The next round begins without a past.
                trial = Trial::start(members, seed + 1000 + round as u64, program).await?;
            }
        }
    }
    println!(
        "{members} member(s): {rounds} rounds, {failed} failed; {statements} statements, unsynced writes of {cut} files lost; seed {seed}; {:?}",
        started.elapsed()
    );
    for (name, (hit, tried)) in reached {
        println!("  {name}: {hit} of {tried}");
    }
    Ok(failed)
}
