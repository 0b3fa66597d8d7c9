//! Rounds, medians, ratios.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// What a ratio is expected to be.
#[derive(Clone, Copy, Debug)]
pub enum Expected {
    AtLeast(f64),
    AtMost(f64),
    /// A time below the other's. The ratio says how many times as fast.
    Ahead,
    Nothing,
}

/// One line of the table: two sides measured in turns.
pub struct Line {
    pub what: String,
    pub unit: &'static str,
    pub ours: Vec<f64>,
    pub beside: &'static str,
    pub other: Vec<f64>,
    pub expected: Expected,
}

impl Line {
    /// The median of the rounds' own ratios: what both sides met in a round cancels out.
    fn ratio(&self) -> Option<f64> {
        let rounds = self.ours.iter().zip(&self.other);
        let ratios = rounds.map(|(ours, other)| match self.expected {
            Expected::Ahead => other / ours,
            _ => ours / other,
        });
        median(ratios.collect())
    }

    fn verdict(&self) -> &'static str {
        if self.ours.is_empty() {
            return "FAILED";
        }
        match (self.ratio(), self.expected) {
            (Some(ratio), Expected::AtLeast(bound)) if ratio < bound => "MISSED",
            (Some(ratio), Expected::AtMost(bound)) if ratio > bound => "MISSED",
            (Some(_), Expected::AtLeast(_) | Expected::AtMost(_)) => "met",
            (Some(ratio), Expected::Ahead) if ratio < 1.0 => "BEHIND",
            (Some(ratio), Expected::Ahead) if ratio >= TWICE => "twice",
            _ => "",
        }
    }

    fn bound(&self) -> String {
        match self.expected {
            Expected::AtLeast(bound) => format!(">= {bound}"),
            Expected::AtMost(bound) => format!("<= {bound}"),
            Expected::Ahead => ">= 1".to_owned(),
            Expected::Nothing => String::new(),
        }
    }
}

const TWICE: f64 = 2.0;

/// Figures that belong together: how something scales.
pub struct Table {
    pub title: String,
    pub columns: Vec<String>,
    pub rows: Vec<(String, Vec<Option<f64>>)>,
}

#[derive(Default)]
pub struct Report {
    lines: Vec<Line>,
    tables: Vec<Table>,
    faults: Vec<String>,
}

impl Report {
    pub fn add(&mut self, line: Line) {
        eprintln!("   {}", row(&line));
        self.lines.push(line);
    }

    pub fn add_table(&mut self, table: Table) {
        self.tables.push(table);
    }

    /// Says that work failed, or that the two sides did not answer the same.
    pub fn fault(&mut self, fault: String) {
        eprintln!("   FAULT: {fault}");
        self.faults.push(fault);
    }

    /// Whether the figures may be believed: a wrong answer may be fast.
    pub fn is_sound(&self) -> bool {
        self.faults.is_empty()
    }

    pub fn print(&self) {
        if !self.lines.is_empty() {
            println!(
                "{:<48} {:>12} {:>12} {:<12} {:>7} {:>8}",
                "what", "Banyan", "beside", "", "ratio", "expected"
            );
        }
        for line in &self.lines {
            println!("{}", row(line));
        }
        if let Some(summary) = self.summary() {
            println!("{summary}");
        }
        for table in &self.tables {
            print_table(table);
        }
        for fault in &self.faults {
            println!("FAULT: {fault}");
        }
    }

    /// How many rows of the speed table are ahead.
    fn summary(&self) -> Option<String> {
        let rows = self.lines.iter();
        let rows = rows.filter(|line| matches!(line.expected, Expected::Ahead));
        let failed = rows.clone().filter(|line| line.ours.is_empty()).count();
        let ratios: Vec<f64> = rows.filter_map(Line::ratio).collect();
        let at_least = |bound| ratios.iter().filter(|&&ratio| ratio >= bound).count();
        let count = ratios.len() + failed;
        let (ahead, twice) = (at_least(1.0), at_least(TWICE));
        let median = median(ratios)?;
        Some(format!(
            "of {count} rows {ahead} ahead, {twice} at {TWICE:.1} or more, median {median:.2}; \
             {failed} failed"
        ))
    }

    pub fn write_json(&self, path: &Path) -> Result<()> {
        let lines = self.lines.iter().map(line_json);
        let lines: Vec<Value> = lines.chain(self.tables.iter().map(table_json)).collect();
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let text = serde_json::to_string_pretty(&lines)?;
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    }
}

fn row(line: &Line) -> String {
    let figure = |values: &Vec<f64>| figure(median(values.clone()));
    let ratio = line
        .ratio()
        .map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
    format!(
        "{:<48} {:>12} {:>12} {:<12} {:>7} {:>8} {}",
        format!("{} [{}]", line.what, line.unit),
        figure(&line.ours),
        figure(&line.other),
        line.beside,
        ratio,
        line.bound(),
        line.verdict()
    )
}

/// Three digits that tell something, or more before the point.
fn figure(value: Option<f64>) -> String {
    match value {
        Some(value) if value >= 100.0 => format!("{value:.0}"),
        Some(value) if value >= 0.1 => format!("{value:.3}"),
        Some(value) => format!("{value:.5}"),
        None => "-".to_owned(),
    }
}

fn print_table(table: &Table) {
    println!("\n{}", table.title);
    let line = |name: &str, cells: Vec<String>| {
        let cells: Vec<String> = cells.iter().map(|cell| format!("{cell:>11}")).collect();
        println!("{name:<48} {}", cells.join(" "));
    };
    line("", table.columns.clone());
    for (name, figures) in &table.rows {
        line(name, figures.iter().map(|&value| figure(value)).collect());
    }
}

fn table_json(table: &Table) -> Value {
    let rows: Vec<Value> = table
        .rows
        .iter()
        .map(|(name, figures)| json!({ "what": name, "figures": figures }))
        .collect();
    json!({ "table": table.title, "columns": table.columns, "rows": rows })
}

fn line_json(line: &Line) -> Value {
    json!({
        "what": line.what,
        "unit": line.unit,
        "banyan": line.ours,
        "beside": line.beside,
        "other": line.other,
        "ratio": line.ratio(),
        "expected": line.bound(),
        "verdict": line.verdict(),
    })
}

/// The value that `percent` of the values do not exceed.
pub fn at_percentile(values: &[f64], percent: f64) -> Option<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let rank = (percent / 100.0 * values.len() as f64).ceil() as usize;
    values.get(rank.max(1) - 1).copied()
}

pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        count if count % 2 == 1 => Some(values[middle]),
        _ => Some(f64::midpoint(values[middle - 1], values[middle])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn speed(ours: &[f64], other: &[f64]) -> Line {
        Line {
            what: "a row".to_owned(),
            unit: "s",
            ours: ours.to_vec(),
            beside: "reference",
            other: other.to_vec(),
            expected: Expected::Ahead,
        }
    }

    #[test]
    fn a_row_of_the_speed_table_is_ahead_when_it_takes_less_time() {
        let slower = speed(&[2.0, 2.0, 9.0], &[1.0, 1.0, 9.0]);
        assert_eq!((slower.ratio(), slower.verdict()), (Some(0.5), "BEHIND"));
        let faster = speed(&[1.0], &[1.5]);
        assert_eq!((faster.ratio(), faster.verdict()), (Some(1.5), ""));
        let twice = speed(&[1.0], &[2.0]);
        assert_eq!((twice.ratio(), twice.verdict()), (Some(2.0), "twice"));
        let failed = speed(&[], &[]);
        assert_eq!((failed.ratio(), failed.verdict()), (None, "FAILED"));
        let alone = speed(&[1.0], &[]);
        assert_eq!((alone.ratio(), alone.verdict()), (None, ""));
        let report = Report {
            lines: vec![slower, faster, twice, failed, alone],
            ..Report::default()
        };
        let expected = "of 4 rows 2 ahead, 1 at 2.0 or more, median 1.50; 1 failed";
        assert_eq!(report.summary().as_deref(), Some(expected));
    }

    #[test]
    fn a_fault_fails_the_run() {
        let mut report = Report::default();
        assert!(report.is_sound());
        report.fault("a row".to_owned());
        assert!(!report.is_sound());
    }
}
