use banyan_document::extjson;
use banyan_document::path::Path;

use super::interval::{Intervals, confine};
use super::{Conjunction, equality_of, implies, intervals_of};
use crate::{Context, Filter, golden};

fn parse(text: &str) -> Filter {
    let document = extjson::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    Filter::parse(&document, &Context::default()).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// `bounds FILTER`: where each condition's values lie, without and with arrays on the path.
/// `path PATH FILTER`: the values of a path without arrays, and whether they are one.
/// `implies FILTER => FILTER`: whether the first implies the second.
#[test]
fn golden() {
    golden::check("src/bounds/bounds.golden", |commands| {
        let mut output = Vec::new();
        for command in commands {
            let (name, argument) = golden::split(command);
            match name {
                "bounds" => output.extend(bounds(argument)),
                "path" => output.push(path(argument)),
                "implies" => {
                    let (have, need) = argument.split_once(" => ").unwrap();
                    let have = parse(have);
                    let answer = implies(&Conjunction::of(&have), &parse(need));
                    output.push(format!("{answer}"));
                }
                other => panic!("{other}"),
            }
        }
        output
    });
}

fn bounds(filter: &str) -> Vec<String> {
    let filter = parse(filter);
    let conjunction = Conjunction::of(&filter);
    let mut lines = vec![match (conjunction.never, conjunction.complete) {
        (true, _) => "never".to_owned(),
        (false, true) => "complete".to_owned(),
        (false, false) => "incomplete".to_owned(),
    }];
    show(&conjunction, 1, &mut lines);
    lines
}

fn show(conjunction: &Conjunction<'_>, level: usize, lines: &mut Vec<String>) {
    let indent = "  ".repeat(level);
    for condition in &conjunction.conditions {
        let item = condition
            .item
            .map_or(String::new(), |n| format!(" item {n}"));
        let [plain, arrays] = [false, true].map(|arrays| text(confine(condition, arrays)));
        let arrays = match arrays == plain {
            true => String::new(),
            false => format!(" | arrays: {arrays}"),
        };
        lines.push(format!("{indent}{}{item}: {plain}{arrays}", condition.path));
    }
    for branches in &conjunction.disjunctions {
        lines.push(format!("{indent}one of"));
        for branch in branches {
            lines.push(format!("{indent}-"));
            show(branch, level + 1, lines);
        }
    }
}

fn text(confined: Option<Intervals<'_>>) -> String {
    let Some(confined) = confined else {
        return "anywhere".to_owned();
    };
    let shown: Vec<_> = confined.intervals.iter().map(|i| i.describe()).collect();
    let inexact = if confined.exact { "" } else { " inexact" };
    format!(
        "{}{inexact}",
        if shown.is_empty() {
            "nowhere".to_owned()
        } else {
            shown.join(" ")
        }
    )
}

fn path(argument: &str) -> String {
    let (path, filter) = golden::split(argument);
    let (path, filter) = (Path::parse(path).unwrap(), parse(filter));
    let conjunction = Conjunction::of(&filter);
    let shown = match intervals_of(&conjunction, &path) {
        None => "anywhere".to_owned(),
        Some(intervals) => {
            let shown: Vec<_> = intervals.iter().map(|i| i.describe()).collect();
            if shown.is_empty() {
                "nowhere".to_owned()
            } else {
                shown.join(" ")
            }
        }
    };
    match equality_of(&conjunction, &path) {
        Some(_) => format!("{shown} equal"),
        None => shown,
    }
}
