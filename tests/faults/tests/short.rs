//! A short run of each group of faults on a set of three: what `scripts/faults` does for hours.

use std::time::Duration;

use anyhow::{Result, ensure};
use banyan_faults::nemesis::Nemesis;
use banyan_faults::report;
use banyan_faults::round::{self, Plan};
use banyan_faults::set::Set;

const SEED: u64 = 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_set_of_three_keeps_its_promises_under_faults() -> Result<()> {
    let mut set = Set::start(3, None).await?;
    let groups: [&[Nemesis]; 2] = [
        &[
            Nemesis::KillPrimary,
            Nemesis::StopPrimary,
            Nemesis::KillAll,
            Nemesis::FullDisk,
        ],
        &[
            Nemesis::IsolatePrimary,
            Nemesis::OneWay,
            Nemesis::Cut,
            Nemesis::ClockJump,
        ],
    ];
    for (number, nemeses) in (1..).zip(groups) {
        let plan = Plan {
            number,
            seed: SEED + number,
            nemeses: nemeses.to_vec(),
            length: Duration::from_secs(8),
        };
        let outcome = round::run(&mut set, &plan).await?;
        println!("{}", report::table(set.len(), &plan, &outcome));
        ensure!(outcome.problems.is_empty(), "{:#?}", outcome.problems);
        for (name, counts) in &outcome.counts {
            ensure!(counts.ok > 20, "{name}: {counts:?}: there was no load");
        }
        ensure!(!outcome.done.is_empty(), "nothing was done");
    }
    Ok(())
}
