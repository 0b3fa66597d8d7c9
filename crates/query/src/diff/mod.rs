//! What differs between two states of a document.
//!
//! A [`Diff`] is a tree that borrows from both states. It is written in two forms: as MongoDB's
//! oplog has it since 5.0 (`{d: {…}, u: {…}, i: {…}, sFIELD: {…}}`, `oplog.rs`) and as the
//! `updateDescription` of a change event (`description.rs`).
//!
//! A field whose value changed is an update, one that is new an insert, one that is gone a delete;
//! documents and arrays are described by what differs within them. How far that goes depends on how
//! the change was written: after operators, it ends at the paths that were given as a whole; after
//! a pipeline, where telling the difference would take more than telling the value.

mod apply;
mod description;
mod oplog;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashSet};

pub use apply::apply_oplog;

use banyan_document::element::{Element, elements, items};
use bson::{RawArray, RawBsonRef, RawDocument};

use crate::update::compare_names;

/// How one document changes.
#[derive(Default)]
pub struct Diff<'a> {
    deletes: Vec<&'a str>,
    updates: Vec<Element<'a>>,
    inserts: Vec<Element<'a>>,
    below: Vec<(&'a str, Below<'a>)>,
    bytes: usize,
}

/// How one array changes.
#[derive(Default)]
struct ArrayDiff<'a> {
    /// The length, if it has become shorter.
    length: Option<usize>,
    items: Vec<(usize, Item<'a>)>,
    bytes: usize,
}

enum Item<'a> {
    Value(RawBsonRef<'a>),
    Below(Below<'a>),
}

enum Below<'a> {
    Document(Diff<'a>),
    Array(ArrayDiff<'a>),
}

/// MongoDB tells a pipeline's difference only if it is shorter than the document by more than what
/// goes around it.
const AROUND_BYTES: usize = 15;
const EMPTY_BYTES: usize = 5;
/// Type, end of the name.
const ELEMENT_BYTES: usize = 2;
/// A document under a name of one letter.
const SECTION_BYTES: usize = ELEMENT_BYTES + 1 + EMPTY_BYTES;

/// What operators did. `wholes` are the paths whose values are told as a whole (see
/// [`crate::Update::wholes`]).
pub fn by_operators<'a>(
    before: &'a RawDocument,
    after: &'a RawDocument,
    wholes: &[&str],
) -> Diff<'a> {
    let mut paths = Paths::default();
    for path in wholes {
        let parts = path.split('.');
        parts
            .fold(&mut paths, |at, part| at.below.entry(part).or_default())
            .ends = true;
    }
    document(before, after, &Depth::Paths(vec![&paths]))
}

/// What a pipeline did; `None` if that is best told by the document as it became.
pub fn by_pipeline<'a>(before: &'a RawDocument, after: &'a RawDocument) -> Option<Diff<'a>> {
    let diff = document(before, after, &Depth::WhileShorter);
    (diff.bytes + AROUND_BYTES < after.as_bytes().len()).then_some(diff)
}

/// How deep a difference is told.
enum Depth<'p> {
    /// Down to the ends of these paths, from here on.
    Paths(Vec<&'p Paths<'p>>),
    /// As long as it is shorter than the value.
    WhileShorter,
}

/// Paths, by their parts.
#[derive(Default)]
struct Paths<'p> {
    ends: bool,
    below: BTreeMap<&'p str, Paths<'p>>,
}

/// A name below a document, or a position in an array.
#[derive(Clone, Copy)]
enum PathPart<'a> {
    Field(&'a str),
    Item(usize),
}

impl<'p> Depth<'p> {
    /// One step further; `None` if the value there is to be told as a whole.
    fn below(&self, step: PathPart<'_>) -> Option<Depth<'p>> {
        let Depth::Paths(paths) = self else {
            return Some(Depth::WhileShorter);
        };
        let mut further: Vec<&Paths<'_>> = Vec::new();
        for path in paths {
            match step {
                PathPart::Field(name) => further.extend(path.below.get(name)),
                PathPart::Item(index) => {
                    further.extend(path.below.get(index.to_string().as_str()));
                    further.extend(path.anywhere().map(|(_, below)| below));
                }
            }
        }
        let whole = further.iter().any(|path| path.ends);
        (!whole).then_some(Depth::Paths(further))
    }

    /// Whether items were put behind the array that is here. Its path ends in two points.
    fn is_appended_to(&self) -> bool {
        let Depth::Paths(paths) = self else {
            return false;
        };
        let mut below = paths.iter().filter_map(|path| path.below.get(""));
        below.any(|path| path.below.contains_key(""))
    }

    /// Whether what is here is an array of which any number of elements may have been meant.
    fn is_of_many(&self) -> bool {
        let Depth::Paths(paths) = self else {
            return false;
        };
        let mut parts = paths.iter().flat_map(|path| path.anywhere());
        parts.any(|(part, _)| part.starts_with("$["))
    }
}

impl<'p> Paths<'p> {
    /// What lies below `$`, `$[]` and `$[identifier]`.
    fn anywhere(&self) -> impl Iterator<Item = (&&'p str, &Paths<'p>)> {
        let from = self.below.range("$"..);
        from.take_while(|(part, _)| part.starts_with('$'))
    }
}

fn same(a: &Element<'_>, b: &Element<'_>) -> bool {
    a.kind() == b.kind() && a.value_bytes() == b.value_bytes()
}

fn document<'a>(before: &'a RawDocument, after: &'a RawDocument, depth: &Depth<'_>) -> Diff<'a> {
    let mut diff = Diff {
        bytes: EMPTY_BYTES,
        ..Diff::default()
    };
    let mut old = elements(before).peekable();
    let mut new = elements(after).peekable();
    // Fields keep their order, so one that is not where it was has gone, or was added again at the
    // end.
    while let (Some(was), Some(is)) = (old.peek(), new.peek()) {
        if was.name() != is.name() {
            diff.deletes.push(was.name());
            old.next();
            continue;
        }
        if !same(was, is) {
            match value(was, is, PathPart::Field(is.name()), depth) {
                Some(below) => diff.add_below(is.name(), below),
                None => diff.updates.push(is.clone()),
            }
        }
        old.next();
        new.next();
    }
    diff.deletes.extend(old.map(|was| was.name()));
    diff.inserts.extend(new);
    // Operators change a document in the order of its names.
    if matches!(depth, Depth::Paths(_)) {
        diff.deletes.sort_by(|a, b| compare_names(a, b));
        diff.updates
            .sort_by(|a, b| compare_names(a.name(), b.name()));
        diff.below.sort_by(|(a, _), (b, _)| compare_names(a, b));
    }
    if !diff.deletes.is_empty() && !diff.inserts.is_empty() {
        let inserted: HashSet<&str> = diff.inserts.iter().map(Element::name).collect();
        diff.deletes.retain(|name| !inserted.contains(name));
    }
    diff.measure();
    diff
}

/// What differs within a value; `None` if it is to be told as a whole.
fn value<'a>(
    was: &Element<'a>,
    is: &Element<'a>,
    step: PathPart<'_>,
    depth: &Depth<'_>,
) -> Option<Below<'a>> {
    let further = depth.below(step)?;
    let below = match (was.value(), is.value()) {
        (RawBsonRef::Document(was), RawBsonRef::Document(is)) => {
            Below::Document(document(was, is, &further))
        }
        (RawBsonRef::Array(was), RawBsonRef::Array(is)) => Below::Array(array(was, is, &further)?),
        _ => return None,
    };
    match depth {
        Depth::WhileShorter if below.bytes() >= is.value_bytes().len() => None,
        _ => Some(below),
    }
}

fn array<'a>(
    before: &'a RawArray,
    after: &'a RawArray,
    depth: &Depth<'_>,
) -> Option<ArrayDiff<'a>> {
    let mut diff = ArrayDiff {
        bytes: EMPTY_BYTES + ELEMENT_BYTES + 2,
        ..ArrayDiff::default()
    };
    let is_appended_to = depth.is_appended_to();
    let mut old = items(before).peekable();
    if is_appended_to && old.peek().is_none() {
        return None;
    }
    for (index, is) in items(after).enumerate() {
        let item = match old.next() {
            Some(was) if same(&was, &is) => continue,
            Some(was) => value(&was, &is, PathPart::Item(index), depth),
            None => None,
        };
        diff.bytes += ELEMENT_BYTES + 1 + index.checked_ilog10().unwrap_or(0) as usize + 1;
        diff.bytes += item.as_ref().map_or(is.value_bytes().len(), Below::bytes);
        let item = item.map_or_else(|| Item::Value(is.value()), Item::Below);
        diff.items.push((index, item));
    }
    if matches!(depth, Depth::Paths(_)) && !is_appended_to {
        diff.forget_padding(items(before).count());
    }
    if diff.items.len() > 1 && depth.is_of_many() {
        return None;
    }
    if old.next().is_some() {
        // Operators that shorten an array are told as a whole; this is for certain.
        if matches!(depth, Depth::Paths(_)) {
            return None;
        }
        diff.length = Some(items(after).count());
        diff.bytes += ELEMENT_BYTES + 1 + 4;
    }
    Some(diff)
}

impl<'a> Diff<'a> {
    fn add_below(&mut self, name: &'a str, below: Below<'a>) {
        self.bytes += ELEMENT_BYTES + 1 + name.len() + below.bytes();
        self.below.push((name, below));
    }

    /// Counts the bytes of what is not below.
    fn measure(&mut self) {
        let elements = |elements: &[Element<'_>]| -> usize {
            let bytes: usize = elements.iter().map(|element| element.bytes().len()).sum();
            bytes + if bytes > 0 { SECTION_BYTES } else { 0 }
        };
        let deletes: usize = self
            .deletes
            .iter()
            .map(|name| ELEMENT_BYTES + name.len() + 1)
            .sum();
        self.bytes += elements(&self.updates) + elements(&self.inserts);
        self.bytes += deletes + if deletes > 0 { SECTION_BYTES } else { 0 };
    }
}

impl ArrayDiff<'_> {
    /// The nulls that fill an array up to a position behind its end are not told of.
    fn forget_padding(&mut self, old_length: usize) {
        let Some((last, _)) = self.items.last() else {
            return;
        };
        let last = *last;
        self.items.retain(|(index, item)| {
            let is_null = matches!(item, Item::Value(RawBsonRef::Null));
            !(is_null && (old_length..last).contains(index))
        });
    }
}

impl Below<'_> {
    fn bytes(&self) -> usize {
        match self {
            Below::Document(diff) => diff.bytes,
            Below::Array(diff) => diff.bytes,
        }
    }
}
