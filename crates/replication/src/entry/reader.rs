//! Reading the operations of an entry.

use std::borrow::Cow;

use banyan_storage::{CatalogChange, CollectionId, IndexBuildDefinition, RecordId};
use bson::RawDocumentBuf;

use super::operation::{NO_NUMBER, Operation, Style, tag};
use crate::codec::{EntryError, Reader, bad};

/// What an operation is about.
pub(super) enum Passed {
    Document(CollectionId),
    Noop,
    Definition,
}

impl<'a> Reader<'a> {
    pub(super) fn pass_over(&mut self) -> Result<Passed, EntryError> {
        let tag = self.u8()?;
        match tag {
            tag::SET_CONFIG | tag::NOOP => {
                self.document()?;
                return Ok(Passed::Noop);
            }
            tag::INSERT | tag::DELETE => {}
            tag::UPDATE | tag::REPLACE | tag::UPDATE_BY_PIPELINE => {}
            _ => return Ok(Passed::Definition),
        }
        let collection = self.id()?;
        self.record_id()?;
        self.document()?;
        if !matches!(tag, tag::INSERT | tag::DELETE) {
            self.length()?;
            self.length()?;
            self.length_and_bytes()?;
            self.style(tag)?;
        }
        Ok(Passed::Document(collection))
    }

    pub(super) fn operation(&mut self) -> Result<Operation<'a>, EntryError> {
        let tag = self.u8()?;
        match tag {
            tag::SET_CONFIG => {
                return Ok(Operation::SetConfig {
                    document: self.document()?,
                });
            }
            tag::NOOP => {
                return Ok(Operation::Noop {
                    document: self.document()?,
                });
            }
            tag::DROP_DATABASE => {
                let name = std::str::from_utf8(self.length_and_bytes()?);
                return name.map_or_else(
                    |_| bad("a database's name that is none"),
                    |name| Ok(Operation::DropDatabase { name }),
                );
            }
            _ => {}
        }
        let id = self.id()?;
        Ok(match tag {
            tag::INSERT => {
                let record = self.record_id()?;
                Operation::Insert {
                    collection: id,
                    record,
                    document: self.document()?,
                }
            }
            tag::UPDATE | tag::REPLACE | tag::UPDATE_BY_PIPELINE => self.update(tag, id)?,
            tag::DELETE => {
                let record = self.record_id()?;
                Operation::Delete {
                    collection: id,
                    record,
                    before: self.document()?,
                }
            }
            _ => {
                let about = self.document()?;
                Operation::Catalog(self.catalog_change(tag, id)?, about)
            }
        })
    }

    fn record_id(&mut self) -> Result<RecordId, EntryError> {
        match self.varint()? {
            NO_NUMBER => match self.length_and_bytes()? {
                bytes if bytes.len() <= RecordId::BYTES_MAX => Ok(RecordId::bytes(bytes)),
                bytes => bad(format!("a record id of {} bytes", bytes.len())),
            },
            number => Ok(RecordId::number(number)),
        }
    }

    fn update(&mut self, tag: u8, collection: CollectionId) -> Result<Operation<'a>, EntryError> {
        let record = self.record_id()?;
        let after = self.document()?;
        let prefix = self.length()?;
        let suffix = self.length()?;
        let middle = self.length_and_bytes()?;
        let bytes = after.as_bytes();
        let (Some(head), Some(tail)) = (
            bytes.get(..prefix),
            bytes
                .len()
                .checked_sub(suffix)
                .and_then(|at| bytes.get(at..)),
        ) else {
            return bad("a difference larger than its document");
        };
        let before = RawDocumentBuf::from_bytes([head, middle, tail].concat())
            .or_else(|error| bad(error.to_string()))?;
        Ok(Operation::Update {
            collection,
            record,
            before: Cow::Owned(before),
            after,
            style: self.style(tag)?,
        })
    }

    fn style(&mut self, tag: u8) -> Result<Style<'a>, EntryError> {
        Ok(match tag {
            tag::REPLACE => Style::Replacement,
            tag::UPDATE_BY_PIPELINE => Style::Pipeline,
            _ => {
                let count = self.varint()?;
                let path = |_| {
                    let bytes = self.length_and_bytes()?;
                    std::str::from_utf8(bytes).or_else(|_| bad("a path that is no text"))
                };
                let wholes = (0..count).map(path).collect::<Result<_, _>>()?;
                Style::Modifiers { wholes }
            }
        })
    }

    fn catalog_change(&mut self, tag: u8, id: u32) -> Result<CatalogChange, EntryError> {
        Ok(match tag {
            tag::CREATE_COLLECTION => CatalogChange::CreateCollection {
                id,
                namespace: self.namespace()?,
                uuid: self.array()?,
                options: self.document()?.to_owned(),
                indexes: self.indexes()?,
            },
            tag::DROP_COLLECTION => CatalogChange::DropCollection { id },
            tag::RENAME_COLLECTION => CatalogChange::RenameCollection {
                id,
                to: self.namespace()?,
            },
            tag::SET_OPTIONS => CatalogChange::SetOptions {
                id,
                options: self.document()?.to_owned(),
            },
            tag::CREATE_INDEX => CatalogChange::CreateIndex {
                collection: id,
                index: self.index()?,
            },
            tag::DROP_INDEX => CatalogChange::DropIndex {
                collection: id,
                index: self.id()?,
            },
            tag::SET_INDEX_SPEC => CatalogChange::SetIndexSpec {
                collection: id,
                index: self.index()?,
            },
            tag::START_INDEX_BUILD => CatalogChange::StartIndexBuild {
                collection: id,
                build: IndexBuildDefinition {
                    id: self.array()?,
                    duplicates: self.id()?,
                    options: self.document()?.to_owned(),
                    indexes: self.indexes()?,
                },
            },
            tag::COMMIT_INDEX_BUILD => CatalogChange::CommitIndexBuild {
                collection: id,
                build: self.array()?,
            },
            tag::ABORT_INDEX_BUILD => CatalogChange::AbortIndexBuild {
                collection: id,
                build: self.array()?,
            },
            other => return bad(format!("tag {other} is not known here")),
        })
    }
}
