//! The newest version of each key of all sources.

use std::cmp::Ordering;
use std::ops::Bound;
use std::sync::Arc;

use fjall::Slice;
use lsm_tree::SeqNo;

use super::chunk::Chunk;
use super::memory::Memory;
use super::run::{Rest, RunReader};
use super::state::State;

/// So many entries of a source are decoded at once at first, and the more the longer one goes on.
const DECODED_MIN: usize = 4;
const DECODED_MAX: usize = 128;

/// The keys of a range that are there for a snapshot, in their order.
pub(crate) struct Cursor {
    state: Arc<State>,
    seqno: SeqNo,
    upper: Bound<Vec<u8>>,
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
    kind: Kind,
    rest: Rest,
    wanted: usize,
}

enum Kind {
    Memory(Memory),
    Run(Box<RunReader>),
}

impl Source {
    fn new(kind: Kind) -> Source {
        Source {
            chunk: Chunk::default(),
            kind,
            rest: Rest::More,
            wanted: DECODED_MIN,
        }
    }

    fn seek(&mut self, key: &[u8], upper: &Bound<Vec<u8>>) {
        let is_all = self.rest == Rest::Ended;
        if !is_all {
            self.rest = Rest::More;
        }
        if self.chunk.go_to(key, is_all) {
            self.chunk.bound(upper);
            return;
        }
        self.wanted = DECODED_MIN;
        self.rest = Rest::More;
        self.chunk.begin_at(key);
        match &mut self.kind {
            Kind::Memory(memory) => memory.seek(key),
            Kind::Run(run) => run.seek(key),
        }
    }

    /// Reads on where it has nothing and there may be something.
    #[inline]
    fn ensure(
        &mut self,
        state: &State,
        seqno: SeqNo,
        upper: &Bound<Vec<u8>>,
    ) -> Result<(), lsm_tree::Error> {
        while !self.chunk.has_head() && self.rest == Rest::More && !self.chunk.ends_behind() {
            let chunk = &mut self.chunk;
            self.rest = match &mut self.kind {
                Kind::Memory(memory) => memory.fill(chunk, seqno, upper, self.wanted),
                Kind::Run(run) => run.fill(state, chunk, seqno, upper, self.wanted)?,
            };
            self.wanted = (self.wanted * 2).min(DECODED_MAX);
        }
        Ok(())
    }
}

impl Drop for Cursor {
    fn drop(&mut self) {
        for source in &self.sources {
            if let Kind::Memory(memory) = &source.kind {
                self.state.note_reads(memory.read);
            }
        }
    }
}

impl Cursor {
    pub(crate) fn new(state: Arc<State>, seqno: SeqNo) -> Cursor {
        let memory = state.memory.iter();
        let memory = memory.map(|memory| Kind::Memory(Memory::new(memory.clone())));
        let runs = state.runs.iter();
        let runs = runs.map(|run| Kind::Run(Box::new(RunReader::new(run.clone()))));
        let sources = memory.chain(runs).map(Source::new).collect();
        Cursor {
            state,
            seqno,
            upper: Bound::Unbounded,
            sources,
            first: 0,
            second: None,
            is_on_entry: false,
        }
    }

    /// Goes to what lies between the bounds. It need not lie behind what was read.
    pub(crate) fn seek(&mut self, (lower, upper): (Bound<Vec<u8>>, Bound<Vec<u8>>)) {
        self.upper = upper;
        self.is_on_entry = false;
        self.first = self.sources.len();
        let lower = match lower {
            Bound::Included(key) => key,
            Bound::Excluded(mut key) => {
                // The next one.
                key.push(0);
                key
            }
            Bound::Unbounded => Vec::new(),
        };
        for source in &mut self.sources {
            source.seek(&lower, &self.upper);
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
        first.ensure(&self.state, self.seqno, &self.upper)?;
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
            self.sources[at].ensure(&self.state, self.seqno, &self.upper)?;
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
            self.sources[at].ensure(&self.state, self.seqno, &self.upper)?;
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
