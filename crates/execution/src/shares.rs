//! The records of a scan, divided among those who read them.
//!
//! Each reader has a share: records that follow one another. It reads its share in small pieces.
//! Whoever has nothing left takes half of the largest share that is left. So nobody has to know
//! beforehand how the work is spread, and what each one has found lies together, in the order of
//! the collection. The pieces are the morsels of Leis et al., "Morsel-Driven Parallelism" (2014).

use std::sync::Arc;

use parking_lot::Mutex;

/// So many record ids are read before somebody else may have what is left.
pub const MORSEL: u64 = 1024;

/// What all readers of a scan share.
#[derive(Debug)]
pub struct Shares {
    remainders: Mutex<Vec<Remainder>>,
    morsel: u64,
}

/// What is left of a share: from one record id up to another.
#[derive(Debug, Clone, Copy)]
struct Remainder {
    next: u64,
    end: u64,
    /// Nobody reads it.
    is_free: bool,
    /// Whoever takes it reads all of it.
    is_whole: bool,
}

impl Remainder {
    fn len(&self) -> u64 {
        self.end.saturating_sub(self.next)
    }
}

/// The share of one reader.
#[derive(Debug, Clone)]
pub struct Share {
    shares: Arc<Shares>,
    number: usize,
    /// The first record id of it, and the one behind its last.
    pub start: u64,
    pub end: u64,
}

impl Shares {
    /// All records from one id up to another, as one share that nobody reads yet.
    pub fn new(start: u64, end: u64) -> Arc<Shares> {
        Shares::in_morsels(start, end, MORSEL)
    }

    /// The same, read by so many records at a time.
    pub fn in_morsels(start: u64, end: u64, morsel: u64) -> Arc<Shares> {
        let whole = Remainder {
            next: start,
            end,
            is_free: true,
            is_whole: false,
        };
        Shares::of(vec![whole], morsel.max(1))
    }

    /// So many pieces, numbered from 1 on, none of which is divided any more.
    pub fn of_pieces(count: usize) -> Arc<Shares> {
        let pieces = (1..=count as u64).map(|number| Remainder {
            next: number,
            end: number + 1,
            is_free: true,
            is_whole: true,
        });
        Shares::of(pieces.collect(), MORSEL)
    }

    fn of(remainders: Vec<Remainder>, morsel: u64) -> Arc<Shares> {
        Arc::new(Shares {
            remainders: Mutex::new(remainders),
            morsel,
        })
    }

    /// What nobody reads, as ranges of record ids in order.
    pub fn unread(&self) -> Vec<(u64, u64)> {
        let remainders = self.remainders.lock();
        let free = remainders.iter().filter(|r| r.is_free && r.len() > 0);
        let mut ranges: Vec<_> = free.map(|r| (r.next, r.end)).collect();
        ranges.sort_unstable();
        ranges
    }

    /// A share that nobody reads, or half of the largest that somebody does. `None`: what is left
    /// is not worth dividing.
    pub fn take(self: &Arc<Shares>) -> Option<Share> {
        let mut remainders = self.remainders.lock();
        let free = remainders.iter().position(|r| r.is_free && r.len() > 0);
        let number = match free {
            Some(number) => number,
            None => split(&mut remainders, self.morsel)?,
        };
        let remainder = remainders.get_mut(number)?;
        remainder.is_free = false;
        let Remainder { next, end, .. } = *remainder;
        if remainder.is_whole {
            remainder.next = end;
        }
        Some(Share {
            shares: self.clone(),
            number,
            start: next,
            end,
        })
    }
}

/// Halves the largest.
fn split(remainders: &mut Vec<Remainder>, morsel: u64) -> Option<usize> {
    let largest = remainders.iter_mut().max_by_key(|r| r.len())?;
    if largest.len() < 2 * morsel {
        return None;
    }
    let middle = largest.next + largest.len() / 2;
    let half = Remainder {
        next: middle,
        end: largest.end,
        is_free: true,
        is_whole: false,
    };
    largest.end = middle;
    remainders.push(half);
    Some(remainders.len() - 1)
}

impl Share {
    /// Up to which record id its reader may read, who has come to `record`. `None`: that one is not
    /// its own any more.
    pub fn claim(&self, record: u64) -> Option<u64> {
        let mut remainders = self.shares.remainders.lock();
        let remainder = remainders.get_mut(self.number)?;
        if record >= remainder.end {
            remainder.next = remainder.end;
            return None;
        }
        let from = remainder.next.max(record);
        remainder.next = remainder.end.min(from.saturating_add(self.shares.morsel));
        Some(remainder.next)
    }

    /// Leaves all from a record on to whoever takes it, claimed or not.
    pub fn give_back(&self, from: u64) {
        let mut remainders = self.shares.remainders.lock();
        if let Some(own) = remainders.get_mut(self.number) {
            own.next = from.min(own.end);
        }
        drop(remainders);
        self.leave();
    }

    /// There are no more records in it.
    pub fn close(&self) {
        let mut remainders = self.shares.remainders.lock();
        if let Some(own) = remainders.get_mut(self.number) {
            own.next = own.end;
        }
    }

    /// Leaves what has not been claimed to whoever takes it.
    pub fn leave(&self) {
        let mut remainders = self.shares.remainders.lock();
        let Some(own) = remainders.get_mut(self.number) else {
            return;
        };
        let rest = Remainder {
            is_free: true,
            ..*own
        };
        own.end = own.next;
        if rest.len() > 0 {
            remainders.push(rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(share: &Share, read: &mut Vec<u64>) {
        let mut at = share.start;
        while let Some(end) = share.claim(at) {
            read.extend(at..end);
            at = end;
        }
    }

    #[test]
    fn every_record_is_read_once() {
        let shares = Shares::new(5, 50_005);
        let mut all = Vec::new();
        let first = shares.take().unwrap();
        assert_eq!(first.claim(5), Some(5 + MORSEL));
        all.extend(5..5 + MORSEL);
        let second = shares.take().unwrap();
        assert_eq!((second.start, second.end), (25_517, 50_005));
        let third = shares.take().unwrap();
        second.claim(second.start).unwrap();
        all.extend(second.start..second.start + MORSEL);
        second.leave();
        let fourth = shares.take().unwrap();
        assert_eq!(fourth.start, second.start + MORSEL, "what was left");
        for share in [&third, &fourth] {
            read(share, &mut all);
        }
        let mut at = 5 + MORSEL;
        while let Some(end) = first.claim(at) {
            all.extend(at..end);
            at = end;
        }
        assert!(shares.take().is_none());
        all.sort_unstable();
        assert!(all.into_iter().eq(5..50_005));
    }

    #[test]
    fn a_piece_is_read_by_whoever_took_it_alone() {
        let shares = Shares::of_pieces(2);
        let first = shares.take().unwrap();
        // It is read to its end by somebody that others wait for.
        first.leave();
        let second = shares.take().unwrap();
        assert_eq!((first.start, second.start), (1, 2));
        assert!(shares.take().is_none());
    }

    #[test]
    fn little_is_not_divided() {
        let shares = Shares::new(1, 2 * MORSEL);
        let all = shares.take().unwrap();
        assert!(shares.take().is_none());
        assert_eq!((all.start, all.end), (1, 2 * MORSEL));
        assert!(Shares::new(3, 3).take().is_none());
    }
}
