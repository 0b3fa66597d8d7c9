//! The values that were looked at, as details show them.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use banyan_document::kind;
use banyan_document::path::{Leaf, Path, Visit, visit_with};
use bson::{RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, cstr};

/// So many of them are shown.
const SHOWN_MAX: usize = 10;

/// What lies at a path.
pub(super) struct Considered<'a> {
    /// Without an array whose items are among them.
    pub values: Vec<RawBsonRef<'a>>,
    /// With it. Empty: the path is missing.
    pub reached: Vec<RawBsonRef<'a>>,
}

impl<'a> Considered<'a> {
    pub fn at(document: &'a RawDocument, path: &Path, leaf: Leaf) -> Considered<'a> {
        let (mut values, mut reached) = (Vec::new(), Vec::new());
        let _ = visit_with(document, path.parts(), leaf, &mut |visit: Visit<'a>| {
            // MongoDB looks no further than to the first item in which the path is missing.
            let Some(value) = visit.value else {
                return ControlFlow::Break(());
            };
            reached.push(value);
            if !visit.whole_array {
                values.push(value);
            }
            ControlFlow::Continue(())
        });
        Considered { values, reached }
    }
}

/// `consideredValue`, or `consideredValues` and whether there are more.
pub(super) fn show(values: &[RawBsonRef<'_>], out: &mut RawDocumentBuf) {
    if let [one] = values {
        out.append(cstr!("consideredValue"), *one);
        return;
    }
    let mut shown = RawArrayBuf::new();
    values
        .iter()
        .take(SHOWN_MAX)
        .for_each(|value| shown.push(*value));
    out.append(cstr!("consideredValues"), shown);
    if values.len() > SHOWN_MAX {
        out.append(cstr!("consideredValuesTruncated"), true);
    }
}

/// `consideredType` where all have the same, else `consideredTypes`.
pub(super) fn show_types(values: &[RawBsonRef<'_>], out: &mut RawDocumentBuf) {
    let names: BTreeSet<&str> = values.iter().map(kind::name).collect();
    match (names.first(), names.len()) {
        (None, _) => {}
        (Some(one), 1) => out.append(cstr!("consideredType"), *one),
        _ => out.append(
            cstr!("consideredTypes"),
            RawArrayBuf::from_iter(names.iter().copied()),
        ),
    }
}
