//! Documents that one thread has found and another one hands on: they lie in slabs, one behind the
//! other, so that the one that hands them on reads what follows and frees little.

use std::collections::VecDeque;
use std::sync::Arc;
use std::vec;

use banyan_query::sort::Piece;
use bson::RawDocument;

use crate::row::{Row, SlabDocument};

/// A slab has so many bytes, unless one document has more.
const SLAB_BYTES: usize = 64 * 1024;

/// Takes documents in, each with something that is known of it.
pub struct Packer<K> {
    full: VecDeque<Slab<K>>,
    bytes: Vec<u8>,
    /// What is known of each document of the last slab, and where it ends.
    members: Vec<(K, usize)>,
}

/// The documents in their order.
pub struct Packed<K>(VecDeque<Slab<K>>);

struct Slab<K> {
    bytes: Arc<Vec<u8>>,
    /// Where the next document begins.
    start: usize,
    members: vec::IntoIter<(K, usize)>,
}

impl<K> Default for Packer<K> {
    fn default() -> Packer<K> {
        Packer {
            full: VecDeque::new(),
            bytes: Vec::new(),
            members: Vec::new(),
        }
    }
}

impl<K> Packer<K> {
    pub fn push(&mut self, known: K, document: &RawDocument) {
        let document = document.as_bytes();
        if self.bytes.capacity() - self.bytes.len() < document.len() {
            self.close();
            self.bytes.reserve(SLAB_BYTES.max(document.len()));
        }
        self.bytes.extend_from_slice(document);
        self.members.push((known, self.bytes.len()));
    }

    /// The last slab is full.
    fn close(&mut self) {
        if !self.members.is_empty() {
            self.full.push_back(Slab {
                bytes: Arc::new(std::mem::take(&mut self.bytes)),
                start: 0,
                members: std::mem::take(&mut self.members).into_iter(),
            });
        }
    }

    pub fn finish(mut self) -> Packed<K> {
        self.close();
        Packed(self.full)
    }
}

impl<K> Packed<K> {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Has documents taken where they lie, until one is not.
    pub fn hand_on(&mut self, take: &mut dyn FnMut(&RawDocument) -> bool) {
        while let Some(slab) = self.0.front_mut() {
            while let Some((_, end)) = slab.members.as_slice().first() {
                let bytes = slab.bytes.get(slab.start..*end).unwrap_or_default();
                if let Ok(document) = RawDocument::from_bytes(bytes)
                    && !take(document)
                {
                    return;
                }
                slab.start = *end;
                slab.members.next();
            }
            self.0.pop_front();
        }
    }
}

impl<K> Iterator for Packed<K> {
    type Item = (K, Row);

    fn next(&mut self) -> Option<(K, Row)> {
        loop {
            let slab = self.0.front_mut()?;
            let Some((known, end)) = slab.members.next() else {
                self.0.pop_front();
                continue;
            };
            let start = std::mem::replace(&mut slab.start, end);
            let piece = Piece::new(slab.bytes.clone(), start..end);
            if let Some(document) = SlabDocument::new(piece) {
                return Some((known, Row::InSlab(document)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{RawDocumentBuf, rawdoc};

    #[test]
    fn documents_of_any_size_come_out_as_they_went_in() {
        let text = |length: i32| "x".repeat(length as usize);
        let sizes = [0, 10, 70_000, 64 * 1024, 3, 200_000];
        let documents: Vec<RawDocumentBuf> = (0..2000)
            .map(|n| rawdoc! { "n": n, "text": text(if n < 6 { sizes[n as usize] } else { n % 300 }) })
            .collect();
        let mut packer = Packer::default();
        for (number, document) in documents.iter().enumerate() {
            packer.push(number, document);
        }
        let packed = packer.finish();
        assert!(!packed.is_empty());
        let unpacked = packed.map(|(number, row)| (number, row.into_owned()));
        assert!(unpacked.eq(documents.into_iter().enumerate()));
    }

    #[test]
    fn what_is_not_taken_where_it_lies_comes_next() {
        let documents: Vec<RawDocumentBuf> = (0..5000).map(|n| rawdoc! { "n": n }).collect();
        let mut packer = Packer::default();
        documents
            .iter()
            .for_each(|document| packer.push((), document));
        let mut packed = packer.finish();
        let mut taken = Vec::new();
        while !packed.is_empty() {
            let room = taken.len() + 700;
            packed.hand_on(&mut |document| {
                let has_room = taken.len() < room;
                if has_room {
                    taken.push(document.to_owned());
                }
                has_room
            });
            taken.extend(packed.next().map(|((), row)| row.into_owned()));
        }
        assert_eq!(taken, documents);
    }

    #[test]
    fn nothing_comes_of_nothing() {
        assert!(Packer::<()>::default().finish().is_empty());
    }
}
