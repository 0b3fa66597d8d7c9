//! `validate`: reads everything of a collection and compares it with its indexes.

use banyan_storage::{Collection, Index, KeyRange, Snapshot, StorageError};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawArrayBuf, RawDocumentBuf, cstr, rawdoc};

use super::table::{BoxFuture, CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;
use crate::errors;
use crate::execute::blocking;
use crate::operations::Interrupt;
use crate::params;

pub static SPEC: CommandSpec = CommandSpec::new("validate", Run::Future(run))
    .needs(Needs::Data)
    .fields(&[])
    .ignored(&[
        "full",
        "scandata",
        "background",
        "checkBSONConformance",
        "metadata",
    ]);

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move {
        let namespace = ctx.namespace()?;
        let (catalog, snapshot) = ctx.node.view();
        let Some(collection) = catalog.get(ctx.database(), ctx.collection()?) else {
            return Err(CommandError::new(
                ErrorCode::NamespaceNotFound,
                format!("Collection '{namespace}' does not exist to validate."),
            ));
        };
        let interrupt = ctx.interrupt();
        let findings = blocking(|| inspect(collection, &snapshot, interrupt))?;
        Ok(findings.reply(&namespace, collection))
    })
}

#[derive(Default)]
struct Findings {
    records: u64,
    invalid: u64,
    /// Keys per index, in the collection's order of indexes.
    keys: Vec<u64>,
    missing_keys: Vec<u64>,
    extra_keys: Vec<u64>,
    errors: Vec<String>,
}

fn inspect(
    collection: &Collection,
    snapshot: &Snapshot,
    interrupt: &Interrupt,
) -> Result<Findings, CommandError> {
    let mut findings = Findings::default();
    let count = collection.indexes.len();
    let mut expected = vec![0_u64; count];
    findings.missing_keys = vec![0; count];
    for entry in snapshot.records(collection.id, .., false) {
        let (id, record) = match entry {
            Ok(entry) => entry,
            Err(error @ StorageError::Damaged { .. }) => {
                findings.invalid += 1;
                findings.errors.push(error.to_string());
                continue;
            }
            Err(error) => return Err(errors::storage(error)),
        };
        findings.records += 1;
        if findings.records.is_multiple_of(64) {
            interrupt.check()?;
        }
        if let Err(error) = banyan_document::validate::validate(record.as_bytes()) {
            findings.invalid += 1;
            findings.errors.push(format!("record {id}: {error}"));
            continue;
        }
        for (at, index) in collection.indexes.iter().enumerate() {
            for key in keys_of(index, &record)? {
                expected[at] += 1;
                if !snapshot
                    .has_index_key(index, &key, id)
                    .map_err(errors::storage)?
                {
                    findings.missing_keys[at] += 1;
                }
            }
        }
    }
    for (at, index) in collection.indexes.iter().enumerate() {
        let mut keys = 0_u64;
        for entry in snapshot.scan_index(index, KeyRange::all(), false) {
            entry.map_err(errors::storage)?;
            keys += 1;
            if keys.is_multiple_of(64) {
                interrupt.check()?;
            }
        }
        let present = expected[at] - findings.missing_keys[at];
        findings.keys.push(keys);
        findings.extra_keys.push(keys.saturating_sub(present));
    }
    Ok(findings)
}

/// The keys that a record ought to have in an index.
fn keys_of(index: &Index, record: &bson::RawDocument) -> Result<Vec<Vec<u8>>, CommandError> {
    if let Some(partial) = &index.partial_filter
        && !errors::parse_filter(partial)?.matches(record)
    {
        return Ok(Vec::new());
    }
    let keys = match index.sparse {
        true => index.pattern.sparse_keys(record),
        false => index.pattern.keys(record),
    };
    // A record that has no keys could not have been written.
    Ok(keys.map(|keys| keys.keys).unwrap_or_default())
}

impl Findings {
    fn reply(mut self, namespace: &str, collection: &Collection) -> RawDocumentBuf {
        let mut per_index = RawDocumentBuf::new();
        let mut details = RawDocumentBuf::new();
        for (at, index) in collection.indexes.iter().enumerate() {
            let (missing, extra) = (self.missing_keys[at], self.extra_keys[at]);
            if missing + extra > 0 {
                self.errors.push(format!(
                    "index {}: {missing} keys are missing and {extra} have no record",
                    index.name
                ));
            }
            let Ok(name) = bson::raw::CString::try_from(index.name.as_str()) else {
                continue;
            };
            per_index.append(name.clone(), long(self.keys[at]));
            details.append(name, rawdoc! { "valid": missing + extra == 0 });
        }
        let uuid = params::uuid(&collection.uuid);
        let errors: RawArrayBuf = self.errors.iter().take(100).map(String::as_str).collect();
        let mut reply = rawdoc! {
            "ns": namespace,
            "uuid": uuid,
            "nInvalidDocuments": long(self.invalid),
            "nNonCompliantDocuments": 0_i64,
            "nrecords": long(self.records),
            "nIndexes": i32::try_from(collection.indexes.len()).unwrap_or(i32::MAX),
            "keysPerIndex": per_index,
            "indexDetails": details,
        };
        reply.append(cstr!("valid"), self.errors.is_empty());
        reply.append(cstr!("repaired"), false);
        reply.append(cstr!("warnings"), RawArrayBuf::new());
        reply.append(cstr!("errors"), errors);
        reply.append(cstr!("extraIndexEntries"), RawArrayBuf::new());
        reply.append(cstr!("missingIndexEntries"), RawArrayBuf::new());
        reply.append(cstr!("corruptRecords"), RawArrayBuf::new());
        reply.append(cstr!("ok"), 1.0);
        reply
    }
}

fn long(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
