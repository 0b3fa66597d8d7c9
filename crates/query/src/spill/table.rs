//! A table on disk: records in the order of their keys, found by the first key of each block.

use super::file::SpillFile;
use super::merge::Merge;
use super::run::{RunReader, RunWriter};
use crate::budget::Budget;
use crate::error::QueryError;
use crate::memory::{Holding, consumer};

pub(crate) struct Table {
    file: Box<dyn SpillFile>,
    /// The first key of each block, and where it lies.
    blocks: Vec<(Box<[u8]>, u64)>,
    holding: Holding,
}

impl Table {
    pub(super) fn of(mut merge: Merge, budget: &Budget) -> Result<Table, QueryError> {
        let mut file = budget.spill_file()?;
        let mut holding = budget.holding(&consumer::LOOKUP);
        let mut writer = RunWriter::new(&mut *file);
        let mut blocks = Vec::new();
        let mut first: Option<Box<[u8]>> = None;
        while let Some((key, value)) = merge.top() {
            budget.spend_bytes(key.len() + value.len())?;
            let first_key = first.get_or_insert_with(|| Box::from(key));
            let (before, _) = writer.blocks();
            writer.push(key, |out| out.extend_from_slice(value))?;
            let (after, place) = writer.blocks();
            if after > before {
                holding.add(first_key.len() + size_of::<(Box<[u8]>, u64)>())?;
                blocks.extend(first.take().map(|key| (key, place)));
            }
            merge.advance()?;
        }
        if let Some(first) = first {
            writer.flush()?;
            blocks.push((first, writer.blocks().1));
        }
        Ok(Table {
            file,
            blocks,
            holding,
        })
    }

    /// Visits the records whose keys begin so, in their order, until it is told to stop.
    pub fn find(
        &self,
        prefix: &[u8],
        mut visit: impl FnMut(&[u8], &[u8]) -> Result<bool, QueryError>,
    ) -> Result<(), QueryError> {
        // The block before the first that begins with the prefix or behind it may end with it.
        let behind = self.blocks.partition_point(|(first, _)| **first < *prefix);
        let start = behind.saturating_sub(1);
        let Some((_, place)) = self.blocks.get(start) else {
            return Ok(());
        };
        let left = (self.blocks.len() - start) as u64;
        let mut reader = RunReader::of_blocks(0, *place, left);
        while reader.advance(&*self.file)? {
            let key = reader.key();
            self.holding.budget().spend_bytes(key.len())?;
            if key < prefix {
                continue;
            }
            let Some(rest) = key.strip_prefix(prefix) else {
                break;
            };
            self.holding.budget().spend_bytes(reader.value().len())?;
            if !visit(rest, reader.value())? {
                break;
            }
        }
        Ok(())
    }
}
