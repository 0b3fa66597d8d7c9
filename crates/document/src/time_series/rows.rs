//! The measurements of a bucket, one after another.

use std::iter::Peekable;

use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use super::bucket::{VERSION, version};
use crate::element::{Elements, elements, field};
use crate::writer::DocumentWriter;

/// What keeps a document from being read as a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowError {
    /// There are no columns.
    NoData,
    /// There is no column of times.
    NoTimes,
    /// There are metadata, and no field for them.
    UnexpectedMeta,
    /// Of another version, in which columns are compressed.
    Version(i32),
}

/// Measurements that are read from a bucket: the time, the metadata, then what the columns have.
pub struct Rows<'b> {
    time_field: &'b str,
    times: Elements<'b>,
    /// Where time and metadata are wanted.
    has_time: bool,
    meta: Option<(&'b str, RawBsonRef<'b>)>,
    columns: Vec<(&'b str, Peekable<Elements<'b>>)>,
}

impl<'b> Rows<'b> {
    /// `wanted` says which fields of measurements are read.
    pub fn of(
        bucket: &'b RawDocument,
        time_field: &'b str,
        meta_field: Option<&'b str>,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<Rows<'b>, RowError> {
        let control = field(bucket, "control").and_then(|control| control.as_document());
        if let Some(version) = control.and_then(version)
            && version != VERSION
        {
            return Err(RowError::Version(version));
        }
        let meta = match (field(bucket, "meta"), meta_field) {
            (Some(_), None) => return Err(RowError::UnexpectedMeta),
            (Some(meta), Some(name)) => Some((name, meta)),
            (None, _) => None,
        };
        let data = field(bucket, "data").and_then(|data| data.as_document());
        let data = data.ok_or(RowError::NoData)?;
        let (mut times, mut columns) = (None, Vec::new());
        for column in elements(data) {
            let Some(values) = column.value().as_document() else {
                continue;
            };
            if column.name() == time_field {
                times = Some(elements(values));
            } else if wanted(column.name()) {
                columns.push((column.name(), elements(values).peekable()));
            }
        }
        Ok(Rows {
            time_field,
            times: times.ok_or(RowError::NoTimes)?,
            has_time: wanted(time_field),
            meta: meta.filter(|(name, _)| wanted(name)),
            columns,
        })
    }
}

impl Iterator for Rows<'_> {
    type Item = RawDocumentBuf;

    fn next(&mut self) -> Option<RawDocumentBuf> {
        let time = self.times.next()?;
        let mut out = DocumentWriter::new();
        if self.has_time {
            out.append_element_as(self.time_field, &time);
        }
        if let Some((name, meta)) = self.meta {
            out.append(name, meta);
        }
        for (name, values) in &mut self.columns {
            let value = values.next_if(|value| value.name() == time.name());
            if let Some(value) = value {
                out.append_element_as(name, &value);
            }
        }
        Some(out.finish())
    }
}
