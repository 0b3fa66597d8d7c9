//! What collections were called, by the index of the log.
//!
//! Entries name collections by id, and the catalog knows only what exists now. Who reads old
//! entries asks here: each id has its names in the order of the log. They lie in meta, written in
//! the batch of the entry that changed them, and in memory. A collection that was dropped is
//! forgotten once the log begins after that.

use std::collections::HashMap;
use std::sync::Arc;

use banyan_storage::{Batch, CatalogChange, CollectionId, Namespace, Snapshot, StorageError};
use bson::RawDocument;

/// Prefix of the keys in meta: then the collection's id and the index, big-endian.
const META_PREFIX: &[u8] = b"name/";

/// What a collection was from some index on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name {
    pub namespace: Namespace,
    pub uuid: [u8; 16],
    /// Change streams may show a document as it was before a change.
    pub pre_images: bool,
}

/// In the order of the indexes from which on they hold; `None`: it was dropped.
type History = Vec<(u64, Option<Arc<Name>>)>;

#[derive(Debug, Default)]
pub struct Names {
    by_id: HashMap<CollectionId, History>,
}

impl Names {
    pub fn load(snapshot: &Snapshot) -> Result<Names, StorageError> {
        let mut names = Names::default();
        for found in snapshot.scan_meta(META_PREFIX) {
            let (key, value) = found?;
            let Some((id, index)) = parse_key(&key) else {
                return Err(damaged("a key that is none"));
            };
            let Some(name) = decode(&value) else {
                return Err(damaged("a name that is none"));
            };
            names.by_id.entry(id).or_default().push((index, name));
        }
        Ok(names)
    }

    /// What the collection was when the entry at `index` was applied.
    pub fn at(&self, id: CollectionId, index: u64) -> Option<&Arc<Name>> {
        let known = self.by_id.get(&id)?;
        let after = known.partition_point(|(from, _)| *from <= index);
        // Of a collection that came from elsewhere there may be nothing older.
        let (_, name) = known.get(after.saturating_sub(1))?;
        name.as_ref()
    }

    /// What the collection with this UUID was at `index`, if the entry there has not made it so.
    pub fn settled(&self, uuid: &[u8; 16], index: u64) -> Option<&Arc<Name>> {
        self.by_id.values().find_map(|history| {
            let after = history.partition_point(|(from, _)| *from <= index);
            let (from, name) = history.get(after.checked_sub(1)?)?;
            name.as_ref()
                .filter(|name| name.uuid == *uuid && *from < index)
        })
    }

    /// Takes note of a change at `index`.
    pub fn note(&mut self, batch: &mut Batch, index: u64, change: &CatalogChange) {
        let id = change.collection();
        let known = self.by_id.get(&id).and_then(|known| known.last());
        let known = known.and_then(|(_, name)| name.clone());
        let name = match (change, known) {
            (
                CatalogChange::CreateCollection {
                    namespace,
                    uuid,
                    options,
                    ..
                },
                _,
            ) => Some(Name {
                namespace: namespace.clone(),
                uuid: *uuid,
                pre_images: keeps_pre_images(options),
            }),
            (CatalogChange::RenameCollection { to, .. }, Some(known)) => Some(Name {
                namespace: to.clone(),
                ..(*known).clone()
            }),
            (CatalogChange::SetOptions { options, .. }, Some(known))
                if keeps_pre_images(options) != known.pre_images =>
            {
                Some(Name {
                    pre_images: !known.pre_images,
                    ..(*known).clone()
                })
            }
            (CatalogChange::DropCollection { .. }, Some(_)) => None,
            _ => return,
        };
        batch.put_meta(&meta_key(id, index), &encode(name.as_ref()));
        let names = self.by_id.entry(id).or_default();
        names.retain(|(from, _)| *from != index);
        names.push((index, name.map(Arc::new)));
    }

    /// Forgets the collections that were dropped before the log begins.
    pub fn forget_before(&mut self, batch: &mut Batch, log_begins: u64) {
        self.by_id.retain(|id, names| {
            let dropped = names
                .last()
                .is_some_and(|(at, name)| name.is_none() && *at < log_begins);
            if dropped {
                for (index, _) in names {
                    batch.delete_meta(&meta_key(*id, *index));
                }
            }
            !dropped
        });
    }
}

/// Whether a collection's options ask for `changeStreamPreAndPostImages`.
pub fn keeps_pre_images(options: &RawDocument) -> bool {
    options
        .get_document("changeStreamPreAndPostImages")
        .and_then(|images| images.get_bool("enabled"))
        .unwrap_or(false)
}

fn damaged(reason: &str) -> StorageError {
    StorageError::Damaged {
        place: "the names of collections".to_owned(),
        reason: reason.to_owned(),
    }
}

fn meta_key(id: CollectionId, index: u64) -> Vec<u8> {
    [META_PREFIX, &id.to_be_bytes(), &index.to_be_bytes()].concat()
}

fn parse_key(key: &[u8]) -> Option<(CollectionId, u64)> {
    let (id, index) = key.strip_prefix(META_PREFIX)?.split_first_chunk()?;
    let index = <[u8; 8]>::try_from(index).ok()?;
    Some((CollectionId::from_be_bytes(*id), u64::from_be_bytes(index)))
}

/// A flag, the UUID and the namespace; nothing for a collection that was dropped.
fn encode(name: Option<&Name>) -> Vec<u8> {
    name.map_or_else(Vec::new, |name| {
        let flag = [u8::from(name.pre_images)];
        [&flag, &name.uuid[..], name.namespace.as_str().as_bytes()].concat()
    })
}

fn decode(bytes: &[u8]) -> Option<Option<Arc<Name>>> {
    let Some((flag, rest)) = bytes.split_first() else {
        return Some(None);
    };
    let (uuid, namespace) = rest.split_first_chunk()?;
    let namespace = Namespace::parse(std::str::from_utf8(namespace).ok()?)?;
    Some(Some(Arc::new(Name {
        namespace,
        uuid: *uuid,
        pre_images: *flag != 0,
    })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use banyan_storage::{Store, StoreOptions};
    use bson::rawdoc;

    #[test]
    fn a_collection_is_found_under_the_name_it_had() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), &StoreOptions::default()).unwrap();
        let mut names = Names::default();
        let mut batch = Batch::new();
        let creation = CatalogChange::CreateCollection {
            id: 7,
            namespace: Namespace::new("db", "a"),
            uuid: [1; 16],
            options: rawdoc! {},
            indexes: Vec::new(),
        };
        let renaming = CatalogChange::RenameCollection {
            id: 7,
            to: Namespace::new("db", "b"),
        };
        let options = rawdoc! { "changeStreamPreAndPostImages": { "enabled": true } };
        names.note(&mut batch, 10, &creation);
        names.note(&mut batch, 20, &renaming);
        names.note(
            &mut batch,
            25,
            &CatalogChange::SetOptions { id: 7, options },
        );
        names.note(&mut batch, 30, &CatalogChange::DropCollection { id: 7 });
        store.commit(batch).unwrap();

        let loaded = Names::load(&store.snapshot()).unwrap();
        for names in [&names, &loaded] {
            let at = |index| {
                let name = names.at(7, index)?;
                Some((name.namespace.as_str().to_owned(), name.pre_images))
            };
            assert_eq!(at(11), Some(("db.a".to_owned(), false)));
            assert_eq!(at(20), Some(("db.b".to_owned(), false)));
            assert_eq!(at(29), Some(("db.b".to_owned(), true)));
            assert_eq!(at(31), None);
            assert!(names.at(8, 11).is_none());
        }

        let mut batch = Batch::new();
        names.forget_before(&mut batch, 30);
        assert!(names.at(7, 11).is_some());
        names.forget_before(&mut batch, 31);
        store.commit(batch).unwrap();
        assert!(names.at(7, 11).is_none());
        let loaded = Names::load(&store.snapshot()).unwrap();
        assert!(loaded.by_id.is_empty());
    }
}
