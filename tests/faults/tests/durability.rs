//! A short run of what `scripts/durability` does for hundreds of rounds.

use anyhow::{Context, Result, ensure};
use banyan_crash::Point;
use banyan_faults::durability::round::{Plan, Trial};

async fn rounds(members: usize, plans: &[Plan]) -> Result<()> {
    let mut trial = Trial::start(members, rand::random(), None).await?;
    let seed = trial.seed();
    for plan in plans {
        let outcome = trial.round(plan).await;
        let outcome = outcome.with_context(|| format!("{members} members, seed {seed}: {plan}"))?;
        // A round that never reaches its place would show nothing.
        ensure!(
            outcome.reached || plan.crash.is_none(),
            "{plan} was not reached: {outcome:?}"
        );
        ensure!(
            outcome.statements > 0 || plan.crash.is_some(),
            "there was no load: {outcome:?}"
        );
    }
    Ok(())
}

fn at(point: Point, count: u32) -> Plan {
    Plan {
        crash: Some((point, count)),
        power: false,
        victim: Some(0),
        behind: false,
    }
}

fn any_moment() -> Plan {
    Plan {
        crash: None,
        power: false,
        victim: None,
        behind: false,
    }
}

fn cut(plan: Plan) -> Plan {
    Plan {
        power: true,
        ..plan
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_keeps_what_it_has_acknowledged() -> Result<()> {
    let plans = [
        any_moment(),
        cut(any_moment()),
        cut(at(Point::LogAppended, 40)),
        at(Point::StateCommitting, 40),
        cut(at(Point::StateCommitted, 40)),
        cut(at(Point::CatalogChanged, 5)),
    ];
    rounds(1, &plans).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_of_a_set_keep_what_it_has_acknowledged() -> Result<()> {
    let plans = [
        cut(any_moment()),
        cut(at(Point::LogAppended, 30)),
        at(Point::Applying, 30),
        at(Point::CatalogChanging, 2),
    ];
    rounds(3, &plans).await
}
