//! The fields of the replies.

use std::time::Instant;

use banyan_script::hosts::Counters;
use bson::{RawDocumentBuf, rawdoc};

use super::parameters::Out;

pub fn milliseconds(since: Instant) -> i64 {
    i64::try_from(since.elapsed().as_millis()).unwrap_or(i64::MAX)
}

pub fn counts(counters: Counters) -> RawDocumentBuf {
    rawdoc! {
        "input": counters.input,
        "emit": counters.emit,
        "reduce": counters.reduce,
        "output": counters.output,
    }
}

/// `result`: the collection's name, with that of its database where the command gave one.
pub fn append_result(reply: &mut RawDocumentBuf, out: &Out) {
    if let Out::Collection {
        database,
        collection,
        names_database,
        ..
    } = out
    {
        if *names_database {
            let named = rawdoc! { "db": database.as_str(), "collection": collection.as_str() };
            reply.append(bson::cstr!("result"), named);
        } else {
            reply.append(bson::cstr!("result"), collection.as_str());
        }
    }
}
