//! Sorted runs of partial results: in memory while they are small, in nameless files beyond.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use banyan_document::validate::stated_length;
use bson::RawDocumentBuf;

use super::error::JobError;
use super::merge::SortedDocuments;
use crate::host::next_document;

/// What all runs of one job may hold in memory together.
pub struct SpillBudget {
    pub directory: PathBuf,
    pub memory_bytes_max: usize,
    pub memory_bytes: AtomicUsize,
}

/// A run while it comes in.
pub struct RunWriter {
    budget: Arc<SpillBudget>,
    memory: Vec<u8>,
    file: Option<File>,
}

impl RunWriter {
    pub fn new(budget: Arc<SpillBudget>) -> Self {
        RunWriter {
            budget,
            memory: Vec::new(),
            file: None,
        }
    }

    /// Appends documents, end to end.
    pub fn append(&mut self, documents: &[u8]) -> Result<(), JobError> {
        if let Some(file) = &mut self.file {
            return file.write_all(documents).map_err(spill_error);
        }
        let in_memory = self
            .budget
            .memory_bytes
            .fetch_add(documents.len(), Ordering::Relaxed);
        if in_memory + documents.len() <= self.budget.memory_bytes_max {
            self.memory.extend_from_slice(documents);
            return Ok(());
        }
        self.budget
            .memory_bytes
            .fetch_sub(documents.len(), Ordering::Relaxed);
        let mut file = tempfile::tempfile_in(&self.budget.directory).map_err(spill_error)?;
        file.write_all(documents).map_err(spill_error)?;
        self.file = Some(file);
        Ok(())
    }

    /// The run as it is; a new one begins.
    pub fn finish(&mut self) -> Result<Run, JobError> {
        let memory = std::mem::take(&mut self.memory);
        let mut file = self.file.take();
        if let Some(file) = &mut file {
            file.seek(SeekFrom::Start(0)).map_err(spill_error)?;
        }
        Ok(Run { memory, file })
    }
}

fn spill_error(error: std::io::Error) -> JobError {
    JobError::Spill {
        reason: error.to_string(),
    }
}

/// Documents `{_id, value}` in the order of their keys.
pub struct Run {
    memory: Vec<u8>,
    file: Option<File>,
}

impl Run {
    pub fn documents(self) -> RunDocuments {
        RunDocuments {
            memory: self.memory,
            current: 0..0,
            file: self
                .file
                .map(|file| BufReader::with_capacity(256 << 10, file)),
            is_of_file: false,
        }
    }
}

pub struct RunDocuments {
    /// What lies in memory. Once that is read, the document that was read from the file.
    memory: Vec<u8>,
    /// Where in it the document lies that was come to.
    current: Range<usize>,
    /// What follows what lies in memory; no document lies in both.
    file: Option<BufReader<File>>,
    is_of_file: bool,
}

impl<E: From<JobError>> SortedDocuments<E> for RunDocuments {
    fn advance(&mut self) -> Result<bool, E> {
        let start = self.current.end;
        let mut rest = &self.memory[start..];
        if !self.is_of_file && !rest.is_empty() {
            let document = next_document(&mut rest).map_err(|_| JobError::Protocol)?;
            self.current = start..start + document.len();
            return Ok(true);
        }
        let Some(file) = &mut self.file else {
            return Ok(false);
        };
        if file.fill_buf().map_err(spill_error)?.is_empty() {
            return Ok(false);
        }
        self.is_of_file = true;
        read_document(file, &mut self.memory)?;
        self.current = 0..self.memory.len();
        Ok(true)
    }

    fn document(&self) -> &[u8] {
        &self.memory[self.current.clone()]
    }
}

/// The documents, each by itself.
impl Iterator for RunDocuments {
    type Item = Result<RawDocumentBuf, JobError>;

    fn next(&mut self) -> Option<Self::Item> {
        match SortedDocuments::<JobError>::advance(self) {
            Ok(true) => {
                let document = <Self as SortedDocuments<JobError>>::document(self).to_vec();
                let document = RawDocumentBuf::from_bytes(document);
                Some(document.map_err(|_| JobError::Protocol))
            }
            Ok(false) => None,
            Err(error) => Some(Err(error)),
        }
    }
}

fn read_document(file: &mut BufReader<File>, document: &mut Vec<u8>) -> Result<(), JobError> {
    let mut length = [0; 4];
    file.read_exact(&mut length).map_err(spill_error)?;
    let bytes = stated_length(&length).filter(|bytes| *bytes <= crate::frame::FRAME_BYTES_MAX);
    document.clear();
    document.resize(bytes.ok_or(JobError::Protocol)?, 0);
    document[..4].copy_from_slice(&length);
    file.read_exact(&mut document[4..]).map_err(spill_error)
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;

    #[test]
    fn a_run_that_outgrows_memory_is_read_back_whole() {
        let directory = tempfile::tempdir().unwrap();
        let budget = Arc::new(SpillBudget {
            directory: directory.path().to_path_buf(),
            memory_bytes_max: 100,
            memory_bytes: AtomicUsize::new(0),
        });
        let mut writer = RunWriter::new(budget);
        for number in 0..50 {
            writer
                .append(rawdoc! { "_id": number, "value": "v" }.as_bytes())
                .unwrap();
        }
        let run = writer.finish().unwrap();
        assert!(run.file.is_some() && !run.memory.is_empty());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        let numbers: Vec<i32> = run
            .documents()
            .map(|document| document.unwrap().get_i32("_id").unwrap())
            .collect();
        assert_eq!(numbers, (0..50).collect::<Vec<_>>());
    }
}
