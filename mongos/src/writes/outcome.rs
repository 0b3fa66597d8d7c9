//! What a batch has come to, and how shards' replies tell of it.

use std::collections::BTreeMap;

use banyan_document::DocumentWriter;
use bson::{RawBson, RawBsonRef, RawDocument, RawDocumentBuf};

use crate::fields;

#[derive(Default)]
pub struct Outcome {
    pub n: i64,
    pub modified: i64,
    pub upserted: BTreeMap<usize, RawBson>,
    pub errors: BTreeMap<usize, RawDocumentBuf>,
    pub concern_error: Option<RawDocumentBuf>,
    pub retried: Vec<i32>,
}

impl Outcome {
    /// `counts_modified`: the statements are updates.
    pub fn reply(self, counts_modified: bool, ordered: bool) -> RawDocumentBuf {
        let mut out = DocumentWriter::new();
        out.append("n", int(self.n));
        if !self.errors.is_empty() {
            out.begin_array("writeErrors");
            let shown = if ordered { 1 } else { usize::MAX };
            for error in self.errors.values().take(shown) {
                out.push(RawBsonRef::Document(error));
            }
            out.end();
        }
        if !self.retried.is_empty() {
            out.begin_array("retriedStmtIds");
            for id in &self.retried {
                out.push(RawBsonRef::Int32(*id));
            }
            out.end();
        }
        if !self.upserted.is_empty() {
            out.begin_array("upserted");
            for (index, id) in &self.upserted {
                out.push_document();
                out.append_i32("index", *index as i32);
                out.append("_id", id.as_raw_bson_ref());
                out.end();
            }
            out.end();
        }
        if counts_modified {
            out.append("nModified", int(self.modified));
        }
        if let Some(error) = &self.concern_error {
            out.append_doc("writeConcernError", error);
        }
        out.append_f64("ok", 1.0);
        out.finish()
    }
}

fn int(n: i64) -> RawBsonRef<'static> {
    i32::try_from(n).map_or(RawBsonRef::Int64(n), RawBsonRef::Int32)
}

/// The numbers of the statements that an earlier try has done.
pub fn retried(reply: &RawDocument) -> impl Iterator<Item = i32> + '_ {
    let ids = match fields::get(reply, "retriedStmtIds") {
        Some(RawBsonRef::Array(ids)) => Some(ids),
        _ => None,
    };
    let ids = ids.into_iter().flatten().flatten();
    ids.filter_map(|id| id.as_i32())
}

pub fn with_index(entry: &RawDocument, index: usize) -> RawDocumentBuf {
    let mut out = DocumentWriter::new();
    out.append_i32("index", index as i32);
    for element in banyan_document::elements(entry).filter(|e| e.name() != "index") {
        out.append_element(&element);
    }
    out.finish()
}
