//! The way in to one lane.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use banyan_document::elements;
use bson::RawDocument;

use super::error::{FirstError, JobError};
use crate::frame::{HEADER_BYTES, Kind, header, write_frame};

/// Documents are sent when there are so many bytes of them.
const BATCH_BYTES: usize = 64 << 10;

/// Each may be used by a thread of its own; one that sends waits when the lane has enough to do.
pub struct Feeder {
    stream: Arc<UnixStream>,
    first_error: Arc<FirstError>,
    /// What the map function reads, if that is known.
    fields: Option<Arc<[String]>>,
    /// A frame of documents: room for its header, and they.
    batch: Vec<u8>,
}

impl Feeder {
    pub(super) fn new(
        stream: Arc<UnixStream>,
        first_error: Arc<FirstError>,
        fields: Option<Arc<[String]>>,
    ) -> Feeder {
        Feeder {
            stream,
            first_error,
            fields,
            batch: vec![0; HEADER_BYTES],
        }
    }

    /// Takes a document for the lane, or what of it the map function reads. Whether it was sent, with
    /// those before it.
    pub fn push(&mut self, document: &RawDocument) -> Result<bool, JobError> {
        match &self.fields {
            None => self.batch.extend_from_slice(document.as_bytes()),
            Some(fields) => append_fields(&mut self.batch, document, fields),
        }
        let is_full = self.batch.len() >= BATCH_BYTES;
        if is_full {
            self.send()?;
        }
        Ok(is_full)
    }

    /// No more documents for this lane.
    pub fn finish(mut self) -> Result<(), JobError> {
        self.send()?;
        write_frame(&mut &*self.stream, Kind::End, &[]).map_err(|_| self.why())
    }

    fn send(&mut self) -> Result<(), JobError> {
        if self.batch.len() > HEADER_BYTES {
            self.write().map_err(|_| self.why())?;
            self.batch.truncate(HEADER_BYTES);
        }
        Ok(())
    }

    fn write(&mut self) -> io::Result<()> {
        let header = header(Kind::Documents, self.batch.len() - HEADER_BYTES)?;
        self.batch[..HEADER_BYTES].copy_from_slice(&header);
        (&*self.stream).write_all(&self.batch)
    }

    /// Why nothing can be sent. The lane's reader knows, or is about to know.
    fn why(&self) -> JobError {
        self.first_error.get().unwrap_or(JobError::HostDied {
            how: "socket closed".into(),
        })
    }
}

/// Appends a document of the first element of each of these names.
fn append_fields(out: &mut Vec<u8>, document: &RawDocument, fields: &[String]) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    // There are no more than 64 names.
    let mut missing = u64::MAX >> (64 - fields.len().clamp(1, 64));
    if fields.is_empty() {
        missing = 0;
    }
    let mut elements = elements(document);
    while missing != 0 {
        let Some(element) = elements.next() else {
            break;
        };
        let name = element.name_bytes();
        let known = fields.iter().position(|field| field.as_bytes() == name);
        if let Some(at) = known
            && missing & (1 << at) != 0
        {
            missing ^= 1 << at;
            out.extend_from_slice(element.bytes());
        }
    }
    out.push(0);
    // Shorter than the document.
    let length = (out.len() - start) as u32;
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;

    #[test]
    fn of_a_document_goes_what_is_read() {
        let document = rawdoc! { "a": 1, "b": { "a": 2 }, "c": "three", "a": 4 };
        let sent = |fields: &[&str]| {
            let fields: Vec<String> = fields.iter().map(|field| (*field).to_owned()).collect();
            let mut out = vec![7];
            append_fields(&mut out, &document, &fields);
            RawDocument::from_bytes(&out[1..]).unwrap().to_owned()
        };
        assert_eq!(sent(&["c", "a"]), rawdoc! { "a": 1, "c": "three" });
        assert_eq!(sent(&["b", "d"]), rawdoc! { "b": { "a": 2 } });
        assert_eq!(sent(&[]), rawdoc! {});
        let many: Vec<String> = (0..64).map(|number| format!("f{number}")).collect();
        let mut out = Vec::new();
        append_fields(&mut out, &rawdoc! { "f63": 1, "g": 2 }, &many);
        assert_eq!(
            RawDocument::from_bytes(&out).unwrap(),
            &*rawdoc! { "f63": 1 }
        );
    }
}
