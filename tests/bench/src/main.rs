//! The load driver: measures Banyan, and beside it in the same run a reference server where one is
//! given, and prints ratios. Absolute figures of a shared machine say little.
//!
//! - `bare`: a client that sends messages built beforehand, so that the server is what is measured;
//! - `load`: the same kinds of work through the official driver;
//! - `joining`: a new member of a set, beside copying its files;
//! - `tag_count`: the map-reduce, beside the same functions in Node;
//! - `deployment`: the peers and how they are started;
//! - `replica_set`: what a set costs, its reads, change streams, and how long it is without a primary;
//! - `report`: rounds, medians, the table and the JSON file.

mod bare;
mod deployment;
mod joining;
mod load;
mod replica_set;
mod report;
mod scenarios;
mod tag_count;

use std::path::PathBuf;
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
    /// Documents of the bulk load, the scan and the tag count.
    #[arg(long, default_value_t = 200_000)]
    documents: usize,
    /// The reference `mongod`; without it Banyan is measured alone.
    #[arg(long, env = "BANYAN_REFERENCE")]
    reference: Option<PathBuf>,
    /// Where the figures go as JSON.
    #[arg(long, default_value = "target/bench.json")]
    json: PathBuf,
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let settings = scenarios::Settings {
        duration: Duration::from_secs_f64(arguments.seconds),
        rounds: arguments.rounds,
        documents: arguments.documents,
        reference: arguments.reference,
    };
    let mut report = report::Report::default();
    for (name, scenario) in scenarios::all() {
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
    report.write_json(&arguments.json)
}
