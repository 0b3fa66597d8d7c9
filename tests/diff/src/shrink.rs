//! Makes a failing case small: whatever can go while it still fails goes.

use bson::{Bson, Document};

use crate::case::Case;

/// Attempts before a case is small enough as it is.
const ATTEMPTS: usize = 600;

/// The smallest case found for which `fails` holds; it holds for `case`.
pub fn shrink(case: &Case, mut fails: impl FnMut(&Case) -> bool) -> Case {
    let mut best = case.clone();
    let mut left = ATTEMPTS;
    loop {
        let bound = size(&best);
        let smaller = candidates(&best)
            .into_iter()
            .filter(|candidate| size(candidate) < bound);
        let mut tries = smaller.take(left);
        let next = tries.find(|candidate| {
            left = left.saturating_sub(1);
            fails(candidate)
        });
        match next {
            Some(next) => best = next,
            None => return best,
        }
    }
}

fn size(case: &Case) -> (usize, usize) {
    let of = |document: &Document| crate::notation::print_document(document).len();
    let before = case.before.iter().flatten();
    let beside = before.chain(&case.indexes);
    let documents: usize = case.documents.iter().chain(beside).map(of).sum();
    (
        documents + of(&case.command) + case.documents.len() + case.indexes.len(),
        count_doubles(&case.command),
    )
}

/// Among equals, rather whole numbers than others.
fn count_doubles(document: &Document) -> usize {
    document
        .values()
        .filter(|value| matches!(value, Bson::Double(_)))
        .count()
}

/// Every case that is one step smaller, the largest steps first.
fn candidates(case: &Case) -> Vec<Case> {
    let mut all = Vec::new();
    if case.documents.len() > 3 {
        for half in case.documents.chunks(case.documents.len().div_ceil(2)) {
            all.push(Case {
                documents: half.to_vec(),
                ..case.clone()
            });
        }
    }
    if let Some(before) = &case.before {
        all.extend(shorter_stories(before, case));
    }
    for at in 0..case.documents.len() {
        let mut documents = case.documents.clone();
        documents.remove(at);
        all.push(Case {
            documents,
            ..case.clone()
        });
    }
    for smaller in smaller_commands(&case.command) {
        all.push(Case {
            command: smaller,
            ..case.clone()
        });
    }
    for indexes in smaller_indexes(&case.indexes) {
        all.push(Case {
            indexes,
            ..case.clone()
        });
    }
    for at in 0..case.documents.len() {
        for smaller in smaller_documents(&case.documents[at], &["_id"]) {
            let mut documents = case.documents.clone();
            documents[at] = smaller;
            all.push(Case {
                documents,
                ..case.clone()
            });
        }
    }
    all
}

/// The indexes without one of them, or with less in one.
fn smaller_indexes(indexes: &[Document]) -> Vec<Vec<Document>> {
    let mut all = Vec::new();
    for at in 0..indexes.len() {
        let mut fewer = indexes.to_vec();
        fewer.remove(at);
        all.push(fewer);
    }
    for (at, index) in indexes.iter().enumerate() {
        for smaller in smaller_documents(index, &["key"]) {
            let mut changed = indexes.to_vec();
            changed[at] = smaller;
            all.push(changed);
        }
    }
    all
}

/// Every story that is one step shorter.
fn shorter_stories(before: &[Document], case: &Case) -> Vec<Case> {
    let story = |before: Vec<Document>| Case {
        before: Some(before),
        ..case.clone()
    };
    let mut all = Vec::new();
    for at in 0..before.len() {
        let mut fewer = before.to_vec();
        fewer.remove(at);
        all.push(story(fewer));
    }
    for (at, command) in before.iter().enumerate() {
        for smaller in smaller_commands(command) {
            let mut changed = before.to_vec();
            changed[at] = smaller;
            all.push(story(changed));
        }
    }
    all
}

/// Every command with less in it. The first field names it and its collection, or has the command
/// that it explains.
fn smaller_commands(command: &Document) -> Vec<Document> {
    let mut all = Vec::new();
    if let Some((name, Bson::Document(explained))) = command.iter().next()
        && name == "explain"
    {
        all.push(explained.clone());
        for smaller in smaller_commands(explained) {
            let mut changed = command.clone();
            changed.insert(name, smaller);
            all.push(changed);
        }
    }
    for (name, value) in command.iter().skip(1) {
        all.extend(in_place(name, value, command, is_required(name)));
    }
    all
}

/// Options without which a command is another one.
fn is_required(name: &str) -> bool {
    matches!(
        name,
        "pipeline" | "cursor" | "updates" | "deletes" | "key" | "query" | "batchSize"
    )
}

fn smaller_documents(document: &Document, kept: &[&str]) -> Vec<Document> {
    let mut all = Vec::new();
    for (name, value) in document {
        all.extend(in_place(
            name,
            value,
            document,
            kept.contains(&name.as_str()),
        ));
    }
    all
}

/// The document with less at this field: without it, or with a smaller value.
fn in_place(name: &str, value: &Bson, document: &Document, keep: bool) -> Vec<Document> {
    let mut all = Vec::new();
    if !keep {
        let mut less = document.clone();
        less.remove(name);
        all.push(less);
    }
    for smaller in smaller_values(value) {
        let mut changed = document.clone();
        changed.insert(name, smaller);
        all.push(changed);
    }
    all
}

fn smaller_values(value: &Bson) -> Vec<Bson> {
    let mut all = Vec::new();
    match value {
        Bson::Document(document) => {
            // A child in the place of its parent.
            all.extend(document.values().cloned());
            all.extend(
                smaller_documents(document, &[])
                    .into_iter()
                    .map(Bson::Document),
            );
        }
        Bson::Array(items) => {
            all.extend(items.iter().cloned());
            for at in 0..items.len() {
                let mut fewer = items.clone();
                fewer.remove(at);
                all.push(Bson::Array(fewer));
            }
            for (at, item) in items.iter().enumerate() {
                for smaller in smaller_values(item) {
                    let mut changed = items.clone();
                    changed[at] = smaller;
                    all.push(Bson::Array(changed));
                }
            }
        }
        Bson::String(text) => {
            if text.len() > 1 && !text.starts_with('$') {
                all.push(Bson::String(String::new()));
                all.push(Bson::String("a".to_owned()));
            }
        }
        Bson::Int32(0 | 1) | Bson::Null | Bson::Boolean(_) => {}
        _ => all.extend([Bson::Int32(1), Bson::Null]),
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notation::{parse_document, print_document, split};

    #[test]
    fn what_does_not_matter_goes() {
        let case = Case {
            documents: split("[{_id: 1, a: 5}, {_id: 2, b: {x: [1, 2, \"long\"]}}, {_id: 3}]")
                .unwrap(),
            indexes: Vec::new(),
            before: None,
            command: parse_document(
                "{find: \"c\", filter: {$or: [{a: {$gt: 1}}, {b: 1}], c: 1}, sort: {a: 1}}",
            )
            .unwrap(),
        };
        // Fails while some document has b and some filter says $gt.
        let fails = |case: &Case| {
            let command = print_document(&case.command);
            case.documents.iter().any(|d| d.contains_key("b")) && command.contains("$gt")
        };
        let small = shrink(&case, fails);
        assert_eq!(small.documents.len(), 1);
        assert_eq!(
            print_document(&small.command),
            "{find: \"c\", filter: {$gt: 1}}"
        );
    }

    #[test]
    fn a_command_that_is_explained_is_made_small() {
        let case = Case {
            documents: Vec::new(),
            indexes: Vec::new(),
            before: None,
            command: parse_document(
                "{explain: {find: \"c\", filter: {a: {$gt: 1}, b: 5}, sort: {a: 1}}}",
            )
            .unwrap(),
        };
        let fails = |case: &Case| {
            let command = print_document(&case.command);
            command.contains("explain") && command.contains("$gt")
        };
        assert_eq!(
            print_document(&shrink(&case, fails).command),
            "{explain: {find: \"c\", filter: {$gt: 1}}}"
        );
    }
}
