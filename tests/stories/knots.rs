//! Which modules of a crate need each other. What goes round in a circle can only be understood,
//! tested and changed together, so circles are counted, and none may grow.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use banyan_tests::repository;

/// The circles that there are: the crate, where all of a circle's modules are, and how many they
/// are at most. A command's line in a table and what a command runs with name each other. The
/// others are to be brought down.
const KNOWN: &[(&str, &[&str], usize)] = &[
    ("crates/node", &["commands::table", "context"], 2),
    ("crates/query", &["pipeline"], 36),
];

type Edges = BTreeMap<String, BTreeSet<String>>;

#[test]
fn no_more_files_need_each_other_than_is_known() {
    let mut crates: Vec<String> = fs::read_dir(repository().join("crates"))
        .expect("the crates are there")
        .map(|entry| entry.expect("an entry").file_name())
        .map(|name| format!("crates/{}", name.to_string_lossy()))
        .collect();
    crates.extend(["configsvr", "mongod", "mongos", "shell"].map(str::to_owned));
    for name in crates {
        let edges = edges(&repository().join(&name).join("src"));
        assert!(!edges.is_empty(), "{name} has modules");
        let unknown = circles(&edges)
            .into_iter()
            .filter(|circle| circle.len() > 1 && !is_known(&name, circle))
            .max_by_key(BTreeSet::len);
        assert_eq!(unknown, None, "{name}: files that need each other");
    }
}

fn is_known(name: &str, circle: &BTreeSet<String>) -> bool {
    KNOWN.iter().any(|(known, places, size)| {
        let is_there = |module: &String| places.iter().any(|place| module.starts_with(place));
        *known == name && circle.len() <= *size && circle.iter().all(is_there)
    })
}

/// The modules that have files, and which of them each one names.
fn edges(source: &Path) -> Edges {
    let mut files = BTreeMap::new();
    read_modules(source, "", &mut files);
    let modules: BTreeSet<&str> = files.keys().map(String::as_str).collect();
    let named = |(module, text): (&String, &String)| {
        let mut named = BTreeSet::new();
        for path in paths(text) {
            let found = resolve(module, &path, &modules);
            named.extend(found.filter(|found| found != module));
        }
        (module.clone(), named)
    };
    files.iter().map(named).collect()
}

fn read_modules(folder: &Path, module: &str, files: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        let stem = path.file_stem().expect("a name").to_string_lossy();
        let inner = match module {
            "" => stem.to_string(),
            module => format!("{module}::{stem}"),
        };
        if path.is_dir() {
            read_modules(&path, &inner, files);
        } else if path.extension().is_some_and(|ending| ending == "rs") && stem != "tests" {
            let name = match &*stem {
                "mod" => module.to_owned(),
                "lib" | "main" if module.is_empty() => String::new(),
                _ => inner,
            };
            let text = fs::read_to_string(&path).expect("a source");
            files.insert(name, without_tests(&text));
        }
    }
}

/// Without comments and without what only tests compile.
fn without_tests(text: &str) -> String {
    let end = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    let lines = text[..end].lines();
    let code = lines.map(|line| line.split("//").next().unwrap_or_default());
    // Who may see a thing is not what it needs.
    let code = code.map(|line| line.replace("pub(in crate", "pub("));
    code.collect::<Vec<_>>().join("\n")
}

/// The paths that begin in this crate: those of `use`, and those written out. What a module hands
/// on from one of its own (`pub use`) it does not need itself.
fn paths(text: &str) -> Vec<String> {
    let mut paths = Vec::new();
    let mut rest = String::new();
    for statement in text.split(';') {
        let begin = statement.rfind("use ").filter(|begin| {
            let before = statement[..*begin].chars().next_back();
            before.is_none_or(char::is_whitespace)
        });
        let Some(begin) = begin.filter(|begin| is_import(&statement[begin + 4..])) else {
            rest.push_str(statement);
            continue;
        };
        let is_public = statement[..begin].trim_end().ends_with(['b', ')']);
        rest.push_str(&statement[..begin]);
        let mut named = Vec::new();
        expand("", statement[begin + 4..].trim(), &mut named);
        named.retain(|path| !is_public || path.starts_with("crate::") || path.starts_with("super"));
        paths.append(&mut named);
    }
    for start in ["crate::", "super::"] {
        let written = rest.match_indices(start);
        paths.extend(written.map(|(at, _)| {
            let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
            rest[at..].chars().take_while(|c| is_part(*c)).collect()
        }));
    }
    paths
}

fn is_import(text: &str) -> bool {
    text.chars()
        .all(|c| c.is_alphanumeric() || c.is_whitespace() || "_:{},*".contains(c))
}

/// `a::{b, c::{d, e}}` is three paths.
fn expand(before: &str, text: &str, out: &mut Vec<String>) {
    let Some(open) = text.find('{') else {
        let name = text.split(" as ").next().unwrap_or_default().trim();
        out.push(format!("{before}{name}"));
        return;
    };
    let before = format!("{before}{}", text[..open].trim());
    let close = text.rfind('}').unwrap_or(text.len());
    let (mut depth, mut start) = (0, open + 1);
    for (at, c) in text.char_indices().take_while(|(at, _)| *at < close) {
        match c {
            _ if at <= open => {}
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                expand(&before, &text[start..at], out);
                start = at + 1;
            }
            _ => {}
        }
    }
    if !text[start..close].trim().is_empty() {
        expand(&before, &text[start..close], out);
    }
}

/// The module that a path leads into, if it is one of this crate's.
fn resolve(module: &str, path: &str, modules: &BTreeSet<&str>) -> Option<String> {
    let mut parts: Vec<&str> = path.split("::").filter(|part| !part.is_empty()).collect();
    let mut place: Vec<&str> = module.split("::").filter(|part| !part.is_empty()).collect();
    match *parts.first()? {
        "crate" => {
            place.clear();
            parts.remove(0);
        }
        "self" => drop(parts.remove(0)),
        "super" => {
            while parts.first() == Some(&"super") {
                place.pop();
                parts.remove(0);
            }
        }
        first => {
            let own = [&place[..], &[first]].concat().join("::");
            if !modules.contains(own.as_str()) {
                return None;
            }
        }
    }
    place.extend(parts);
    (0..=place.len())
        .rev()
        .map(|length| place[..length].join("::"))
        .find(|name| modules.contains(name.as_str()))
}

/// The sets of modules that reach each other.
fn circles(edges: &Edges) -> Vec<BTreeSet<String>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> = edges
        .keys()
        .map(|module| (module.as_str(), reach(module, edges)))
        .collect();
    let circle = |module: &&str| {
        let theirs = reached[module].iter();
        let back = theirs.filter(|other| reached[*other].contains(module));
        back.map(|other| (*other).to_owned()).collect()
    };
    reached.keys().map(circle).collect()
}

fn reach<'e>(module: &str, edges: &'e Edges) -> BTreeSet<&'e str> {
    let mut found = BTreeSet::new();
    let mut next: Vec<&str> = vec![module];
    while let Some(module) = next.pop() {
        for other in edges.get(module).into_iter().flatten() {
            if found.insert(other.as_str()) {
                next.push(other);
            }
        }
    }
    found
}
