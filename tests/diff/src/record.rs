//! Golden files: cases and what the reference said to them, as text that can be reviewed.
//!
//! A line begins with what it is: `#` a comment, `docs` the documents of the cases that follow,
//! `op` a command, `reply` and `state` what the reference answered and, after a write, what the
//! collection held then. A file written by hand has no replies until it is recorded.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use bson::Document;

use crate::case::Case;
use crate::compare::{Difference, Told, compare};
use crate::known::Known;
use crate::notation;
use crate::order;
use crate::shape::Shape;
use crate::side::Side;

#[derive(Debug)]
pub enum Line {
    Comment(String),
    Documents(Vec<Document>),
    Case(Box<Golden>),
}

#[derive(Debug)]
pub struct Golden {
    pub line: usize,
    pub case: Case,
    pub told: Option<Told>,
}

/// The golden files of this package.
pub fn files() -> Result<Vec<PathBuf>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("cases");
    let entries = fs::read_dir(&folder).with_context(|| format!("{}", folder.display()))?;
    let mut files: Vec<PathBuf> = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "txt"));
    files.sort();
    Ok(files)
}

pub fn known_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("known.txt")
}

pub fn read(text: &str) -> Result<Vec<Line>> {
    let mut lines = Vec::new();
    let mut documents = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let bad = || format!("line {}", at + 1);
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "" | "#" => lines.push(Line::Comment(line.to_owned())),
            "docs" => {
                documents = notation::split(rest).with_context(bad)?;
                lines.push(Line::Documents(documents.clone()));
            }
            "op" => {
                let command = notation::parse_document(rest).with_context(bad)?;
                let case = Case {
                    documents: documents.clone(),
                    indexes: Vec::new(),
                    before: None,
                    command,
                };
                lines.push(Line::Case(Box::new(Golden {
                    line: at + 1,
                    case,
                    told: None,
                })));
            }
            "reply" | "state" => {
                let shape = Shape::from(&notation::parse(rest).with_context(bad)?);
                let Some(Line::Case(golden)) = lines.last_mut() else {
                    bail!("line {}: a {word} without an op before it", at + 1);
                };
                golden.tell(word, shape);
            }
            _ => bail!("line {}: {word} begins no line", at + 1),
        }
    }
    Ok(lines)
}

impl Golden {
    fn tell(&mut self, word: &str, shape: Shape) {
        match &mut self.told {
            Some(Told::Reply { state, .. }) if word == "state" => *state = Some(shape),
            told => {
                *told = Some(Told::Reply {
                    reply: shape,
                    state: None,
                })
            }
        }
    }

    fn write(&self, out: &mut String) {
        let _ = writeln!(out, "op {}", notation::print_document(&self.case.command));
        if let Some(Told::Reply { reply, state }) = &self.told {
            let _ = writeln!(out, "reply {}", reply.text());
            if let Some(state) = state {
                let _ = writeln!(out, "state {}", state.text());
            }
        }
    }
}

pub fn write(lines: &[Line]) -> String {
    let mut out = String::new();
    for line in lines {
        match line {
            Line::Comment(text) => out.push_str(&format!("{text}\n")),
            Line::Documents(documents) => {
                let texts: Vec<String> = documents.iter().map(notation::print_document).collect();
                out.push_str(&format!("docs [{}]\n", texts.join(", ")));
            }
            Line::Case(golden) => golden.write(&mut out),
        }
    }
    out
}

/// Asks the reference anew for every reply; drops the cases that it cannot answer.
pub fn record(lines: &mut Vec<Line>, reference: &mut Side) {
    lines.retain_mut(|line| {
        let Line::Case(golden) = line else {
            return true;
        };
        golden.told = reference.tell(&golden.case, &[]).filter(Told::is_reply);
        golden.told.is_some()
    });
}

/// A golden case that Banyan answers differently, and no known difference takes that in.
#[derive(Debug)]
pub struct Failure {
    pub line: usize,
    pub case: Case,
    pub difference: Difference,
}

/// Plays the cases of a file against Banyan; how many there were, and those that fail.
pub fn replay(lines: &[Line], banyan: &mut Side, known: &Known) -> (usize, Vec<Failure>) {
    let mut failures = Vec::new();
    let mut count = 0;
    for line in lines {
        let Line::Case(golden) = line else { continue };
        let Some(expected) = &golden.told else {
            continue;
        };
        count += 1;
        let found = banyan.tell(&golden.case, &[]).unwrap_or(Told::Closed);
        let order = order::of(&golden.case.command);
        let Some(difference) = compare(expected, &found, order) else {
            continue;
        };
        if known.absorb(&golden.case, &difference).is_none() {
            let case = golden.case.clone();
            failures.push(Failure {
                line: golden.line,
                case,
                difference,
            });
        }
    }
    (count, failures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_written_as_it_was_read() {
        let text = "# why\ndocs [{_id: 1}]\nop {find: \"c\"}\nreply {ok: 1.0}\n\nop {delete: \"c\"}\n\
                    reply {n: 1, ok: 1.0}\nstate []\n";
        assert_eq!(write(&read(text).unwrap()), text);
    }

    #[test]
    fn what_no_line_begins_with_is_refused() {
        for text in ["docs {}", "reply {}", "nonsense", "op [1]"] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
