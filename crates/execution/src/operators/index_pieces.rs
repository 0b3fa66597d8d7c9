//! What is left of an index scan, cut into pieces by keys, so that several may read it.
//!
//! Nobody knows how the keys are spread. The pieces lie evenly between the key that the scan has
//! come to and the last one, as if keys were numbers; there are many more pieces than threads, so
//! that it matters little how many keys each has.

use std::ops::Bound;
use std::sync::Arc;

use banyan_query::QueryError;
use banyan_storage::{KeyRange, RecordId, Snapshot};

use crate::error;
use crate::plan::{IndexBounds, ScanRange};

/// So many keys are read by one thread: a scan that ends before is not worth a second.
pub const KEYS_MIN: u64 = 4096;
const PIECES: u64 = 64;

/// A part of a scan: its bounds, and the entry behind which it begins, if it is the first.
pub struct Piece {
    pub bounds: Arc<IndexBounds>,
    pub behind: Option<(Vec<u8>, RecordId)>,
}

/// What lies behind an entry in a range of an index. `None`: too little, as far as the keys tell.
pub fn cut(
    bounds: &IndexBounds,
    range: &KeyRange,
    (key, record): (&[u8], &RecordId),
    snapshot: &Snapshot,
) -> Result<Option<Vec<Piece>>, QueryError> {
    let last = snapshot
        .scan_index(&bounds.index, range.clone(), true)
        .next();
    let Some((last, _)) = last.transpose().map_err(error::storage)? else {
        return Ok(None);
    };
    let cuts = between(key, &last);
    if cuts.is_empty() {
        return Ok(None);
    }
    let piece = |lower: Bound<&Vec<u8>>, upper: Bound<Vec<u8>>| {
        let range = KeyRange {
            lower: lower.cloned(),
            upper,
        };
        Arc::new(IndexBounds {
            ranges: vec![ScanRange { range, point: None }],
            ..bounds.clone()
        })
    };
    let uppers = cuts.iter().skip(1).map(|cut| Bound::Excluded(cut.clone()));
    let uppers = uppers.chain([range.upper.clone()]);
    let first = Piece {
        bounds: piece(range.lower.as_ref(), Bound::Excluded(cuts[0].clone())),
        behind: Some((key.to_vec(), record.clone())),
    };
    let rest = cuts.iter().zip(uppers).map(|(cut, upper)| Piece {
        bounds: piece(Bound::Included(cut), upper),
        behind: None,
    });
    Ok(Some(std::iter::once(first).chain(rest).collect()))
}

/// Keys above `low` and not above `high`, evenly between them.
fn between(low: &[u8], high: &[u8]) -> Vec<Vec<u8>> {
    let common = low.iter().zip(high).take_while(|(a, b)| a == b).count();
    let number = |key: &[u8]| {
        let mut bytes = [0; 8];
        let rest = key.iter().skip(common);
        bytes
            .iter_mut()
            .zip(rest)
            .for_each(|(to, from)| *to = *from);
        u64::from_be_bytes(bytes)
    };
    let (from, to) = (number(low), number(high));
    let mut cuts = Vec::new();
    let mut before = from;
    for piece in 1..PIECES {
        let part = u128::from(to.saturating_sub(from)) * u128::from(piece) / u128::from(PIECES);
        let at = from.saturating_add(u64::try_from(part).unwrap_or(u64::MAX));
        if at > before {
            before = at;
            let mut cut = high.get(..common).unwrap_or_default().to_vec();
            cut.extend_from_slice(&at.to_be_bytes());
            cuts.push(cut);
        }
    }
    cuts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_lie_in_order_between_the_ends() {
        let keys: [(&[u8], &[u8]); 6] = [
            (b"", b"zebra"),
            (b"user 0001", b"user 9999"),
            (b"user", b"user 9999"),
            (&[1, 2, 3], &[1, 2, 4]),
            (
                &[9, 0, 0, 0, 0, 0, 0, 0, 0, 1],
                &[9, 0, 0, 0, 0, 0, 0, 0, 0, 2],
            ),
            (b"same", b"same"),
        ];
        for (low, high) in keys {
            let cuts = between(low, high);
            assert!(cuts.is_sorted_by(|a, b| a < b), "{low:?} {high:?}");
            assert!(cuts.iter().all(|cut| &cut[..] > low && &cut[..] <= high));
        }
        assert_eq!(between(b"user 0001", b"user 9999").len() as u64, PIECES - 1);
    }
}
