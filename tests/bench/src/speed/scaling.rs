//! How the rows of the speed table scale: with the cores that the servers may use, and with ten
//! times the data.

use anyhow::Result;

use super::{Figures, Peers, chosen};
use crate::report::{Report, Table, median};
use crate::scenarios::{REFERENCE, Settings};

/// What there is more of.
#[derive(Clone, Copy, clap::ValueEnum)]
pub enum With {
    /// 1, 2, 4, 8 and 16 cores, as many as there are: seconds, and what the most of them gain.
    Cores,
    /// Ten times the documents: seconds, and the memory that the server had at its peak.
    Data,
}

const CORES: [usize; 5] = [1, 2, 4, 8, 16];
const TIMES: usize = 10;

/// Both sides of a table: ours and the reference's.
const SIDES: [&str; 2] = ["Banyan", REFERENCE];

pub async fn run(with: With, settings: &Settings, report: &mut Report) -> Result<()> {
    match with {
        With::Cores => with_cores(settings, report).await,
        With::Data => with_data(settings, report).await,
    }
}

async fn with_cores(settings: &Settings, report: &mut Report) -> Result<()> {
    let there_are = super::peer::allowed_cores()?.len();
    let counts: Vec<usize> = CORES
        .into_iter()
        .filter(|&count| count <= there_are)
        .collect();
    let mut measured = Vec::new();
    for &cores in &counts {
        eprintln!("-- on {cores} of {there_are} cores");
        measured.push(all_rows(settings, cores, settings.documents, report).await?);
    }
    for (side, name) in SIDES.iter().enumerate().take(sides(settings)) {
        let mut columns: Vec<String> = counts.iter().map(|count| format!("on {count}")).collect();
        columns.push("gain".to_owned());
        let cells = |row: usize| {
            let mut cells: Vec<Option<f64>> = measured
                .iter()
                .map(|rows| seconds(&rows[row], side))
                .collect();
            cells.push(quotient(cells[0], cells[cells.len() - 1]));
            cells
        };
        report.add_table(Table {
            title: format!("{name}: seconds on so many cores"),
            columns,
            rows: named(settings, cells),
        });
    }
    Ok(())
}

async fn with_data(settings: &Settings, report: &mut Report) -> Result<()> {
    let cores = settings.cores.unwrap_or(usize::MAX);
    let mut measured = Vec::new();
    for documents in [settings.documents, settings.documents * TIMES] {
        eprintln!("-- {documents} documents");
        measured.push(all_rows(settings, cores, documents, report).await?);
    }
    for (side, name) in SIDES.iter().enumerate().take(sides(settings)) {
        let columns = ["s", "s x 10", "factor", "peak MB", "peak MB x 10"];
        let cells = |row: usize| {
            let (once, more) = (&measured[0][row], &measured[1][row]);
            let (short, long) = (seconds(once, side), seconds(more, side));
            let peaks = [peak_mb(once, side), peak_mb(more, side)];
            vec![short, long, quotient(long, short), peaks[0], peaks[1]]
        };
        report.add_table(Table {
            title: format!("{name}: seconds and memory with {TIMES} times the documents"),
            columns: columns.map(str::to_owned).to_vec(),
            rows: named(settings, cells),
        });
    }
    Ok(())
}

async fn all_rows(
    settings: &Settings,
    cores: usize,
    documents: usize,
    report: &mut Report,
) -> Result<Vec<Figures>> {
    let peers = Peers::start(settings, cores, documents).await?;
    let mut all = Vec::new();
    for row in chosen(settings) {
        let figures = peers.measure(&row, settings.rounds, report).await;
        eprintln!("   {}: {:.3?} s", row.name, figures.seconds[0]);
        all.push(figures);
    }
    Ok(all)
}

fn named(
    settings: &Settings,
    cells: impl Fn(usize) -> Vec<Option<f64>>,
) -> Vec<(String, Vec<Option<f64>>)> {
    let names = chosen(settings).enumerate();
    names
        .map(|(at, row)| (row.name.to_owned(), cells(at)))
        .collect()
}

fn sides(settings: &Settings) -> usize {
    1 + usize::from(settings.reference.is_some())
}

fn seconds(figures: &Figures, side: usize) -> Option<f64> {
    median(figures.seconds[side].clone())
}

fn peak_mb(figures: &Figures, side: usize) -> Option<f64> {
    Some(figures.peak_mb[side]).filter(|&peak| peak > 0.0)
}

fn quotient(of: Option<f64>, by: Option<f64>) -> Option<f64> {
    Some(of? / by?)
}
