//! Sorts in a shape: which fields and which way stays.

use banyan_document::DocumentWriter;
use banyan_document::element::elements;
use banyan_document::number::Number;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use super::literal::constant;
use super::mark;

pub(super) fn sort(sort: &RawDocument) -> RawDocumentBuf {
    let mut out = DocumentWriter::new();
    for element in elements(sort) {
        let name = match element.name() {
            "$natural" => "$natural".to_owned(),
            path => mark::path(path),
        };
        match element.value() {
            RawBsonRef::Document(meta) => out.append_doc(&name, &kept(meta)),
            value => match Number::from_raw(value) {
                Some(number) => out.append_i32(&name, sign(number)),
                None => out.append(&name, constant(value).as_raw_bson_ref()),
            },
        }
    }
    out.finish()
}

fn sign(number: Number) -> i32 {
    match number.to_i64_saturating() < 0 {
        true => -1,
        false => 1,
    }
}

/// `{$meta: 'textScore'}`, which holds no value of the client's.
fn kept(meta: &RawDocument) -> RawDocumentBuf {
    let mut out = DocumentWriter::new();
    for element in elements(meta) {
        match (element.name(), element.value()) {
            ("$meta", RawBsonRef::String(kind)) => out.append_str("$meta", kind),
            (_, value) => out.append(element.name(), constant(value).as_raw_bson_ref()),
        }
    }
    out.finish()
}

/// Names with values that say nothing of the shape, such as the ends of a scan.
pub(super) fn values(document: &RawDocument) -> RawDocumentBuf {
    let mut out = DocumentWriter::new();
    for element in elements(document) {
        let value = constant(element.value());
        out.append(&mark::path(element.name()), value.as_raw_bson_ref());
    }
    out.finish()
}
