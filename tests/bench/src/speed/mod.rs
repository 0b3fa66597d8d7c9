//! The speed table: kinds of work on many documents, Banyan beside the reference. Both hold the
//! same documents, take turns, and have to give the same answers.
//!
//! - `rows`: the table itself; `commands` is what its rows are made of;
//! - `work`: how a row is done, timed and answered;
//! - `data`: the documents; `extras`: those of a few rows only;
//! - `peer`: a server, its cores and its memory;
//! - `scaling`: the same rows with more cores and with more data.

mod commands;
mod data;
mod extras;
mod peer;
mod rows;
pub mod scaling;
mod script_rows;
mod work;

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::report::{Expected, Line, Report};
use crate::scenarios::{REFERENCE, Settings};
use data::Sizes;
use peer::Peer;
use rows::Row;
use work::{Answer, Look};

/// A row is repeated until the faster peer's turn takes this long.
const SHORT_TURN: Duration = Duration::from_millis(300);
/// It is not repeated beyond a turn of the slower peer that takes this long.
const LONG_TURN: Duration = Duration::from_secs(1);

pub async fn run(settings: &Settings, report: &mut Report) -> Result<()> {
    let cores = settings.cores.unwrap_or(usize::MAX);
    let peers = Peers::start(settings, cores, settings.documents).await?;
    for row in chosen(settings) {
        let figures = peers.measure(&row, settings.rounds, report).await;
        let [ours, other] = figures.seconds;
        report.add(Line {
            what: row.name.to_owned(),
            unit: "s",
            ours,
            beside: REFERENCE,
            other,
            expected: Expected::Ahead,
        });
    }
    Ok(())
}

fn chosen(settings: &Settings) -> impl Iterator<Item = Row> {
    let wanted = settings.row.clone().unwrap_or_default();
    rows::all()
        .into_iter()
        .filter(move |row| row.name.contains(&wanted))
}

/// Banyan and, where there is one, the reference, with the same data.
struct Peers {
    peers: Vec<Peer>,
    sizes: Sizes,
}

/// What a row took: Banyan's first, the reference's second, empty without one. Both are empty where
/// one of them failed.
#[derive(Default)]
struct Figures {
    /// Of each round.
    seconds: [Vec<f64>; 2],
    /// The highest of all rounds.
    peak_mb: [f64; 2],
}

impl Peers {
    async fn start(settings: &Settings, cores: usize, documents: usize) -> Result<Self> {
        let mut peers = vec![Peer::start(None, cores).await?];
        if let Some(program) = &settings.reference {
            peers.push(Peer::start(Some(program), cores).await?);
        }
        let sizes = Sizes { documents };
        let mut extras = Vec::new();
        for extra in chosen(settings).filter_map(|row| row.extra) {
            if !extras.contains(&extra) {
                extras.push(extra);
            }
        }
        for peer in &peers {
            peer.load(sizes).await?;
            for extra in &extras {
                extra.load(&peer.database(), sizes).await?;
            }
        }
        Ok(Self { peers, sizes })
    }

    async fn measure(&self, row: &Row, rounds: usize, report: &mut Report) -> Figures {
        match self.try_measure(row, rounds, report).await {
            Ok(figures) => figures,
            Err(error) => {
                // The driver's own words bring the whole reply of the server.
                let cause = error.downcast_ref::<mongodb::error::Error>();
                report.fault(match cause {
                    Some(cause) => format!("{error}: {}", cause.kind),
                    None => format!("{error:#}"),
                });
                Figures::default()
            }
        }
    }

    async fn try_measure(&self, row: &Row, rounds: usize, report: &mut Report) -> Result<Figures> {
        let (repeats, expected) = self.compare(row, report).await?;
        let mut figures = Figures::default();
        for round in 0..rounds {
            let mut turns: Vec<(usize, &Peer)> = self.peers.iter().enumerate().collect();
            if round % 2 == 1 {
                turns.reverse();
            }
            for (at, peer) in turns {
                let expected = expected[at].documents;
                let seconds = self.turn(row, peer, repeats, expected).await?;
                figures.seconds[at].push(seconds);
                figures.peak_mb[at] = figures.peak_mb[at].max(peer.peak_mb()?);
            }
        }
        Ok(figures)
    }

    /// Runs the row once on each peer, which warms them, and compares what they answer. Returns how
    /// often a turn repeats it, the same for both as it may write, and the answers.
    async fn compare(&self, row: &Row, report: &mut Report) -> Result<(u32, Vec<Answer>)> {
        let mut took = Vec::new();
        let mut answers = Vec::new();
        let mut effects = Vec::new();
        for peer in &self.peers {
            self.put_in_order(row, peer).await?;
            let (elapsed, answer) = self.once(row, peer, Look::Hash).await?;
            took.push(elapsed);
            answers.push(answer);
            if let Some(effect) = row.effect {
                effects.push(work::answer(&peer.database(), effect(self.sizes)).await?);
            }
        }
        for compared in [&answers, &effects] {
            if let [ours, other] = compared[..]
                && ours != other
            {
                report.fault(format!(
                    "{}: {ours:?}, of the {REFERENCE} {other:?}",
                    row.name
                ));
            }
        }
        let repeats = if row.before.is_empty() {
            repeats(&took)
        } else {
            1
        };
        Ok((repeats, answers))
    }

    /// Mean seconds of a row's repeats.
    async fn turn(&self, row: &Row, peer: &Peer, repeats: u32, documents: u64) -> Result<f64> {
        self.put_in_order(row, peer).await?;
        for peer in &self.peers {
            peer.rest().await?;
        }
        peer.reset_peak()?;
        let mut elapsed = Duration::ZERO;
        for _ in 0..repeats {
            let (took, answer) = self.once(row, peer, Look::Count).await?;
            ensure!(
                answer.documents == documents,
                "{}: {} documents after {documents}",
                row.name,
                answer.documents
            );
            elapsed += took;
        }
        Ok(elapsed.as_secs_f64() / f64::from(repeats))
    }

    async fn put_in_order(&self, row: &Row, peer: &Peer) -> Result<()> {
        for before in &row.before {
            work::prepare(&peer.database(), before(self.sizes)).await?;
        }
        Ok(())
    }

    async fn once(&self, row: &Row, peer: &Peer, look: Look) -> Result<(Duration, Answer)> {
        let done = row.work.run(&peer.database(), self.sizes, look).await;
        done.with_context(|| format!("{}, {}", row.name, peer.name))
    }
}

/// How often a turn repeats what took the peers so long.
fn repeats(took: &[Duration]) -> u32 {
    let of = |turn: Duration, took: Option<&Duration>| {
        let took = took.map_or(turn, |&took| took.max(Duration::from_micros(1)));
        turn.div_duration_f64(took).ceil() as u32
    };
    let (fastest, slowest) = (took.iter().min(), took.iter().max());
    of(SHORT_TURN, fastest).min(of(LONG_TURN, slowest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_work_is_repeated_unless_it_is_long_for_the_other() {
        let repeats = |millis: &[u64]| {
            let took: Vec<Duration> = millis.iter().copied().map(Duration::from_millis).collect();
            repeats(&took)
        };
        assert_eq!(repeats(&[10, 20]), 30);
        assert_eq!(repeats(&[1, 100]), 10);
        assert_eq!(repeats(&[5_000, 1]), 1);
        assert_eq!(repeats(&[400]), 1);
    }
}
