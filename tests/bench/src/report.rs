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
        let ratios = self
            .ours
            .iter()
            .zip(&self.other)
            .map(|(ours, other)| ours / other);
        median(ratios.collect())
    }

    fn verdict(&self) -> &'static str {
        match (self.ratio(), self.expected) {
            (Some(ratio), Expected::AtLeast(bound)) if ratio < bound => "MISSED",
            (Some(ratio), Expected::AtMost(bound)) if ratio > bound => "MISSED",
            (Some(_), Expected::AtLeast(_) | Expected::AtMost(_)) => "met",
            _ => "",
        }
    }

    fn bound(&self) -> String {
        match self.expected {
            Expected::AtLeast(bound) => format!(">= {bound}"),
            Expected::AtMost(bound) => format!("<= {bound}"),
            Expected::Nothing => String::new(),
        }
    }
}

#[derive(Default)]
pub struct Report {
    lines: Vec<Line>,
}

impl Report {
    pub fn add(&mut self, line: Line) {
        eprintln!("   {}", row(&line));
        self.lines.push(line);
    }

    pub fn print(&self) {
        println!(
            "{:<44} {:>12} {:>12} {:<12} {:>7} {:>8}",
            "what", "Banyan", "beside", "", "ratio", "expected"
        );
        for line in &self.lines {
            println!("{}", row(line));
        }
    }

    pub fn write_json(&self, path: &Path) -> Result<()> {
        let lines: Vec<Value> = self.lines.iter().map(line_json).collect();
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let text = serde_json::to_string_pretty(&lines)?;
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    }
}

fn row(line: &Line) -> String {
    let figure = |values: &Vec<f64>| match median(values.clone()) {
        Some(value) if value >= 100.0 => format!("{value:.0}"),
        Some(value) => format!("{value:.3}"),
        None => "-".to_owned(),
    };
    let ratio = line
        .ratio()
        .map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
    format!(
        "{:<44} {:>12} {:>12} {:<12} {:>7} {:>8} {}",
        format!("{} [{}]", line.what, line.unit),
        figure(&line.ours),
        figure(&line.other),
        line.beside,
        ratio,
        line.bound(),
        line.verdict()
    )
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

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        count if count % 2 == 1 => Some(values[middle]),
        _ => Some(f64::midpoint(values[middle - 1], values[middle])),
    }
}
