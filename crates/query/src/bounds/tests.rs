use banyan_document::Collator;
use banyan_document::extjson;
use banyan_document::path::Path;

use super::interval::{Intervals, KeyOrder, condition_intervals};
use super::{Conjunction, Disjunction, equality_of, implies, intervals_of};
use crate::{Context, Filter, golden};

#[derive(Default)]
struct Collations {
    keys: Option<Collator>,
    query: Option<Collator>,
}

fn collator(text: &str) -> Option<Collator> {
    Collator::parse(&extjson::parse(text).unwrap()).unwrap()
}

fn parse(text: &str, collator: &Option<Collator>) -> Filter {
    let document = extjson::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    let context = Context {
        collator: collator.clone(),
        ..Context::default()
    };
    Filter::parse(&document, &context).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// `bounds FILTER`: where each condition's values lie, without and with arrays on the path.
/// `path PATH FILTER`: the values of a path without arrays, and whether they are one.
/// `implies FILTER => FILTER`: whether the first implies the second.
/// `keys COLLATION` and `query COLLATION`: how the keys and the filters that follow in the block
/// compare strings.
#[test]
fn golden() {
    golden::check("src/bounds/bounds.golden", |commands| {
        let mut output = Vec::new();
        let mut collations = Collations::default();
        for command in commands {
            let (name, argument) = golden::split(command);
            match name {
                "keys" => collations.keys = collator(argument),
                "query" => collations.query = collator(argument),
                "bounds" => output.extend(bounds(argument, &collations)),
                "path" => output.push(path(argument, &collations)),
                "implies" => {
                    let (have, need) = argument.split_once(" => ").unwrap();
                    let have = parse(have, &collations.query);
                    let need = parse(need, &collations.keys);
                    let answer = implies(&Conjunction::of(&have), &need);
                    output.push(format!("{answer}"));
                }
                other => panic!("{other}"),
            }
        }
        output
    });
}

fn bounds(filter: &str, collations: &Collations) -> Vec<String> {
    let filter = parse(filter, &collations.query);
    let conjunction = Conjunction::of(&filter);
    let mut lines = vec![match (conjunction.never, conjunction.complete) {
        (true, _) => "never".to_owned(),
        (false, true) => "complete".to_owned(),
        (false, false) => "incomplete".to_owned(),
    }];
    show(&conjunction, 1, &collations.keys, &mut lines);
    lines
}

fn show(
    conjunction: &Conjunction<'_>,
    level: usize,
    keys: &Option<Collator>,
    lines: &mut Vec<String>,
) {
    let indent = "  ".repeat(level);
    for condition in &conjunction.conditions {
        let item = condition
            .item
            .map_or(String::new(), |n| format!(" item {n}"));
        let order = KeyOrder::new(keys.as_ref(), conjunction.collator);
        let [plain, arrays] = [false, true].map(|arrays| {
            text(
                condition_intervals(condition, arrays, order),
                keys.is_some(),
            )
        });
        let arrays = match arrays == plain {
            true => String::new(),
            false => format!(" | arrays: {arrays}"),
        };
        lines.push(format!("{indent}{}{item}: {plain}{arrays}", condition.path));
    }
    for Disjunction { branches, .. } in &conjunction.disjunctions {
        lines.push(format!("{indent}one of"));
        for branch in branches {
            lines.push(format!("{indent}-"));
            show(branch, level + 1, keys, lines);
        }
    }
}

fn text(bounds: Option<Intervals<'_>>, collated: bool) -> String {
    let Some(bounds) = bounds else {
        return "anywhere".to_owned();
    };
    let intervals = bounds.intervals.iter();
    let shown: Vec<_> = intervals.map(|i| i.describe(collated, false)).collect();
    let inexact = if bounds.exact { "" } else { " inexact" };
    format!(
        "{}{inexact}",
        if shown.is_empty() {
            "nowhere".to_owned()
        } else {
            shown.join(" ")
        }
    )
}

fn path(argument: &str, collations: &Collations) -> String {
    let (path, filter) = golden::split(argument);
    let (path, filter) = (Path::parse(path).unwrap(), parse(filter, &collations.query));
    let conjunction = Conjunction::of(&filter);
    let shown = match intervals_of(&conjunction, &path) {
        None => "anywhere".to_owned(),
        Some(intervals) => {
            let shown: Vec<_> = intervals.iter().map(|i| i.describe(false, false)).collect();
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
