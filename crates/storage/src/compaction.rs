//! Giving disk space back that is not used: all tables are merged.

use fjall::AbstractTree;
use fjall::Keyspace;

use crate::StorageError;
use crate::store::Store;

impl Store {
    /// Merges all tables, so that what was removed or replaced, and is read by no snapshot any more, takes
    /// no space. The bytes on the disk that this has freed. As much as there is is written meanwhile.
    pub fn compact(&self) -> Result<u64, StorageError> {
        let keyspaces = self.engine().keyspaces();
        let all = [&keyspaces.records, &keyspaces.indexes, &keyspaces.meta];
        let bytes = || {
            all.iter()
                .map(|keyspace| keyspace.disk_space())
                .sum::<u64>()
        };
        // What is in memory still would lie over what it replaces.
        self.persist()?;
        let before = bytes();
        for keyspace in all {
            keyspace.major_compact()?;
        }
        Ok(before.saturating_sub(bytes()))
    }

    /// About how many bytes on the disk [`Store::compact`] would free. Entries are taken to be of one
    /// size: what matters is how many there are beside those that are read.
    pub fn recoverable_bytes(&self) -> u64 {
        let keyspaces = self.engine().keyspaces();
        let catalog = self.catalog();
        let records = catalog
            .collections()
            .map(|collection| collection.documents());
        let live_records: u64 = records.sum();
        let indexes = &keyspaces.indexes;
        share(&keyspaces.records, live_records) + share(indexes, live_entries(indexes))
    }
}

/// What of a keyspace's disk space is not needed for `live` of its entries.
fn share(keyspace: &Keyspace, live: u64) -> u64 {
    let entries = keyspace.approximate_len() as u64;
    let dead = entries.saturating_sub(live);
    let bytes = u128::from(keyspace.disk_space()) * u128::from(dead) / u128::from(entries.max(1));
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// How many keys an index has is known for none: each removal stands beside the key that it removes.
fn live_entries(keyspace: &Keyspace) -> u64 {
    let removals = keyspace.tree.tombstone_count();
    (keyspace.approximate_len() as u64).saturating_sub(removals.saturating_mul(2))
}
