//! Merging runs: a heap of readers, the one with the least key on top.

use super::file::SpillFile;
use super::run::{Run, RunReader};
use crate::error::QueryError;
use crate::heap;

pub(crate) struct Merge {
    files: Vec<Box<dyn SpillFile>>,
    /// In the order in which the runs were written.
    readers: Vec<RunReader>,
    /// Those of the readers that have a record, as a binary heap.
    heap: Vec<usize>,
}

impl Merge {
    /// The files with their runs, in the order in which these were written.
    pub(super) fn new(files: Vec<(Box<dyn SpillFile>, Vec<Run>)>) -> Result<Merge, QueryError> {
        let mut merge = Merge {
            files: Vec::with_capacity(files.len()),
            readers: Vec::new(),
            heap: Vec::new(),
        };
        for (at, (file, runs)) in files.into_iter().enumerate() {
            for run in &runs {
                let mut reader = RunReader::new(at, run);
                if reader.advance(&*file)? {
                    merge.heap.push(merge.readers.len());
                    merge.readers.push(reader);
                }
            }
            merge.files.push(file);
        }
        for at in (0..merge.heap.len() / 2).rev() {
            merge.sift_down(at);
        }
        Ok(merge)
    }

    /// The key and the value of the first record that is left.
    pub fn top(&self) -> Option<(&[u8], &[u8])> {
        let reader = self.readers.get(*self.heap.first()?)?;
        Some((reader.key(), reader.value()))
    }

    /// Passes the first record over.
    pub fn advance(&mut self) -> Result<(), QueryError> {
        let Some(reader) = self.heap.first().and_then(|at| self.readers.get_mut(*at)) else {
            return Ok(());
        };
        let Some(file) = self.files.get(reader.file) else {
            return Ok(());
        };
        if !reader.advance(&**file)? {
            self.heap.swap_remove(0);
        }
        self.sift_down(0);
        Ok(())
    }

    /// Of equal keys, that of the run that was written first comes first.
    fn sift_down(&mut self, at: usize) {
        let readers = &self.readers;
        let key = |at: usize| readers.get(at).map(RunReader::key);
        heap::sift_down(&mut self.heap, at, |a, b| (key(a), a) < (key(b), b));
    }
}
