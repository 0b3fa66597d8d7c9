//! The giving side: reading a snapshot in pieces.

use std::ops::Bound;

use fjall::{AbstractTree, Readable};

use super::{Part, Totals, push};
use crate::record_id::RecordId;
use crate::{Snapshot, StorageError, keys};

/// Where a part can be cut: more would only make the plan long.
const CUTS_MAX: u64 = 4096;
const CUT_BYTES_MAX: usize = 1024;

/// What a piece of a part held. Its pairs are in the caller's buffer: repeated key length (u32),
/// key, value length (u32), value; little-endian.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// The last key; the next chunk begins after it. `None` after the last chunk of the range.
    pub next: Option<Vec<u8>>,
    pub keys: u64,
    /// Of the pairs, see [`super::checksum`].
    pub checksum: u32,
}

impl Snapshot {
    /// Appends to `pairs` what lies in `part` after the key `after` (from the beginning on for
    /// `None`) and up to and including `until`, in key order, until that is about `bytes`.
    pub fn export(
        &self,
        part: Part,
        after: Option<&[u8]>,
        until: Option<&[u8]>,
        bytes: usize,
        pairs: &mut Vec<u8>,
    ) -> Result<Chunk, StorageError> {
        let lower = after.map_or(Bound::Unbounded, |key| Bound::Excluded(key.to_vec()));
        let upper = until.map_or(Bound::Unbounded, |key| Bound::Included(key.to_vec()));
        let start = pairs.len();
        let mut chunk = Chunk {
            next: None,
            keys: 0,
            checksum: 0,
        };
        // The engine asserts that a range does not end before it begins.
        let is_empty = matches!((after, until), (Some(after), Some(until)) if after >= until);
        if !is_empty {
            let keyspace = self.part(part);
            for guard in self.view.range::<Vec<u8>, _>(keyspace, (lower, upper)) {
                let (key, value) = guard.into_inner()?;
                push(pairs, &key);
                push(pairs, &value);
                chunk.keys += 1;
                if pairs.len() - start >= bytes {
                    chunk.next = Some(key.to_vec());
                    break;
                }
            }
        }
        chunk.checksum = super::checksum(&pairs[start..]);
        Ok(chunk)
    }

    /// Keys at which `part` can be cut so that about `bytes` lie between two, in key order.
    pub fn cuts(&self, part: Part, bytes: u64) -> Result<Vec<Vec<u8>>, StorageError> {
        let bytes = bytes.max(self.export_bytes(part) / CUTS_MAX).max(1);
        match part {
            Part::Records => self.record_cuts(bytes),
            Part::Indexes | Part::Meta => Ok(self.table_cuts(part, bytes)),
        }
    }

    /// Within a collection record ids are about evenly spread.
    fn record_cuts(&self, bytes: u64) -> Result<Vec<Vec<u8>>, StorageError> {
        let catalog = self.engine.catalog();
        let mut collections: Vec<_> = catalog.collections().collect();
        collections.sort_unstable_by_key(|collection| collection.id);
        let mut cuts = Vec::new();
        let mut gathered = 0;
        for collection in collections {
            let size = collection.bytes();
            gathered += size;
            if gathered < bytes {
                continue;
            }
            gathered = 0;
            // The ids of a clustered collection may lie anywhere: it is one slice.
            let last = self.last_record_id(collection.id)?;
            let last = last.and_then(|last| last.as_number()).unwrap_or(0);
            let pieces = size.div_ceil(bytes).min(last);
            for piece in 1..pieces {
                let at = u128::from(last) * u128::from(piece) / u128::from(pieces);
                let at = RecordId::number(at as u64);
                cuts.push(keys::record_key(collection.id, &at));
            }
            cuts.push(keys::end_of_records(collection.id));
        }
        Ok(cuts)
    }

    /// As the engine's tables tell it, which costs no reading.
    fn table_cuts(&self, part: Part, bytes: u64) -> Vec<Vec<u8>> {
        let version = self.part(part).tree.current_version();
        let mut tables: Vec<(&[u8], u64)> = version
            .iter_tables()
            .map(|table| {
                let known = &table.metadata;
                (&known.key_range.max()[..], known.file_size)
            })
            .collect();
        tables.sort_unstable();
        let mut cuts: Vec<Vec<u8>> = Vec::new();
        let mut gathered = 0;
        for (key, size) in tables {
            gathered += size;
            let is_new = cuts.last().is_none_or(|last| &last[..] < key);
            if gathered >= bytes && is_new && key.len() <= CUT_BYTES_MAX {
                cuts.push(key.to_vec());
                gathered = 0;
            }
        }
        cuts
    }

    /// About how many bytes [`Snapshot::export`] will hand out for a part, as the catalog counts
    /// them.
    pub fn export_bytes(&self, part: Part) -> u64 {
        const PAIR_BYTES: u64 = 8;
        // A collection's or an index's, and a record's.
        const ID_BYTES: u64 = 12;
        let catalog = self.engine.catalog();
        let sum = |of: &dyn Fn(&crate::Collection) -> u64| -> u64 {
            catalog.collections().map(|collection| of(collection)).sum()
        };
        match part {
            Part::Records => sum(&|collection| {
                let each = PAIR_BYTES + ID_BYTES;
                collection.bytes() + each * collection.documents()
            }),
            Part::Indexes => sum(&|collection| {
                let each = (PAIR_BYTES + ID_BYTES) * collection.documents();
                let indexes = collection.indexes.iter();
                indexes.map(|index| index.key_bytes() + each).sum()
            }),
            Part::Meta => catalog.collections().count() as u64 * 512,
        }
    }

    /// Counts what lies under the collection or index `id`. Reads all of it.
    pub fn count(&self, part: Part, id: u32) -> Result<Totals, StorageError> {
        let bounds = (
            Bound::Included(id.to_be_bytes().to_vec()),
            keys::end_of_id(id),
        );
        let mut totals = Totals::default();
        for guard in self.view.range::<Vec<u8>, _>(self.part(part), bounds) {
            let (key, value) = guard.into_inner()?;
            totals.add(part, &key, &value);
        }
        Ok(totals)
    }

    fn part(&self, part: Part) -> &fjall::Keyspace {
        match part {
            Part::Records => &self.keyspaces.records,
            Part::Indexes => &self.keyspaces.indexes,
            Part::Meta => &self.keyspaces.meta,
        }
    }
}
