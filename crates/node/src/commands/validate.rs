//! `validate`: reads everything of a collection and holds records, indexes and counts against each
//! other. Each record's keys must be in each index, and each index entry must belong to a record that
//! has its key.

use banyan_access::check::Access;
use banyan_document::is_true;
use banyan_document::key::Keys;
use banyan_execution::Interrupt;
use banyan_query::Validator;
use banyan_replication::machine::effects;
use banyan_replication::write::validation::{self, Action};
use banyan_storage::{Collection, Index, KeyRange, Record, RecordId, Snapshot, StorageError};
use banyan_wire::{CommandError, ErrorCode};
use bson::raw::CString;
use bson::spec::BinarySubtype;
use bson::{Binary, RawArrayBuf, RawDocument, RawDocumentBuf, cstr, rawdoc};

use super::coll_stats::number;
use super::table::{BoxFuture, CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;
use crate::errors;
use crate::params;
use crate::views;

pub static SPEC: CommandSpec = CommandSpec::new("validate", Run::Future(run))
    .access(Access::Collection(banyan_security::Action::Validate))
    .needs(Needs::Data)
    .fields(&[
        "full",
        "background",
        "metadata",
        "enforceFastCount",
        "repair",
        "checkBSONConformance",
    ])
    .ignored(&["scandata"])
    .lenient()
    .computes();

/// Between two looks whether it has to end, so many bytes may pass; a record counts as some more.
const LOOK_BYTES: usize = 256 * 1024;
const RECORD_BYTES: usize = 4096;

/// Listed of each kind, at most; all are counted.
const LISTED_MAX: usize = 100;
/// What is listed together takes no more than about this: the reply has to fit.
const LISTED_BYTES_MAX: usize = 1 << 20;

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move {
        let namespace = format!("{}.{}", ctx.database(), ctx.existing_collection()?);
        let metadata_only = check_options(ctx)?;
        let (catalog, snapshot) = ctx.node.replica.view();
        let Some(collection) = catalog.get(ctx.database(), ctx.existing_collection()?) else {
            if views::refuse_named(ctx).is_err() {
                return Err(CommandError::new(
                    ErrorCode::CommandNotSupportedOnView,
                    "Cannot validate a view",
                ));
            }
            return Err(CommandError::new(
                ErrorCode::NamespaceNotFound,
                format!("Collection '{namespace}' does not exist to validate."),
            ));
        };
        let mut findings = Findings::new(collection);
        if metadata_only {
            return Ok(findings.reply(&namespace, collection, true));
        }
        let interrupt = ctx.interrupt();
        let validator = validation::of_collection(collection, || ctx.budget())?;
        let validator = validator.as_deref();
        ctx.compute(|| findings.inspect(collection, validator, &snapshot, interrupt))
            .await?;
        Ok(findings.reply(&namespace, collection, false))
    })
}

/// Whether only the definitions are looked at.
fn check_options(ctx: &CommandContext<'_>) -> Result<bool, CommandError> {
    let set = |name| ctx.field(name).is_some_and(|field| is_true(field.value));
    let refuse = |message: String| Err(CommandError::new(ErrorCode::InvalidOptions, message));
    if set("background") {
        for other in ["full", "enforceFastCount", "repair"] {
            if set(other) {
                return refuse(format!(
                    "Running the validate command with both {{ background: true }} and \
                     {{ {other}: true }} is not supported."
                ));
            }
        }
    }
    if set("repair") {
        return Err(CommandError::new(
            ErrorCode::NotImplemented,
            "validate does not repair: a damaged member is given a fresh copy by its set",
        ));
    }
    let others = ["full", "background", "enforceFastCount"];
    if set("metadata") && others.into_iter().any(set) {
        return refuse(
            "Running the validate command with { metadata: true } is not supported with any other \
             options"
                .to_owned(),
        );
    }
    Ok(set("metadata"))
}

#[derive(Default)]
struct Findings {
    records: u64,
    invalid: u64,
    /// Records that the validator does not accept.
    non_compliant: u64,
    corrupt: Vec<RecordId>,
    indexes: Vec<IndexFindings>,
    missing: Listed,
    extra: Listed,
    errors: Vec<String>,
    warnings: Vec<String>,
}

#[derive(Default, Clone)]
struct IndexFindings {
    keys: u64,
    missing: u64,
    extra: u64,
    /// A record that has several keys, or an array on the way, where the index says none has.
    unmarked_multikey: Option<RecordId>,
}

impl IndexFindings {
    fn is_valid(&self) -> bool {
        self.missing + self.extra == 0 && self.unmarked_multikey.is_none()
    }
}

/// The first of many.
#[derive(Default)]
struct Listed {
    documents: Vec<RawDocumentBuf>,
    bytes: usize,
    left_out: bool,
}

impl Listed {
    fn push(&mut self, document: RawDocumentBuf) {
        let bytes = document.as_bytes().len();
        if self.documents.len() >= LISTED_MAX || self.bytes + bytes > LISTED_BYTES_MAX {
            self.left_out = true;
            return;
        }
        self.bytes += bytes;
        self.documents.push(document);
    }

    fn array(&self) -> RawArrayBuf {
        let mut array = RawArrayBuf::new();
        for document in &self.documents {
            array.push(document.clone());
        }
        array
    }
}

impl Findings {
    fn new(collection: &Collection) -> Findings {
        Findings {
            indexes: vec![IndexFindings::default(); collection.indexes.len()],
            ..Findings::default()
        }
    }

    fn inspect(
        &mut self,
        collection: &Collection,
        validator: Option<&Validator>,
        snapshot: &Snapshot,
        interrupt: &Interrupt,
    ) -> Result<(), CommandError> {
        let (mut bytes, mut since_look) = (0, 0);
        for entry in snapshot.records(collection.id, .., false) {
            let (id, record) = match entry {
                Ok(entry) => entry,
                Err(error @ StorageError::Damaged { .. }) => {
                    self.spoiled(None, error.to_string());
                    continue;
                }
                Err(error) => return Err(errors::storage(error)),
            };
            self.records += 1;
            bytes += record.as_bytes().len() as i64;
            since_look += RECORD_BYTES + record.as_bytes().len();
            if since_look >= LOOK_BYTES {
                since_look = 0;
                interrupt.check().map_err(errors::query)?;
            }
            if let Err(error) = banyan_document::validate::validate(record.as_bytes()) {
                let what = format!("record {id}: {error}");
                self.spoiled(Some(id), what);
                continue;
            }
            if let Some(validator) = validator
                && !validator.accepts(&record).map_err(errors::query)?
            {
                self.non_compliant += 1;
            }
            for (at, index) in collection.indexes.iter().enumerate() {
                self.look_up(at, index, snapshot, &id, &record)?;
            }
        }
        for (at, index) in collection.indexes.iter().enumerate() {
            self.scan(at, index, collection, snapshot, interrupt)?;
        }
        self.compare_counts(collection, snapshot, bytes)
    }

    fn spoiled(&mut self, record: Option<RecordId>, what: String) {
        self.invalid += 1;
        if self.corrupt.len() < LISTED_MAX {
            self.corrupt.extend(record);
        }
        self.error(what);
    }

    fn error(&mut self, what: String) {
        if self.errors.len() < LISTED_MAX {
            self.errors.push(what);
        }
    }

    /// Every key of a record must be in the index.
    fn look_up(
        &mut self,
        at: usize,
        index: &Index,
        snapshot: &Snapshot,
        id: &RecordId,
        record: &RawDocument,
    ) -> Result<(), CommandError> {
        let Keys { keys, arrays } = match effects::keys_of(index, record) {
            Ok(keys) => keys,
            Err(error) => {
                self.indexes[at].missing += 1;
                self.error(format!("index {}, record {id}: {error}", index.name));
                return Ok(());
            }
        };
        if !index.arrays().contains(&arrays) {
            let unmarked = &mut self.indexes[at].unmarked_multikey;
            unmarked.get_or_insert_with(|| id.clone());
        }
        for key in keys {
            let found = snapshot.has_index_key(index, &key, id);
            if found.map_err(errors::storage)? {
                continue;
            }
            self.indexes[at].missing += 1;
            let mut missing = entry_document(index, id);
            if let Ok(Some(value)) = record.get("_id") {
                let id_key = RawDocumentBuf::from_iter([(cstr!("_id"), value)]);
                missing.append(cstr!("idKey"), id_key);
            }
            append_key(&mut missing, index, Some(record), &key);
            self.missing.push(missing);
        }
        Ok(())
    }

    /// Every entry of the index must be a key of the record that it points to.
    fn scan(
        &mut self,
        at: usize,
        index: &Index,
        collection: &Collection,
        snapshot: &Snapshot,
        interrupt: &Interrupt,
    ) -> Result<(), CommandError> {
        for entry in snapshot.scan_index(index, KeyRange::all(), false) {
            let (key, id) = match entry {
                Ok(entry) => entry,
                Err(error @ StorageError::Damaged { .. }) => {
                    self.indexes[at].extra += 1;
                    self.error(error.to_string());
                    continue;
                }
                Err(error) => return Err(errors::storage(error)),
            };
            self.indexes[at].keys += 1;
            if self.indexes[at].keys.is_multiple_of(64) {
                interrupt.check().map_err(errors::query)?;
            }
            let record = match snapshot.record(collection.id, &id) {
                Ok(record) => record,
                // Counted where the records were read.
                Err(StorageError::Damaged { .. }) => continue,
                Err(error) => return Err(errors::storage(error)),
            };
            if !record
                .as_ref()
                .is_some_and(|record| has_key(index, record, &key))
            {
                self.indexes[at].extra += 1;
                let mut extra = entry_document(index, &id);
                append_key(&mut extra, index, record.as_deref(), &key);
                self.extra.push(extra);
            }
        }
        Ok(())
    }

    fn compare_counts(
        &mut self,
        collection: &Collection,
        snapshot: &Snapshot,
        bytes: i64,
    ) -> Result<(), CommandError> {
        let (documents, counted) = snapshot.counts(collection.id).map_err(errors::storage)?;
        let found = i64::try_from(self.records).unwrap_or(i64::MAX);
        let namespace = &collection.namespace;
        // Counts change with the records, atomically: even without `enforceFastCount` a difference
        // is damage.
        if documents != found {
            self.error(format!(
                "fast count ({documents}) does not match number of records ({found}) for collection \
                 '{namespace}'"
            ));
        }
        if counted != bytes && self.invalid == 0 {
            self.error(format!(
                "data size ({counted}) does not match the bytes of the records ({bytes}) for \
                 collection '{namespace}'"
            ));
        }
        Ok(())
    }

    /// Puts what was found into words.
    fn conclude(&mut self, collection: &Collection) {
        let missing: u64 = self.indexes.iter().map(|found| found.missing).sum();
        let extra: u64 = self.indexes.iter().map(|found| found.extra).sum();
        for (count, kind, listed) in [
            (missing, "missing", &self.missing),
            (extra, "extra", &self.extra),
        ] {
            if count > 0 {
                self.warnings
                    .push(format!("Detected {count} {kind} index entries."));
            }
            if listed.left_out {
                self.warnings.push(format!(
                    "Not all {kind} index entry inconsistencies are listed due to size limitations."
                ));
            }
        }
        if self.non_compliant > 0 {
            let what = "Detected one or more documents not compliant with the collection's schema.";
            match Action::of(&collection.options) {
                Action::Warn => self.warnings.push(what.to_owned()),
                Action::Error => self.error(what.to_owned()),
            }
        }
        for (index, found) in collection.indexes.iter().zip(self.indexes.clone()) {
            if let Some(record) = &found.unmarked_multikey {
                self.error(format!(
                    "Index {} is not multi-key, but a multikey path is present in record {record}",
                    index.name
                ));
            }
            if !found.is_valid() {
                self.error(format!(
                    "Index with name '{}' has inconsistencies.",
                    index.name
                ));
            }
        }
    }

    fn reply(
        mut self,
        namespace: &str,
        collection: &Collection,
        metadata_only: bool,
    ) -> RawDocumentBuf {
        self.conclude(collection);
        let mut reply = rawdoc! { "ns": namespace, "uuid": params::uuid(&collection.uuid) };
        if !metadata_only {
            self.append_contents(collection, &mut reply);
        }
        let corrupt: RawArrayBuf = self.corrupt.iter().map(RecordId::to_bson).collect();
        let warnings: RawArrayBuf = self.warnings.iter().map(String::as_str).collect();
        let errors: RawArrayBuf = self.errors.iter().map(String::as_str).collect();
        reply.append(cstr!("valid"), self.errors.is_empty());
        reply.append(cstr!("repaired"), false);
        reply.append(cstr!("warnings"), warnings);
        reply.append(cstr!("errors"), errors);
        reply.append(cstr!("extraIndexEntries"), self.extra.array());
        reply.append(cstr!("missingIndexEntries"), self.missing.array());
        reply.append(cstr!("corruptRecords"), corrupt);
        reply.append(cstr!("ok"), 1.0);
        reply
    }

    fn append_contents(&self, collection: &Collection, reply: &mut RawDocumentBuf) {
        let mut per_index = RawDocumentBuf::new();
        let mut details = RawDocumentBuf::new();
        let mut indexes: Vec<_> = collection.indexes.iter().zip(&self.indexes).collect();
        indexes.sort_by(|(one, _), (other, _)| one.name.cmp(&other.name));
        for (index, found) in indexes {
            // A name with a zero byte could not have been given.
            let Ok(name) = CString::try_from(index.name.as_str()) else {
                continue;
            };
            per_index.append(name.clone(), number(long(found.keys)));
            details.append(name, rawdoc! { "valid": found.is_valid() });
        }
        reply.append(cstr!("nInvalidDocuments"), number(long(self.invalid)));
        let non_compliant = number(long(self.non_compliant));
        reply.append(cstr!("nNonCompliantDocuments"), non_compliant);
        reply.append(cstr!("nrecords"), number(long(self.records)));
        let count = i32::try_from(collection.indexes.len()).unwrap_or(i32::MAX);
        reply.append(cstr!("nIndexes"), count);
        reply.append(cstr!("keysPerIndex"), per_index);
        reply.append(cstr!("indexDetails"), details);
    }
}

fn has_key(index: &Index, record: &Record, key: &[u8]) -> bool {
    let keys = effects::keys_of(index, record).unwrap_or_default().keys;
    keys.iter().any(|known| known[..] == *key)
}

fn entry_document(index: &Index, id: &RecordId) -> RawDocumentBuf {
    rawdoc! { "indexName": index.name.as_str(), "recordId": id.to_bson() }
}

/// The values behind a key, if the record still shows them, and its bytes otherwise.
fn append_key(
    document: &mut RawDocumentBuf,
    index: &Index,
    record: Option<&RawDocument>,
    key: &[u8],
) {
    match record.and_then(|record| index.kind.value_of_key(record, key)) {
        Some(values) => document.append(cstr!("indexKey"), values),
        None => document.append(
            cstr!("keyBytes"),
            Binary {
                subtype: BinarySubtype::Generic,
                bytes: key.to_vec(),
            },
        ),
    }
}

fn long(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use banyan_document::key::Key;

    use banyan_storage::{Batch, CatalogChange, IndexDefinition, Namespace, Store, StoreOptions};

    use super::*;

    fn id(number: u64) -> RecordId {
        RecordId::number(number)
    }

    /// Ten documents `{_id: n, a: n}` with an index on `a`.
    fn ten(store: &Store) -> Arc<Collection> {
        let namespace = Namespace::new("db", "c");
        let mut indexes = Vec::new();
        for name in ["_id", "a"] {
            let key = RawDocumentBuf::from_iter([(CString::try_from(name).unwrap(), 1)]);
            let spec = rawdoc! {
                "v": 2, "key": key, "name": if name == "a" { "a_1" } else { "_id_" },
            };
            let id = store.allocate_id();
            indexes.push(IndexDefinition { id, spec });
        }
        let mut batch = Batch::new();
        batch.change_catalog(CatalogChange::CreateCollection {
            id: store.allocate_id(),
            namespace: namespace.clone(),
            uuid: [1; 16],
            options: rawdoc! {},
            indexes,
        });
        store.commit(batch).unwrap();
        let collection = store.catalog().find(&namespace).unwrap().clone();
        let mut batch = Batch::new();
        for n in 1..=10_i32 {
            let document = rawdoc! { "_id": n, "a": n };
            let record = id(n as u64);
            batch.insert_record(&collection, &record, &document);
            for index in &collection.indexes {
                for key in effects::keys_of(index, &document).unwrap().keys {
                    batch.put_index_key(&collection, index, &key, &record);
                }
            }
        }
        store.commit(batch).unwrap();
        collection
    }

    fn validated(store: &Store, collection: &Collection) -> bson::Document {
        let interrupt = Interrupt::new(Arc::new(AtomicBool::new(false)), None);
        let mut findings = Findings::new(collection);
        findings
            .inspect(collection, None, &store.snapshot(), &interrupt)
            .unwrap();
        let reply = findings.reply("db.c", collection, false);
        bson::Document::try_from(reply).unwrap()
    }

    fn with_store(test: impl FnOnce(&Store, &Arc<Collection>)) {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), &StoreOptions::default()).unwrap();
        test(&store, &ten(&store));
    }

    fn key(collection: &Collection, n: i32) -> Key {
        let document = rawdoc! { "a": n };
        let mut keys = effects::keys_of(&collection.indexes[1], &document).unwrap();
        keys.keys.remove(0)
    }

    #[test]
    fn a_sound_collection_is_valid() {
        with_store(|store, collection| {
            let reply = validated(store, collection);
            assert!(reply.get_bool("valid").unwrap(), "{reply}");
            assert_eq!(reply.get_i32("nrecords").ok(), Some(10));
            assert!(reply.get_array("warnings").unwrap().is_empty());
        });
    }

    #[test]
    fn a_missing_and_an_extra_entry_are_both_found_when_totals_agree() {
        with_store(|store, collection| {
            let by_a = &collection.indexes[1];
            let mut batch = Batch::new();
            batch.delete_index_key(collection, by_a, &key(collection, 3), &id(3));
            batch.put_index_key(collection, by_a, &key(collection, 77), &id(4));
            store.commit(batch).unwrap();
            let reply = validated(store, collection);
            assert!(!reply.get_bool("valid").unwrap(), "{reply}");
            let missing = reply.get_array("missingIndexEntries").unwrap();
            let expected = bson::doc! {
                "indexName": "a_1", "recordId": 3_i64, "idKey": { "_id": 3 }, "indexKey": { "a": 3 },
            };
            assert_eq!(missing, &vec![expected.into()]);
            let extra = reply.get_array("extraIndexEntries").unwrap();
            assert_eq!(extra.len(), 1, "{reply}");
            let extra = extra[0].as_document().unwrap();
            assert_eq!(extra.get_str("indexName").ok(), Some("a_1"));
            assert_eq!(extra.get_i64("recordId").ok(), Some(4));
            let details = reply.get_document("indexDetails").unwrap();
            assert_eq!(
                details.get_document("a_1").unwrap().get_bool("valid").ok(),
                Some(false)
            );
            assert_eq!(
                details.get_document("_id_").unwrap().get_bool("valid").ok(),
                Some(true)
            );
            let warnings = format!("{:?}", reply.get_array("warnings").unwrap());
            assert!(
                warnings.contains("Detected 1 missing index entries."),
                "{warnings}"
            );
            assert!(
                warnings.contains("Detected 1 extra index entries."),
                "{warnings}"
            );
        });
    }

    #[test]
    fn an_entry_without_a_record_is_extra() {
        with_store(|store, collection| {
            let by_a = &collection.indexes[1];
            let mut batch = Batch::new();
            batch.put_index_key(collection, by_a, &key(collection, 3), &id(999));
            store.commit(batch).unwrap();
            let reply = validated(store, collection);
            assert_eq!(reply.get_array("extraIndexEntries").unwrap().len(), 1);
            assert!(reply.get_array("missingIndexEntries").unwrap().is_empty());
        });
    }

    #[test]
    fn a_wrong_count_and_an_unmarked_array_are_found() {
        with_store(|store, collection| {
            let before = rawdoc! { "_id": 5, "a": 5 };
            let after = rawdoc! { "_id": 5, "a": [5] };
            let mut batch = Batch::new();
            batch.replace_record(collection, &id(5), &before, &after);
            // Takes the count down, and leaves the record.
            batch.delete_record(collection, &id(999), &rawdoc! {});
            store.commit(batch).unwrap();
            let reply = validated(store, collection);
            let errors = format!("{:?}", reply.get_array("errors").unwrap());
            let count = "fast count (9) does not match number of records (10)";
            assert!(errors.contains(count), "{errors}");
            assert!(errors.contains("Index a_1 is not multi-key"), "{errors}");
        });
    }

    #[test]
    fn what_is_listed_is_bounded_and_all_of_it_is_counted() {
        with_store(|store, collection| {
            let by_a = &collection.indexes[1];
            let mut batch = Batch::new();
            for n in 1000..1300 {
                batch.put_index_key(collection, by_a, &key(collection, n), &id(n as u64));
            }
            store.commit(batch).unwrap();
            let reply = validated(store, collection);
            let extra = reply.get_array("extraIndexEntries").unwrap();
            assert_eq!(extra.len(), LISTED_MAX);
            let warnings = format!("{:?}", reply.get_array("warnings").unwrap());
            assert!(warnings.contains("Detected 300 extra"), "{warnings}");
            assert!(warnings.contains("Not all extra"), "{warnings}");
        });
    }
}
