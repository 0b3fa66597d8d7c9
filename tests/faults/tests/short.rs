//! A short run on a set of three of what `scripts/faults` does for hours, and proof that it would
//! notice.

use std::time::Duration;

use anyhow::{Result, ensure};
use banyan_faults::nemesis::Nemesis;
use banyan_faults::report;
use banyan_faults::round::{self, Plan};
use banyan_faults::set::Set;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_set_of_three_keeps_its_promises_under_faults() -> Result<()> {
    use Nemesis::*;
    let mut set = Set::start(3, None, &[]).await?;
    // By what they do: processes, networks, machines.
    let groups: [&[Nemesis]; 3] = [
        &[KillPrimary, StopPrimary, KillAll],
        &[IsolatePrimary, OneWay, Cut],
        &[PowerAll, FullDisk, ClockJump],
    ];
    for (number, nemeses) in (1..).zip(groups) {
        let plan = Plan {
            number,
            seed: rand::random(),
            nemeses: nemeses.to_vec(),
            length: Duration::from_secs(4),
            stale_reads: false,
        };
        let outcome = round::run(&mut set, &plan, &mut Vec::new()).await?;
        let table = report::table(set.len(), &plan, &outcome);
        ensure!(
            outcome.problems.is_empty(),
            "{table}{:#?}",
            outcome.problems
        );
        for (name, counts) in &outcome.counts {
            ensure!(counts.ok > 20, "{name}: there was no load:\n{table}");
        }
        ensure!(!outcome.done.is_empty(), "nothing was done:\n{table}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_of_an_isolated_member_are_found_to_be_stale() -> Result<()> {
    let mut set = Set::start(3, None, &[]).await?;
    let plan = Plan {
        number: 1,
        seed: 1,
        nemeses: vec![Nemesis::IsolateSecondaries],
        length: Duration::from_secs(4),
        stale_reads: true,
    };
    let outcome = round::run(&mut set, &plan, &mut Vec::new()).await?;
    let found = outcome
        .problems
        .iter()
        .any(|problem| problem.contains("not linearizable"));
    ensure!(found, "{}", report::table(set.len(), &plan, &outcome));
    Ok(())
}
