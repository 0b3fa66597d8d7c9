//! Whether bytes that came from another member can be an entry.
//!
//! An entry that is in the log is applied one day, and a member that cannot apply it does not get
//! past it, not by a restart either. So what can be told without the state is told before it is
//! appended. What the leader has written passes.

use std::borrow::Cow;

use banyan_document::validate::{MAX_DEPTH, validate_with_depth};
use banyan_storage::{CatalogChange, IndexDefinition};
use bson::RawDocument;

use super::{Entry, EntryError, Operation};
use crate::codec::bad;
use crate::set::config::SetConfig;

/// What servers write themselves nests what users have written.
const DEPTH_MAX: usize = 2 * MAX_DEPTH;
/// Times are signed where MongoDB counts their seconds.
const SECONDS_MAX: u32 = i32::MAX as u32;

pub fn check(bytes: &[u8]) -> Result<(), EntryError> {
    let entry = Entry::decode(bytes)?;
    let first = entry.header.first_time;
    if first == 0 || entry.time().time >= SECONDS_MAX {
        return bad("a time that no leader gives");
    }
    let mut operations = 0;
    for operation in entry.operations() {
        check_operation(&operation?)?;
        operations += 1;
    }
    if operations != entry.header.operations {
        return bad(format!(
            "{operations} operations instead of {}",
            entry.header.operations
        ));
    }
    Ok(())
}

fn check_operation(operation: &Operation<'_>) -> Result<(), EntryError> {
    match operation {
        Operation::Insert { document, .. } | Operation::Noop { document } => readable(document),
        Operation::Update { before, after, .. } => {
            readable(after)?;
            match before {
                Cow::Borrowed(before) => readable(before),
                Cow::Owned(before) => readable(before),
            }
        }
        Operation::Delete { before, .. } => readable(before),
        Operation::Catalog(change, about) => {
            readable(about)?;
            check_change(change)
        }
        Operation::SetConfig { document } => {
            readable(document)?;
            SetConfig::parse(document).map_or_else(|error| bad(error.to_string()), |_| Ok(()))
        }
        Operation::DropDatabase { .. } => Ok(()),
    }
}

fn check_change(change: &CatalogChange) -> Result<(), EntryError> {
    let indexes =
        |indexes: &[IndexDefinition]| indexes.iter().try_for_each(|index| readable(&index.spec));
    match change {
        CatalogChange::CreateCollection {
            options,
            indexes: made,
            ..
        } => {
            readable(options)?;
            indexes(made)
        }
        CatalogChange::SetOptions { options, .. } => readable(options),
        CatalogChange::CreateIndex { index, .. } | CatalogChange::SetIndexSpec { index, .. } => {
            readable(&index.spec)
        }
        CatalogChange::StartIndexBuild { build, .. } => {
            readable(&build.options)?;
            indexes(&build.indexes)
        }
        _ => Ok(()),
    }
}

fn readable(document: &RawDocument) -> Result<(), EntryError> {
    match validate_with_depth(document.as_bytes(), DEPTH_MAX) {
        Ok(_) => Ok(()),
        Err(error) => bad(error.to_string()),
    }
}
