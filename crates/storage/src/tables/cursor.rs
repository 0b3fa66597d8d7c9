//! The newest version of each key of all sources.

use std::cmp::Ordering;
use std::ops::Bound;
use std::sync::Arc;

use fjall::Slice;
use lsm_tree::SeqNo;

use super::backward::BackwardRun;
use super::chunk::Chunk;
use super::direction::Direction;
use super::entries::{Entries, Rest};
use super::memory::{BackwardMemory, Memory};
use super::run::RunReader;
use super::state::State;

/// So many entries of a source are decoded at once at first, and the more the longer one goes on.
const DECODED_MIN: usize = 4;
const DECODED_MAX: usize = 128;

/// The keys of a range that are there for a snapshot, in their order or in the opposite one.
pub(crate) struct Cursor {
    state: Arc<State>,
    seqno: SeqNo,
    direction: Direction,
    /// Where the range ends, in this direction.
    end: Bound<Vec<u8>>,
    sources: Vec<Source>,
    /// The source that has the next key. None of them: it is not known yet.
    first: usize,
    /// The one that has the next key of the others. `None`: they have none within the range.
    second: Option<usize>,
    /// Whether it has come to an entry, and not gone on yet.
    is_on_entry: bool,
}

struct Source {
    chunk: Chunk,
    entries: Box<dyn Entries + Send>,
    rest: Rest,
    wanted: usize,
}

impl Source {
    fn new(entries: Box<dyn Entries + Send>, direction: Direction) -> Source {
        Source {
            chunk: Chunk::new(direction),
            entries,
            rest: Rest::More,
            wanted: DECODED_MIN,
        }
    }

    /// Goes to the first key from this one on.
    fn seek(&mut self, key: &[u8], end: &Bound<Vec<u8>>) {
        let is_all = self.rest == Rest::Ended;
        if !is_all {
            self.rest = Rest::More;
        }
        if self.chunk.go_to(key, is_all) {
            self.chunk.bound(end);
            return;
        }
        self.wanted = DECODED_MIN;
        self.rest = Rest::More;
        self.chunk.begin_at(key);
        self.entries.seek(Some(key));
    }

    /// Goes to the last key before this one, or to the last.
    fn seek_backward(&mut self, before: Option<&[u8]>) {
        self.wanted = DECODED_MIN;
        self.rest = Rest::More;
        self.chunk.begin_anew();
        self.entries.seek(before);
    }

    /// Reads on where it has nothing and there may be something.
    #[inline]
    fn ensure(
        &mut self,
        state: &State,
        seqno: SeqNo,
        end: &Bound<Vec<u8>>,
    ) -> Result<(), lsm_tree::Error> {
        while !self.chunk.has_head() && self.rest == Rest::More && !self.chunk.ends_behind() {
            let (chunk, wanted) = (&mut self.chunk, self.wanted);
            self.rest = self.entries.fill(state, chunk, seqno, end, wanted)?;
            self.wanted = (self.wanted * 2).min(DECODED_MAX);
        }
        Ok(())
    }
}

impl Drop for Cursor {
    fn drop(&mut self) {
        let read = self.sources.iter();
        let read = read.map(|source| source.entries.read_in_memory()).sum();
        self.state.note_reads(read);
    }
}

impl Cursor {
    pub(crate) fn new(state: Arc<State>, seqno: SeqNo, direction: Direction) -> Cursor {
        let memory = state.memory.iter().cloned();
        let memory = memory.map(|memory| -> Box<dyn Entries + Send> {
            match direction {
                Direction::Forward => Box::new(Memory::new(memory)),
                Direction::Backward => Box::new(BackwardMemory::new(memory)),
            }
        });
        let runs = state.runs.iter().cloned();
        let runs = runs.map(|run| -> Box<dyn Entries + Send> {
            match direction {
                Direction::Forward => Box::new(RunReader::new(run)),
                Direction::Backward => Box::new(BackwardRun::new(run)),
            }
        });
        let sources = memory.chain(runs);
        let sources = sources.map(|entries| Source::new(entries, direction));
        let sources = sources.collect();
        Cursor {
            state,
            seqno,
            direction,
            end: Bound::Unbounded,
            sources,
            first: 0,
            second: None,
            is_on_entry: false,
        }
    }

    /// Goes to what lies between the bounds. It need not lie behind what was read.
    pub(crate) fn seek(&mut self, (lower, upper): (Bound<Vec<u8>>, Bound<Vec<u8>>)) {
        self.is_on_entry = false;
        self.first = self.sources.len();
        match self.direction {
            Direction::Forward => {
                let from = match lower {
                    Bound::Included(key) => key,
                    Bound::Excluded(key) => successor(key),
                    Bound::Unbounded => Vec::new(),
                };
                self.end = upper;
                for source in &mut self.sources {
                    source.seek(&from, &self.end);
                }
            }
            Direction::Backward => {
                let before = match upper {
                    Bound::Included(key) => Some(successor(key)),
                    Bound::Excluded(key) => Some(key),
                    Bound::Unbounded => None,
                };
                self.end = lower;
                for source in &mut self.sources {
                    source.seek_backward(before.as_deref());
                }
            }
        }
    }

    /// Goes on to the next key. False: the range has ended.
    #[inline]
    pub(crate) fn advance(&mut self) -> Result<bool, lsm_tree::Error> {
        if self.is_on_entry {
            self.sources[self.first].chunk.pop();
            self.is_on_entry = false;
        }
        while self.settle()? {
            let chunk = &mut self.sources[self.first].chunk;
            if !chunk.is_removed() {
                self.is_on_entry = true;
                return Ok(true);
            }
            chunk.pop();
        }
        Ok(false)
    }

    /// The key that it has come to.
    #[inline]
    pub(crate) fn key(&self) -> &[u8] {
        let first = self.sources.get(self.first);
        first.and_then(|first| first.chunk.head()).unwrap_or(&[])
    }

    #[inline]
    pub(crate) fn value(&self) -> &[u8] {
        let first = self.sources.get(self.first);
        first.map_or(&[], |first| first.chunk.value())
    }

    /// The value, to be kept.
    #[inline]
    pub(crate) fn kept_value(&self) -> Slice {
        let first = self.sources.get(self.first);
        first.map_or_else(Slice::default, |first| first.chunk.kept_value())
    }

    /// Passes over up to so many keys: how many there were. Fewer: the range has ended.
    pub(crate) fn pass(&mut self, most: u64) -> Result<u64, lsm_tree::Error> {
        let mut passed = 0;
        if self.is_on_entry {
            self.sources[self.first].chunk.pop();
            self.is_on_entry = false;
        }
        while passed < most && self.settle()? {
            let first = &mut self.sources[self.first];
            if self.second.is_none() {
                passed += first.chunk.pass(most - passed);
            } else {
                passed += u64::from(!first.chunk.is_removed());
                first.chunk.pop();
            }
        }
        Ok(passed)
    }

    /// Finds the source with the next key. False: none has one.
    #[inline]
    fn settle(&mut self) -> Result<bool, lsm_tree::Error> {
        let Some(first) = self.sources.get_mut(self.first) else {
            return self.choose();
        };
        first.ensure(&self.state, self.seqno, &self.end)?;
        if first.chunk.has_head() {
            let Some(second) = self.second else {
                return Ok(true);
            };
            let (first, second) = (&self.sources[self.first], &self.sources[second]);
            if first.chunk.order(&second.chunk) == Some(Ordering::Less) {
                return Ok(true);
            }
        }
        self.choose()
    }

    fn choose(&mut self) -> Result<bool, lsm_tree::Error> {
        let mut best: Option<usize> = None;
        for at in 0..self.sources.len() {
            self.sources[at].ensure(&self.state, self.seqno, &self.end)?;
            let Some(so_far) = best else {
                best = self.sources[at].chunk.has_head().then_some(at);
                continue;
            };
            let (chunk, other) = (&self.sources[at].chunk, &self.sources[so_far].chunk);
            match chunk.order(other) {
                Some(Ordering::Less) => best = Some(at),
                // The newest version of a key counts.
                Some(Ordering::Equal) => {
                    let is_newer = chunk.seqno() > other.seqno();
                    let older = if is_newer { so_far } else { at };
                    self.sources[older].chunk.pop();
                    if is_newer {
                        best = Some(at);
                    }
                }
                Some(Ordering::Greater) | None => {}
            }
        }
        self.second = None;
        let Some(best) = best else {
            return Ok(false);
        };
        self.first = best;
        for at in 0..self.sources.len() {
            if at == best {
                continue;
            }
            self.sources[at].ensure(&self.state, self.seqno, &self.end)?;
            let chunk = &self.sources[at].chunk;
            let is_next = match self.second {
                None => chunk.has_head(),
                Some(second) => chunk.order(&self.sources[second].chunk) == Some(Ordering::Less),
            };
            if is_next {
                self.second = Some(at);
            }
        }
        Ok(true)
    }
}

/// The key that comes next.
fn successor(mut key: Vec<u8>) -> Vec<u8> {
    key.push(0);
    key
}
