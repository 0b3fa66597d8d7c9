//! Groups for which there was no memory, on disk.

use std::cmp::Ordering;

use bson::{RawBsonRef, RawDocument};

use banyan_document::elements;

use super::groups::{Entry, Groups, id_document_of};
use super::specification::{Group, Mode};
use crate::budget::Budget;
use crate::error::QueryError;
use crate::memory;
use crate::merge_sort;
use crate::pipeline::accumulator;
use crate::spill::{Merge, Runs, damaged};
use crate::variables::Variables;

/// Writes all groups to a run: in the order of their keys, with their partial states.
pub(super) fn write_groups(
    group: &Group,
    groups: &mut Groups,
    runs: &mut Runs,
    budget: &Budget,
) -> Result<(), QueryError> {
    let before = runs.written;
    let order = sorted(groups, budget)?;
    let mut buffer = Vec::new();
    runs.write(|writer| {
        for at in order {
            let partial = group.result(groups.parts_mut(at), Mode::Partial, buffer, budget)?;
            budget.spend_bytes(partial.as_bytes().len())?;
            writer.push(groups.key(at), |out| {
                out.extend_from_slice(partial.as_bytes());
            })?;
            buffer = partial.into_bytes();
        }
        Ok(())
    })?;
    let (figures, after) = (&budget.memory().figures, runs.written);
    memory::count(&figures.group_spills, 1);
    memory::count(&figures.groups_spilled, after.records - before.records);
    memory::count(&figures.group_bytes_spilled, after.bytes - before.bytes);
    Ok(())
}

/// The places of the groups in the order of their keys.
fn sorted(groups: &Groups, budget: &Budget) -> Result<Vec<usize>, QueryError> {
    let compare = |a: &usize, b: &usize| groups.key(*a).cmp(groups.key(*b));
    let weight = |at: &usize| groups.key(*at).len();
    merge_sort::sort((0..groups.len()).collect(), compare, weight, budget)
}

/// All groups, those on disk and those left in memory, in the order of their keys.
pub(super) struct Merging {
    disk: Merge,
    /// Those of the `$lookup` stages around.
    variables: Variables,
    memory: std::iter::Peekable<std::vec::IntoIter<usize>>,
    key: Vec<u8>,
}

impl Merging {
    pub fn new(
        runs: Runs,
        groups: &Groups,
        variables: &Variables,
        budget: &Budget,
    ) -> Result<Merging, QueryError> {
        Ok(Merging {
            disk: runs.merge()?,
            variables: variables.clone(),
            memory: sorted(groups, budget)?.into_iter().peekable(),
            key: Vec::new(),
        })
    }

    /// The next group, its parts put together in the order in which they were made.
    pub fn next(
        &mut self,
        group: &Group,
        groups: &mut Groups,
        budget: &Budget,
    ) -> Result<Option<Entry>, QueryError> {
        let held = self.memory.peek().map(|at| groups.key(*at));
        let top = self.disk.top();
        let (on_disk, in_memory) = match (top, held) {
            (None, None) => return Ok(None),
            (None, Some(_)) => (false, true),
            (Some(_), None) => (true, false),
            (Some((key, _)), Some(held)) => match key.cmp(held) {
                Ordering::Less => (true, false),
                Ordering::Equal => (true, true),
                Ordering::Greater => (false, true),
            },
        };
        let mut merged = match (on_disk, top) {
            (true, Some((key, _))) => {
                self.key.clear();
                self.key.extend_from_slice(key);
                Some(self.read_disk(group, budget)?)
            }
            _ => None,
        };
        if in_memory && let Some(at) = self.memory.next() {
            let mut held = groups.take(at);
            match &mut merged {
                None => merged = Some(held),
                Some(merged) => {
                    let (parts, buffer) = (held.parts_mut(), Vec::new());
                    let partial = group.result(parts, Mode::Partial, buffer, budget)?;
                    group.merge(&mut merged.states, &partial, budget)?;
                }
            }
        }
        Ok(merged)
    }

    /// What all runs have of the group that comes first.
    fn read_disk(&mut self, group: &Group, budget: &Budget) -> Result<Entry, QueryError> {
        let mut entry: Option<Entry> = None;
        while let Some((key, value)) = self.disk.top()
            && key == self.key
        {
            budget.spend_bytes(key.len() + value.len())?;
            let partial = RawDocument::from_bytes(value).map_err(|_| damaged())?;
            // Of equal values the one that came first is shown.
            let entry = match &mut entry {
                Some(entry) => entry,
                None => {
                    let first = elements(partial).next();
                    let id = first.map_or(RawBsonRef::Null, |id| id.value());
                    let of = accumulator::Group::new(id, &self.variables);
                    let states = group.accumulators.iter().map(|a| a.start(of));
                    entry.insert(Entry {
                        states: states.collect::<Result<_, _>>()?,
                        id: id_document_of(id, Vec::new()),
                    })
                }
            };
            group.merge(&mut entry.states, partial, budget)?;
            self.disk.advance()?;
        }
        entry.ok_or_else(damaged)
    }
}
