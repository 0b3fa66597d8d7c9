//! A list of documents that is read from its beginning, once or several times.

use bson::{RawDocument, RawDocumentBuf};

use super::Spilled;
use super::file::{SpillFile, damaged};
use super::run::{Run, RunReader, RunWriter};
use crate::budget::Budget;
use crate::error::QueryError;
use crate::memory::{Consumer, Holding};

/// Documents in the order in which they came: those that did not fit on disk, the later ones in
/// memory.
pub(crate) struct List {
    file: Option<Box<dyn SpillFile>>,
    runs: Vec<Run>,
    kept: Vec<RawDocumentBuf>,
    holding: Holding,
    len: usize,
}

/// How far a list was read.
#[derive(Default)]
pub(crate) struct Cursor {
    /// The run that is read, or the first of those in memory.
    run: usize,
    reader: Option<RunReader>,
    kept: usize,
}

impl List {
    pub fn new(consumer: &'static Consumer, budget: &Budget) -> List {
        List {
            file: None,
            runs: Vec::new(),
            kept: Vec::new(),
            holding: budget.holding(consumer),
            len: 0,
        }
    }

    pub fn push(&mut self, document: RawDocumentBuf) -> Result<(), QueryError> {
        let bytes = document.as_bytes().len() + size_of::<RawDocumentBuf>();
        self.kept.push(document);
        self.len += 1;
        match self.holding.fits_more(bytes) {
            true => Ok(()),
            false => self.spill(),
        }
    }

    #[cold]
    fn spill(&mut self) -> Result<(), QueryError> {
        let budget = self.holding.budget();
        if !budget.may_spill() {
            return Err(self.holding.exceeded());
        }
        if self.file.is_none() {
            self.file = Some(budget.spill_file()?);
        }
        let Some(file) = &mut self.file else {
            return Err(damaged());
        };
        let mut writer = RunWriter::new(&mut **file);
        for document in self.kept.drain(..) {
            budget.spend_bytes(document.as_bytes().len())?;
            writer.push(&[], |out| document.write(out))?;
        }
        self.runs.push(writer.finish()?);
        self.holding.set(0)
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// How often it was written for lack of memory.
    pub fn spills(&self) -> u64 {
        self.runs.len() as u64
    }

    /// What it holds in memory at most.
    pub fn peak(&self) -> usize {
        self.holding.peak()
    }

    /// The document behind the cursor, which moves on.
    pub fn next<'l>(
        &'l self,
        cursor: &'l mut Cursor,
    ) -> Result<Option<&'l RawDocument>, QueryError> {
        let Some(file) = &self.file else {
            cursor.kept += 1;
            return Ok(self.kept.get(cursor.kept - 1).map(|document| &**document));
        };
        while let Some(run) = self.runs.get(cursor.run) {
            let reader = cursor.reader.get_or_insert_with(|| RunReader::new(0, run));
            if reader.advance(&**file)? {
                break;
            }
            cursor.reader = None;
            cursor.run += 1;
        }
        match &cursor.reader {
            Some(reader) => {
                let document = RawDocument::from_bytes(reader.value());
                document.map(Some).map_err(|_| damaged())
            }
            None => {
                cursor.kept += 1;
                Ok(self.kept.get(cursor.kept - 1).map(|document| &**document))
            }
        }
    }
}
