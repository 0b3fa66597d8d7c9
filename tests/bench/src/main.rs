//! The load driver: measures Banyan, and beside it in the same run a reference server where one is
//! given, and prints ratios. Absolute figures of a shared machine say little.
//!
//! - `bare`: a client that sends messages built beforehand, so that the server is what is measured;
//! - `load`: the same kinds of work through the official driver;
//! - `capped`: capped collections that are full, and a cursor that follows them;
//! - `crowd`: point reads beside hundreds of scans;
//! - `joining`: a new member of a set, beside copying its files;
//! - `tag_count`: the map-reduce, beside the same functions in Node;
//! - `deployment`: the peers and how they are started; `door`: how connections come in;
//! - `secured`: what users, encryption, logins and idle connections cost;
//! - `replica_set`: what a set costs, its reads, change streams, and how long it is without a primary;
//! - `speed`: work on many documents, one row a kind, and how it scales;
//! - `storm`: ten clients at once that get a document or create it;
//! - `report`: rounds, medians, the table and the JSON file.

mod bare;
mod capped;
mod crowd;
mod deployment;
mod door;
mod joining;
mod load;
mod replica_set;
mod report;
mod scenarios;
mod secured;
mod speed;
mod storm;
mod tag_count;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Parser;

/// Measures Banyan beside a reference server.
#[derive(Parser)]
struct Arguments {
    /// Only the scenarios whose name contains this.
    #[arg(long)]
    only: Option<String>,
    /// Seconds that each measurement of a rate takes.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Rounds of each measurement; peers take turns, the median counts.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Documents of the speed table, the bulk load, the scan and the tag count.
    #[arg(long, default_value_t = 200_000)]
    documents: usize,
    /// Only the rows of the speed table whose name contains this.
    #[arg(long)]
    row: Option<String>,
    /// Cores that each server of the speed table may use; without it all.
    #[arg(long)]
    cores: Option<usize>,
    /// Instead of the scenarios: how each row of the speed table scales.
    #[arg(long, value_enum)]
    scaling: Vec<speed::scaling::With>,
    /// The reference `mongod`; without it Banyan is measured alone.
    #[arg(long, env = "BANYAN_REFERENCE")]
    reference: Option<PathBuf>,
    /// Where the figures go as JSON.
    #[arg(long, default_value = "target/bench.json")]
    json: PathBuf,
}

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    let settings = scenarios::Settings {
        duration: Duration::from_secs_f64(arguments.seconds),
        rounds: arguments.rounds,
        documents: arguments.documents,
        reference: arguments.reference,
        row: arguments.row,
        cores: arguments.cores,
    };
    let mut report = report::Report::default();
    for with in &arguments.scaling {
        speed::scaling::run(*with, &settings, &mut report).await?;
    }
    let scenarios = if arguments.scaling.is_empty() {
        scenarios::all()
    } else {
        Vec::new()
    };
    for (name, scenario) in scenarios {
        if arguments
            .only
            .as_ref()
            .is_some_and(|only| !name.contains(only.as_str()))
        {
            continue;
        }
        eprintln!("-- {name}");
        scenario(&settings, &mut report).await?;
    }
    report.print();
    report.write_json(&arguments.json)?;
    Ok(if report.is_sound() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
