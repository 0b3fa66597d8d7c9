//! `$changeStreamSplitLargeEvent`: an event that is too large to be sent goes in fragments.

use std::collections::BTreeSet;
use std::sync::Arc;

use banyan_document::{DocumentWriter, MAX_DOCUMENT_BYTES};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use super::stage::{Division, Reads, Stage};
use super::stage_run::{Flow, Next, StageRun, Start};
use crate::context::Context;
use crate::error::{ErrorKind, QueryError};
use crate::expression::value::error;

pub(super) const NAME: &str = "$changeStreamSplitLargeEvent";

#[derive(Debug)]
pub struct SplitLargeEvent;

pub(super) fn parse(
    value: RawBsonRef<'_>,
    _: &Context,
    out: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    match value {
        RawBsonRef::Document(options) if options.is_empty() => {
            out.push(Arc::new(SplitLargeEvent));
            Ok(())
        }
        _ => error(7_182_800, format!("{NAME} spec should be an empty object")),
    }
}

impl Stage for SplitLargeEvent {
    fn name(&self) -> &'static str {
        NAME
    }

    fn serialize(&self, out: &mut DocumentWriter) {
        out.begin_document(NAME);
        out.end();
    }

    fn reads(&self, _: &mut BTreeSet<String>) -> Reads {
        Reads::AndPasses
    }

    fn split(&self) -> Division {
        Division::Router
    }

    fn run(self: Arc<Self>, _: &Start<'_>) -> Result<Box<dyn StageRun>, QueryError> {
        Ok(Box::new(SplitLargeEvent))
    }
}

impl StageRun for SplitLargeEvent {
    fn push(&mut self, event: &RawDocument, next: &mut Next<'_>) -> Result<Flow, QueryError> {
        if event.as_bytes().len() <= MAX_DOCUMENT_BYTES {
            return next.push(event);
        }
        // They fit into the results all at once: an event is a few documents large.
        let mut flow = Flow::Continue;
        for fragment in fragments(event)? {
            flow = next.push(&fragment)?;
        }
        Ok(flow)
    }
}

/// The smallest fields go first, so that the first fragment tells as much as it can.
fn fragments(event: &RawDocument) -> Result<Vec<RawDocumentBuf>, QueryError> {
    let elements = || banyan_document::elements(event);
    let id = elements().find(|element| element.name() == "_id");
    let mut rest: Vec<_> = elements()
        .filter(|element| element.name() != "_id")
        .collect();
    rest.sort_by_key(|element| element.bytes().len());
    let heading = |fragment: usize, of: usize| {
        let mut out = DocumentWriter::new();
        if let Some(id) = &id {
            out.append_element(id);
        }
        let number = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
        out.begin_document("splitEvent");
        out.append_i32("fragment", number(fragment));
        out.append_i32("of", number(of));
        out.end();
        out
    };
    let heading_bytes = heading(0, 0).finish().as_bytes().len();
    let (mut parts, mut bytes) = (vec![Vec::new()], heading_bytes);
    for element in &rest {
        let size = element.bytes().len();
        if heading_bytes + size > MAX_DOCUMENT_BYTES {
            return Err(QueryError::new(
                ErrorKind::BsonObjectTooLarge,
                format!(
                    "the field '{}' of a change event has {size} bytes, which fit into no fragment",
                    element.name()
                ),
            ));
        }
        if bytes + size > MAX_DOCUMENT_BYTES {
            parts.push(Vec::new());
            bytes = heading_bytes;
        }
        bytes += size;
        if let Some(part) = parts.last_mut() {
            part.push(element);
        }
    }
    let of = parts.len();
    let whole = |(place, part): (usize, Vec<_>)| {
        let mut out = heading(place + 1, of);
        for element in part {
            out.append_element(element);
        }
        out.finish()
    };
    Ok(parts.into_iter().enumerate().map(whole).collect())
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;

    #[test]
    fn fields_go_into_as_few_fragments_as_their_sizes_allow() {
        let large = "x".repeat(MAX_DOCUMENT_BYTES / 2);
        let event = rawdoc! {
            "_id": { "_data": "82" }, "after": large.as_str(), "kind": "update",
            "before": large.as_str(), "at": 1,
        };
        let fragments = fragments(&event).unwrap();
        let names = |fragment: &RawDocumentBuf| -> Vec<String> {
            let fields = fragment.iter().flatten();
            fields.map(|(name, _)| name.as_str().to_owned()).collect()
        };
        assert_eq!(fragments.len(), 2);
        assert_eq!(
            names(&fragments[0]),
            ["_id", "splitEvent", "at", "kind", "after"]
        );
        assert_eq!(names(&fragments[1]), ["_id", "splitEvent", "before"]);
        let split = fragments[1].get_document("splitEvent").unwrap();
        assert_eq!(split, &*rawdoc! { "fragment": 2, "of": 2 });
    }

    #[test]
    fn a_field_that_fits_into_no_fragment_is_an_error() {
        let event = rawdoc! { "_id": 1, "after": "x".repeat(MAX_DOCUMENT_BYTES) };
        assert_eq!(
            fragments(&event).unwrap_err().kind,
            ErrorKind::BsonObjectTooLarge
        );
    }
}
