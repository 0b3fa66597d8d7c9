//! A measurement: a document with a time, and perhaps with metadata.

use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use super::options::TimeSeries;
use crate::element::{Element, elements, field, items};
use crate::writer::DocumentWriter;

#[derive(Debug)]
pub struct Measurement<'a> {
    pub document: &'a RawDocument,
    pub time_ms: i64,
    /// `{meta: …}` with fields in the order of their names, so that metadata that mean the same lie
    /// in the same buckets; empty without metadata.
    pub meta: RawDocumentBuf,
}

/// The document has no date as its time.
#[derive(Debug, PartialEq, Eq)]
pub struct NoTime;

impl<'a> Measurement<'a> {
    pub fn of(document: &'a RawDocument, series: &TimeSeries) -> Result<Measurement<'a>, NoTime> {
        let Some(RawBsonRef::DateTime(time)) = field(document, &series.time_field) else {
            return Err(NoTime);
        };
        let mut meta = DocumentWriter::new();
        if let Some(name) = &series.meta_field
            && let Some(element) = elements(document).find(|element| element.name() == name)
        {
            append_normalized(&mut meta, Some("meta"), &element);
        }
        Ok(Measurement {
            document,
            time_ms: time.timestamp_millis(),
            meta: meta.finish(),
        })
    }

    /// The fields that lie in columns, `_id` in front; of those with one name the first.
    pub fn columns(&self, series: &TimeSeries) -> impl Iterator<Item = Element<'a>> {
        let meta = series.meta_field.clone();
        let all = move || elements(self.document);
        let id = all().find(|element| element.name() == "_id");
        let others = elements(self.document).filter(move |element| {
            element.name() != "_id" && Some(element.name()) != meta.as_deref()
        });
        id.into_iter().chain(others)
    }

    pub fn bytes(&self) -> usize {
        self.document.as_bytes().len()
    }
}

/// Writes a value with the fields of all documents in it in the order of their names.
fn append_normalized(out: &mut DocumentWriter, name: Option<&str>, element: &Element<'_>) {
    match element.value() {
        RawBsonRef::Document(document) => {
            match name {
                Some(name) => out.begin_document(name),
                None => out.push_document(),
            }
            let mut fields: Vec<_> = elements(document).collect();
            fields.sort_by(|a, b| a.name().cmp(b.name()));
            for field in &fields {
                append_normalized(out, Some(field.name()), field);
            }
            out.end();
        }
        RawBsonRef::Array(array) => {
            match name {
                Some(name) => out.begin_array(name),
                None => out.push_array(),
            }
            for item in items(array) {
                append_normalized(out, None, &item);
            }
            out.end();
        }
        _ => match name {
            Some(name) => out.append_element_as(name, element),
            None => out.push_element(element),
        },
    }
}
