//! Operations as documents of MongoDB's oplog.

use banyan_consensus::Position;
use banyan_query::diff;
use banyan_storage::{CatalogChange, CollectionId, Namespace};
use banyan_wire::params;
use bson::raw::CStr;
use bson::{
    DateTime, RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, Timestamp, cstr, rawdoc,
};

use crate::clock;
use crate::entry::{Entry, EntryError, Operation, Style};
use crate::machine::{Applied, Machine};
use crate::sessions::{SessionStamp, StatementOutcome};

/// The documents of one entry, in order.
pub fn entry(
    machine: &Machine,
    position: Position,
    bytes: &[u8],
) -> Result<Vec<RawDocumentBuf>, EntryError> {
    let entry = Entry::decode(bytes)?;
    let statements = entry.session.as_ref().map(statement_ids);
    let mut documents = Vec::new();
    let mut previous = None;
    for (offset, operation) in entry.operations().enumerate() {
        let time = clock::from_bits(entry.header.first_time + offset as u64);
        let described = describe(machine, position.index, &operation?);
        let Some(described) = described else { continue };
        let statement = statements.as_ref().and_then(|ids| ids.get(offset));
        let stamp = entry.session.as_ref().zip(statement);
        documents.push(finish(
            described,
            stamp,
            previous,
            time,
            position.term,
            entry.wall_ms(),
        ));
        previous = Some(time);
    }
    Ok(documents)
}

/// In place of everything up to where a snapshot has left the state: its last time is known.
pub fn base(applied: &Applied) -> RawDocumentBuf {
    let note = rawdoc! {
        "op": "n", "ns": "", "o": { "msg": "fetched from another member up to here" },
    };
    let time = clock::from_bits(applied.time);
    finish(
        note,
        None,
        None,
        time,
        applied.position.term,
        applied.wall_ms,
    )
}

/// The statement of each operation of an entry.
fn statement_ids(stamp: &SessionStamp) -> Vec<i32> {
    let mut ids = Vec::new();
    for statement in &stamp.statements {
        let each = statement.first..statement.first.saturating_add_unsigned(statement.count);
        let operations = match &statement.outcome {
            StatementOutcome::Insert => 1,
            StatementOutcome::Update {
                upserted: Some(_), ..
            } => 1,
            StatementOutcome::Update { modified, .. } => *modified,
            StatementOutcome::Delete { deleted } => *deleted,
            StatementOutcome::FindAndModify { .. } => 1,
        };
        for id in each {
            ids.extend((0..operations).map(|_| id));
        }
    }
    ids
}

/// `op`, `ns`, `ui`, `o` and `o2`.
fn describe(machine: &Machine, index: u64, operation: &Operation<'_>) -> Option<RawDocumentBuf> {
    let change = |op: &str, collection: CollectionId| {
        let mut document = rawdoc! { "op": op };
        match machine.name_at(collection, index) {
            Some(name) => {
                document.append(cstr!("ns"), name.namespace.as_str());
                document.append(cstr!("ui"), params::uuid(&name.uuid));
            }
            None => document.append(cstr!("ns"), ""),
        }
        document
    };
    Some(match operation {
        Operation::Insert {
            collection,
            document,
            ..
        } => {
            let mut described = change("i", *collection);
            described.append(cstr!("o"), *document);
            described.append(cstr!("o2"), id_of(document));
            described
        }
        Operation::Update {
            collection,
            before,
            after,
            style,
            ..
        } => {
            let mut described = change("u", *collection);
            described.append(cstr!("o"), update(before, after, style));
            described.append(cstr!("o2"), id_of(after));
            described
        }
        Operation::Delete {
            collection, before, ..
        } => {
            let mut described = change("d", *collection);
            described.append(cstr!("o"), id_of(before));
            described
        }
        Operation::Catalog(change, about) => return command(change, about),
        Operation::DropDatabase { name } => {
            rawdoc! { "op": "c", "ns": format!("{name}.$cmd"), "o": { "dropDatabase": 1 } }
        }
        Operation::SetConfig { document } => {
            let o = match document.get_i32("version").unwrap_or(0) {
                ..=1 => rawdoc! { "msg": "initiating set" },
                version => rawdoc! { "msg": "Reconfig set", "version": version },
            };
            rawdoc! { "op": "n", "ns": "", "o": o }
        }
        Operation::Noop { document } => {
            rawdoc! { "op": "n", "ns": "", "o": RawDocument::to_owned(document) }
        }
    })
}

fn update(before: &RawDocument, after: &RawDocument, style: &Style<'_>) -> RawDocumentBuf {
    let diff = match style {
        Style::Replacement => None,
        Style::Pipeline => diff::by_pipeline(before, after),
        Style::Modifiers { wholes } => Some(diff::by_operators(before, after, wholes)),
    };
    diff.map_or_else(
        || after.to_owned(),
        |diff| rawdoc! { "$v": 2, "diff": diff.to_oplog() },
    )
}

fn id_of(document: &RawDocument) -> RawDocumentBuf {
    let id = document.get("_id").ok().flatten();
    id.map_or_else(RawDocumentBuf::new, |id| rawdoc! { "_id": id })
}

/// `None` for what is part of another command.
fn command(change: &CatalogChange, about: &RawDocument) -> Option<RawDocumentBuf> {
    if about.get_bool("replaced").unwrap_or(false) {
        return None;
    }
    let namespace = match change {
        CatalogChange::CreateCollection { namespace, .. } => Some(namespace.clone()),
        _ => about.get_str("ns").ok().and_then(Namespace::parse),
    }?;
    let (o, o2) = objects(change, about, &namespace);
    let mut document = rawdoc! { "op": "c", "ns": format!("{}.$cmd", namespace.database()) };
    if let CatalogChange::CreateCollection { uuid, .. } = change {
        document.append(cstr!("ui"), params::uuid(uuid));
    } else if let Ok(Some(uuid)) = about.get("ui") {
        document.append(cstr!("ui"), uuid);
    }
    document.append(cstr!("o"), o);
    if let Some(o2) = o2 {
        document.append(cstr!("o2"), o2);
    }
    Some(document)
}

fn objects(
    change: &CatalogChange,
    about: &RawDocument,
    namespace: &Namespace,
) -> (RawDocumentBuf, Option<RawDocumentBuf>) {
    let collection = namespace.collection();
    let records = || {
        let count = about.get_i64("numRecords").unwrap_or(0);
        i32::try_from(count).map_or(RawBsonRef::Int64(count), RawBsonRef::Int32)
    };
    match change {
        CatalogChange::CreateCollection {
            options, indexes, ..
        } => {
            let mut o = rawdoc! { "create": collection };
            append_all(&mut o, options);
            if let Some(id_index) = indexes.first() {
                o.append(cstr!("idIndex"), id_index.spec.clone());
            }
            (o, None)
        }
        CatalogChange::DropCollection { .. } => {
            let o2 = rawdoc! { "numRecords": records() };
            (rawdoc! { "drop": collection }, Some(o2))
        }
        CatalogChange::RenameCollection { to, .. } => {
            let mut o = rawdoc! {
                "renameCollection": namespace.as_str(), "to": to.as_str(), "stayTemp": false,
            };
            let Ok(Some(target)) = about.get("dropTarget") else {
                return (o, None);
            };
            o.append(cstr!("dropTarget"), target);
            (o, Some(rawdoc! { "numRecords": records() }))
        }
        CatalogChange::SetOptions { options, .. } => {
            let mut o = rawdoc! { "collMod": collection };
            append_all(&mut o, &changed_options(about, options));
            (o, Some(state_before(about, None)))
        }
        CatalogChange::CreateIndex { index, .. } => {
            let mut o = rawdoc! { "createIndexes": collection };
            append_all(&mut o, &index.spec);
            (o, None)
        }
        CatalogChange::StartIndexBuild { build, .. } => {
            let specs = build.indexes.iter().map(|index| index.spec.clone());
            let specs = specs.collect::<RawArrayBuf>();
            let mut o = rawdoc! { "startIndexBuild": collection };
            o.append(cstr!("indexBuildUUID"), params::uuid(&build.id));
            o.append(cstr!("indexes"), specs);
            (o, None)
        }
        CatalogChange::CommitIndexBuild { build, .. }
        | CatalogChange::FinishIndexBuild { build, .. } => {
            let mut o = rawdoc! { "commitIndexBuild": collection };
            o.append(cstr!("indexBuildUUID"), params::uuid(build));
            append_indexes(&mut o, about);
            (o, None)
        }
        CatalogChange::AbortIndexBuild { build, .. } => {
            let mut o = rawdoc! { "abortIndexBuild": collection };
            o.append(cstr!("indexBuildUUID"), params::uuid(build));
            append_indexes(&mut o, about);
            if let Ok(cause) = about.get_document("cause") {
                o.append(cstr!("cause"), cause);
            }
            (o, None)
        }
        CatalogChange::DropIndex { .. } => {
            let spec = about.get_document("index").ok();
            let name = spec.and_then(|spec| spec.get_str("name").ok());
            let o = rawdoc! { "dropIndexes": collection, "index": name.unwrap_or_default() };
            (o, spec.map(RawDocument::to_owned))
        }
        CatalogChange::SetIndexSpec { index, .. } => {
            let mut o = rawdoc! { "collMod": collection };
            o.append(cstr!("index"), changed_index(&index.spec));
            let old = about.get_document("index").ok().map(hidden);
            (o, Some(state_before(about, old)))
        }
    }
}

/// The indexes of a build that ends.
pub fn append_indexes(out: &mut RawDocumentBuf, about: &RawDocument) {
    if let Ok(indexes) = about.get_array("indexes") {
        out.append(cstr!("indexes"), indexes);
    }
}

/// What `collMod` was told about an index.
pub fn changed_index(spec: &RawDocument) -> RawDocumentBuf {
    let name = spec.get_str("name").unwrap_or_default();
    let hidden = spec.get_bool("hidden").unwrap_or(false);
    rawdoc! { "name": name, "hidden": hidden }
}

pub fn hidden(spec: &RawDocument) -> RawDocumentBuf {
    rawdoc! { "hidden": spec.get_bool("hidden").unwrap_or(false) }
}

/// What `collMod` was told about the collection.
pub fn changed_options(about: &RawDocument, options: &RawDocument) -> RawDocumentBuf {
    let empty = RawDocumentBuf::new();
    let old = about.get_document("options").unwrap_or(&empty);
    let mut changed = RawDocumentBuf::new();
    for (name, value) in options.iter().flatten() {
        if old.get(name.as_str()).ok().flatten() != Some(value) {
            // As `collMod` calls them.
            let name = match name.as_str() {
                "size" => cstr!("cappedSize"),
                "max" => cstr!("cappedMax"),
                _ => name,
            };
            changed.append(name, value);
        }
    }
    for (name, _) in old.iter().flatten() {
        if options.get(name.as_str()).is_ok_and(|now| now.is_none()) {
            changed.append(name, rawdoc! { "enabled": false });
        }
    }
    changed
}

fn state_before(about: &RawDocument, index: Option<RawDocumentBuf>) -> RawDocumentBuf {
    let mut state = rawdoc! { "collectionOptions_old": collection_options(about) };
    if let Some(index) = index {
        state.append(cstr!("indexOptions_old"), index);
    }
    state
}

/// A collection's options before a change, with its UUID.
pub fn collection_options(about: &RawDocument) -> RawDocumentBuf {
    let mut options = RawDocumentBuf::new();
    if let Ok(Some(uuid)) = about.get("ui") {
        options.append(cstr!("uuid"), uuid);
    }
    if let Ok(old) = about.get_document("options") {
        append_all(&mut options, old);
    }
    options
}

pub fn append_all(out: &mut RawDocumentBuf, fields: &RawDocument) {
    let fields = fields.iter().flatten();
    fields.for_each(|(name, value): (&CStr, RawBsonRef<'_>)| out.append(name, value));
}

/// Puts the session before and the time behind what was described.
fn finish(
    described: RawDocumentBuf,
    stamp: Option<(&SessionStamp, &i32)>,
    previous: Option<Timestamp>,
    time: Timestamp,
    term: u64,
    wall_ms: i64,
) -> RawDocumentBuf {
    let term = i64::try_from(term).unwrap_or(i64::MAX);
    let mut document = described;
    if let Some((stamp, statement)) = stamp {
        let mut stamped = rawdoc! {
            "lsid": stamp.session.document(),
            "txnNumber": stamp.txn_number,
        };
        append_all(&mut stamped, &document);
        stamped.append(cstr!("stmtId"), *statement);
        document = stamped;
    }
    document.append(cstr!("ts"), time);
    document.append(cstr!("t"), term);
    document.append(cstr!("v"), 2_i64);
    document.append(cstr!("wall"), DateTime::from_millis(wall_ms));
    if stamp.is_some() {
        let before = previous.map_or_else(
            || rawdoc! { "ts": Timestamp { time: 0, increment: 0 }, "t": -1_i64 },
            |previous| rawdoc! { "ts": previous, "t": term },
        );
        document.append(cstr!("prevOpTime"), before);
    }
    document
}
