//! Spilling: what does not fit into memory goes to a file in sorted runs, which are merged.
//!
//! What a file is, and where, is up to a [`SpillStore`]. A stage writes its runs into [`Runs`] and
//! reads them back merged ([`Merge`]): records by their keys, and those with equal keys in the
//! order in which their runs were written. Runs are written and read in blocks; how many are
//! merged at once is bounded, and so is what a merge holds.

pub(crate) mod file;
mod list;
mod merge;
mod run;
mod scores;
mod table;

use crate::budget::Budget;
use crate::error::QueryError;

pub(crate) use file::damaged;
pub use file::{SpillFile, SpillStore};
pub(crate) use list::{Cursor, List};
pub(crate) use merge::Merge;
use run::Run;
pub(crate) use run::RunWriter;
pub use scores::{ScoreOrder, Scored, Scores};
pub(crate) use table::Table;

/// What can be written to a run and read again.
pub trait Spilled: Sized {
    fn write(&self, out: &mut Vec<u8>);

    /// `None` if these are not the bytes that were written.
    fn read(bytes: &[u8]) -> Option<Self>;
}

impl Spilled for bson::RawDocumentBuf {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.as_bytes());
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        bson::RawDocumentBuf::from_bytes(bytes.to_vec()).ok()
    }
}

/// So many runs are merged into one when there are as many.
const RUNS_MAX: usize = 64;

/// The runs of one stage.
pub(crate) struct Runs {
    budget: Budget,
    /// The first level has the runs as they were written; each run of the others is made of
    /// [`RUNS_MAX`] of the level before it.
    levels: Vec<Level>,
    /// Those of other parts of the stage.
    joined: Vec<Vec<Level>>,
    /// More records than this are not wanted of the merged runs.
    limit: Option<u64>,
    pub written: Written,
}

/// What was written for lack of memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Written {
    pub runs: u64,
    pub records: u64,
    pub bytes: u64,
}

struct Level {
    file: Box<dyn SpillFile>,
    runs: Vec<Run>,
}

impl Runs {
    pub fn new(budget: &Budget, limit: Option<u64>) -> Runs {
        Runs {
            budget: budget.clone(),
            levels: Vec::new(),
            joined: Vec::new(),
            limit,
            written: Written::default(),
        }
    }

    /// Writes a run: `fill` hands over its records in the order of their keys.
    pub fn write(
        &mut self,
        fill: impl FnOnce(&mut RunWriter<'_>) -> Result<(), QueryError>,
    ) -> Result<(), QueryError> {
        let level = self.level(0)?;
        let mut writer = RunWriter::new(&mut *level.file);
        fill(&mut writer)?;
        let run = writer.finish()?;
        self.written.runs += 1;
        self.written.records += run.records;
        self.written.bytes += run.bytes;
        self.put(0, run)
    }

    /// Takes over the runs of another part of the same stage.
    pub fn join(&mut self, other: Runs) {
        self.written.runs += other.written.runs;
        self.written.records += other.written.records;
        self.written.bytes += other.written.bytes;
        self.joined.push(other.levels);
        self.joined.extend(other.joined);
    }

    fn level(&mut self, at: usize) -> Result<&mut Level, QueryError> {
        while self.levels.len() <= at {
            self.levels.push(Level {
                file: self.budget.spill_file()?,
                runs: Vec::new(),
            });
        }
        self.levels.get_mut(at).ok_or_else(damaged)
    }

    /// Adds a run to a level, and merges the level where that makes it full.
    fn put(&mut self, at: usize, run: Run) -> Result<(), QueryError> {
        let budget = self.budget.clone();
        let limit = self.limit.unwrap_or(u64::MAX);
        let level = self.level(at)?;
        level.runs.push(run);
        if level.runs.len() < RUNS_MAX {
            return Ok(());
        }
        let file = std::mem::replace(&mut level.file, budget.spill_file()?);
        let runs = std::mem::take(&mut level.runs);
        let mut merge = Merge::new(vec![(file, runs)])?;
        let mut writer = RunWriter::new(&mut *self.level(at + 1)?.file);
        while let Some((key, value)) = merge.top()
            && writer.records() < limit
        {
            budget.spend_bytes(key.len() + value.len())?;
            writer.push(key, |out| out.extend_from_slice(value))?;
            merge.advance()?;
        }
        let run = writer.finish()?;
        self.put(at + 1, run)
    }

    /// All records by their keys.
    pub fn table(self) -> Result<Table, QueryError> {
        let budget = self.budget.clone();
        Table::of(self.merge()?, &budget)
    }

    /// All records in order.
    pub fn merge(self) -> Result<Merge, QueryError> {
        // The runs of a higher level were written before those of a lower one.
        let parts = std::iter::once(self.levels).chain(self.joined);
        let levels = parts.flat_map(|levels| levels.into_iter().rev());
        Merge::new(levels.map(|level| (level.file, level.runs)).collect())
    }
}

#[cfg(test)]
pub(crate) mod tests;
