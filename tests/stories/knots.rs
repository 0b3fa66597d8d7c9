//! Which modules of a crate need each other. What goes round in a circle can only be understood,
//! tested and changed together: there are none.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use banyan_tests::repository;

type Edges = BTreeMap<String, BTreeSet<String>>;

#[test]
fn no_files_need_each_other() {
    let mut crates: Vec<String> = fs::read_dir(repository().join("crates"))
        .expect("the crates are there")
        .map(|entry| entry.expect("an entry").file_name())
        .map(|name| format!("crates/{}", name.to_string_lossy()))
        .collect();
    crates.extend(["configsvr", "mongod", "mongos", "shell"].map(str::to_owned));
    for name in crates {
        let edges = edges(&repository().join(&name).join("src"));
        assert!(!edges.is_empty(), "{name} has modules");
        let circle = circles(&edges)
            .into_iter()
            .filter(|circle| circle.len() > 1)
            .max_by_key(BTreeSet::len);
        assert_eq!(circle, None, "{name}: files that need each other");
    }
}

#[test]
fn a_need_is_found_however_it_is_written() {
    let needed = |text: &str| {
        let files = [
            ("", "mod a; mod b;"),
            ("a", text),
            ("a::child", ""),
            (
                "b",
                "mod deep; pub use deep::Deep; pub use crate::c::made as other;",
            ),
            ("b::deep", ""),
            ("c", ""),
        ];
        let files = files.map(|(module, text)| (module.to_owned(), text.to_owned()));
        let edges = edges_of(&files.into_iter().collect());
        edges["a"].iter().cloned().collect::<Vec<_>>()
    };
    assert_eq!(needed("mod child; fn f() { child::g() }"), ["a::child"]);
    assert_eq!(needed("mod child; pub use child::G;"), [""; 0]);
    assert_eq!(needed("use super::b::{self, deep::h};"), ["b", "b::deep"]);
    assert_eq!(needed("fn f() { crate::c::made() }"), ["c"]);
    assert_eq!(needed("fn f(x: &super::c::T) {}"), ["c"]);
    // What is handed on is needed of the file that it is from.
    assert_eq!(needed("use crate::b::Deep;"), ["b::deep"]);
    assert_eq!(needed("fn f() { super::b::other() }"), ["c"]);
    assert_eq!(needed("use other_crate::b; fn f() { Self::g() }"), [""; 0]);
}

#[test]
fn what_goes_round_is_a_circle() {
    let edges = [("a", "b"), ("b", "c"), ("c", "a"), ("d", "a"), ("e", "e")];
    let edges: Edges = edges
        .into_iter()
        .map(|(from, to)| (from.to_owned(), BTreeSet::from([to.to_owned()])))
        .collect();
    let largest = circles(&edges).into_iter().max_by_key(BTreeSet::len);
    let expected = ["a", "b", "c"].map(str::to_owned);
    assert_eq!(largest, Some(BTreeSet::from(expected)));
}

/// The modules of a crate that have files, and which of them each one needs.
fn edges(source: &Path) -> Edges {
    let mut files = BTreeMap::new();
    read_modules(source, "", &mut files);
    edges_of(&files)
}

/// Of modules and their texts.
fn edges_of(files: &BTreeMap<String, String>) -> Edges {
    let sources: BTreeMap<&str, Source> = files
        .iter()
        .map(|(module, text)| (module.as_str(), Source::read(text)))
        .collect();
    let needed = |(module, source): (&&str, &Source)| {
        let paths = source.paths.iter();
        let needed = paths.filter_map(|path| resolve(module, path, &sources));
        let needed = needed.filter(|needed| needed != module);
        ((*module).to_owned(), needed.collect())
    };
    sources.iter().map(needed).collect()
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

/// What a file says of other modules.
#[derive(Default)]
struct Source {
    /// The paths that it needs: those that it imports, and those written out in its code.
    paths: BTreeSet<String>,
    /// What it hands on under a name of its own (`pub use`). Who asks for that needs the file that it
    /// is from.
    exports: BTreeMap<String, String>,
}

impl Source {
    fn read(text: &str) -> Source {
        let mut source = Source::default();
        let mut code = String::new();
        for statement in text.split_inclusive(';') {
            let begin = statement.rfind("use ").filter(|begin| {
                let before = statement[..*begin].chars().next_back();
                before.is_none_or(char::is_whitespace)
            });
            let imported = begin.map(|begin| statement[begin + 4..].trim_end_matches(';'));
            let Some((begin, imported)) = begin.zip(imported.filter(|text| is_import(text))) else {
                code.push_str(statement);
                continue;
            };
            let is_public = statement[..begin].trim_end().ends_with(['b', ')']);
            code.push_str(&statement[..begin]);
            let mut named = Vec::new();
            expand("", imported.trim(), &mut named);
            for (path, name) in named {
                match is_public {
                    true => drop(source.exports.insert(name, path)),
                    false => drop(source.paths.insert(path)),
                }
            }
        }
        source.paths.extend(written(&code));
        source
    }
}

/// The paths of two parts and more in code.
fn written(code: &str) -> impl Iterator<Item = String> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let words = code.split(move |c| !is_part(c));
    let paths = words.filter(|word| word.contains("::") && !word.starts_with(':'));
    paths.map(|path| path.trim_end_matches(':').to_owned())
}

fn is_import(text: &str) -> bool {
    text.chars()
        .all(|c| c.is_alphanumeric() || c.is_whitespace() || "_:{},*".contains(c))
}

/// `a::{b, c::{d, e as f}}` is three paths, each with the name that it gets.
fn expand(before: &str, text: &str, out: &mut Vec<(String, String)>) {
    let Some(open) = text.find('{') else {
        let (path, name) = text.split_once(" as ").unwrap_or((text, text));
        let path = format!("{before}{}", path.trim());
        let path = path.strip_suffix("::self").unwrap_or(&path);
        let name = name.rsplit("::").next().unwrap_or_default().trim();
        out.push((path.to_owned(), name.to_owned()));
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
fn resolve(module: &str, path: &str, sources: &BTreeMap<&str, Source>) -> Option<String> {
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
            if !sources.contains_key(own.as_str()) {
                return None;
            }
        }
    }
    let start = place.len();
    place.extend(parts);
    let (found, name) = (start..=place.len()).rev().find_map(|length| {
        let name = place[..length].join("::");
        sources
            .contains_key(name.as_str())
            .then_some((name, place.get(length)))
    })?;
    let exported = name.and_then(|name| sources[found.as_str()].exports.get(*name));
    let origin = exported.and_then(|path| resolve(&found, path, sources));
    Some(origin.unwrap_or(found))
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
