//! A difference as an entry of MongoDB's oplog has it.

use bson::raw::CString;
use bson::{RawDocumentBuf, cstr};

use super::{ArrayDiff, Below, Diff, Item};

impl Diff<'_> {
    /// The value of `diff` in `{$v: 2, diff: …}`.
    pub fn to_oplog(&self) -> RawDocumentBuf {
        let mut out = RawDocumentBuf::new();
        if !self.deletes.is_empty() {
            let mut deletes = RawDocumentBuf::new();
            for name in &self.deletes {
                deletes.append(key("", name), false);
            }
            out.append(cstr!("d"), deletes);
        }
        for (section, elements) in [(cstr!("u"), &self.updates), (cstr!("i"), &self.inserts)] {
            if elements.is_empty() {
                continue;
            }
            let mut fields = RawDocumentBuf::new();
            for element in elements {
                fields.append(key("", element.name()), element.value());
            }
            out.append(section, fields);
        }
        for (name, below) in &self.below {
            out.append(key("s", name), below.to_oplog());
        }
        out
    }
}

impl ArrayDiff<'_> {
    fn to_oplog(&self) -> RawDocumentBuf {
        let mut out = RawDocumentBuf::new();
        out.append(cstr!("a"), true);
        if let Some(length) = self.length {
            out.append(cstr!("l"), i32::try_from(length).unwrap_or(i32::MAX));
        }
        for (index, item) in &self.items {
            let index = index.to_string();
            match item {
                Item::Value(value) => out.append(key("u", &index), *value),
                Item::Below(below) => out.append(key("s", &index), below.to_oplog()),
            }
        }
        out
    }
}

impl Below<'_> {
    fn to_oplog(&self) -> RawDocumentBuf {
        match self {
            Below::Document(diff) => diff.to_oplog(),
            Below::Array(diff) => diff.to_oplog(),
        }
    }
}

/// Names come out of documents, where a null byte would have ended them.
pub(super) fn key(prefix: &str, name: &str) -> CString {
    CString::try_from(format!("{prefix}{name}")).unwrap_or_else(|_| cstr!("").into())
}
