//! A difference as a change event has it.

use bson::{RawArrayBuf, RawBsonRef, RawDocumentBuf, cstr, rawdoc};

use super::oplog::key;
use super::{ArrayDiff, Below, Diff, Item};

impl Diff<'_> {
    /// The value of `updateDescription`. `expanded` adds the parts of those paths that cannot be
    /// told from their text, since a name in them holds a dot or is a number.
    pub fn to_description(&self, expanded: bool) -> RawDocumentBuf {
        let mut description = Description::default();
        description.document(self);
        let mut out = rawdoc! {
            "updatedFields": description.updated,
            "removedFields": description.removed,
            "truncatedArrays": description.truncated,
        };
        if expanded {
            out.append(cstr!("disambiguatedPaths"), description.ambiguous);
        }
        out
    }
}

#[derive(Default)]
struct Description {
    updated: RawDocumentBuf,
    removed: RawArrayBuf,
    truncated: RawArrayBuf,
    ambiguous: RawDocumentBuf,
    /// The way to where we are: names, and positions in arrays.
    path: Vec<Part>,
}

enum Part {
    Field(String),
    Item(usize),
}

impl Description {
    fn document(&mut self, diff: &Diff<'_>) {
        for name in &diff.deletes {
            self.at(Part::Field((*name).to_owned()), |here| {
                let path = here.path();
                here.removed.push(path);
            });
        }
        for element in diff.updates.iter().chain(&diff.inserts) {
            self.at(Part::Field(element.name().to_owned()), |here| {
                here.update(element.value());
            });
        }
        for (name, below) in &diff.below {
            self.at(Part::Field((*name).to_owned()), |here| here.below(below));
        }
    }

    fn array(&mut self, diff: &ArrayDiff<'_>) {
        if let Some(length) = diff.length {
            let length = i32::try_from(length).unwrap_or(i32::MAX);
            let field = self.path();
            self.truncated
                .push(rawdoc! { "field": field, "newSize": length });
        }
        for (index, item) in &diff.items {
            self.at(Part::Item(*index), |here| match item {
                Item::Value(value) => here.update(*value),
                Item::Below(below) => here.below(below),
            });
        }
    }

    fn below(&mut self, below: &Below<'_>) {
        match below {
            Below::Document(diff) => self.document(diff),
            Below::Array(diff) => self.array(diff),
        }
    }

    fn update(&mut self, value: RawBsonRef<'_>) {
        let path = self.path();
        self.updated.append(key("", &path), value);
    }

    fn at(&mut self, part: Part, tell: impl FnOnce(&mut Description)) {
        self.path.push(part);
        tell(self);
        self.path.pop();
    }

    /// The path in dotted form, noted if it can be misread.
    fn path(&mut self) -> String {
        let parts = self.path.iter().map(|part| match part {
            Part::Field(name) => name.clone(),
            Part::Item(index) => index.to_string(),
        });
        let text = parts.collect::<Vec<_>>().join(".");
        let misleads = |part: &Part| match part {
            Part::Field(name) => {
                name.contains('.') || name.bytes().all(|byte| byte.is_ascii_digit())
            }
            Part::Item(_) => false,
        };
        if self.path.iter().any(misleads) {
            let mut parts = RawArrayBuf::new();
            for part in &self.path {
                match part {
                    Part::Field(name) => parts.push(name.as_str()),
                    Part::Item(index) => parts.push(i32::try_from(*index).unwrap_or(i32::MAX)),
                }
            }
            self.ambiguous.append(key("", &text), parts);
        }
        text
    }
}
