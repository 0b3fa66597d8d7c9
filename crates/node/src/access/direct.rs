//! Users and roles that are written past the commands for them, as the audit log tells of it.

use std::collections::BTreeMap;

use banyan_access::redaction;
use banyan_wire::CommandError;
use bson::{RawDocumentBuf, cstr};
use tokio::sync::MutexGuard;

use super::changes;
use crate::context::CommandContext;

/// By the bytes of their `_id`s.
type Documents = BTreeMap<Vec<u8>, RawDocumentBuf>;

/// What was in `system.users` or `system.roles` before a command that writes to it.
pub struct DirectWrite<'a> {
    pub collection: &'static str,
    before: Documents,
    _turn: MutexGuard<'a, ()>,
}

impl<'a> DirectWrite<'a> {
    /// Waits for its turn: what is different when the command has run, the command has done.
    pub async fn begin(
        ctx: &CommandContext<'a>,
        collection: &'static str,
    ) -> Result<DirectWrite<'a>, CommandError> {
        let turn = changes::begin(ctx).await?;
        Ok(DirectWrite {
            collection,
            before: documents(ctx, collection)?,
            _turn: turn,
        })
    }

    /// What the command has done, as MongoDB names it, and the document that it did it to: as it is
    /// now, or was last, and without what passwords are proved by.
    pub fn changes(
        &self,
        ctx: &CommandContext<'_>,
    ) -> Result<Vec<(&'static str, RawDocumentBuf)>, CommandError> {
        let after = documents(ctx, self.collection)?;
        let removed = self
            .before
            .iter()
            .filter(|(id, _)| !after.contains_key(*id));
        let removed = removed.map(|(_, document)| ("remove", document));
        let written = after
            .iter()
            .filter_map(|(id, document)| match self.before.get(id) {
                None => Some(("insert", document)),
                Some(before) if before.as_bytes() != document.as_bytes() => {
                    Some(("update", document))
                }
                Some(_) => None,
            });
        let all = removed.chain(written);
        Ok(all
            .map(|(operation, document)| (operation, redaction::without_credentials(document)))
            .collect())
    }
}

fn documents(ctx: &CommandContext<'_>, collection: &str) -> Result<Documents, CommandError> {
    let all = changes::listed(ctx, collection, None)?;
    let by_id = all.into_iter().map(|document| {
        let mut id = RawDocumentBuf::new();
        if let Some(value) = banyan_document::field(&document, "_id") {
            id.append(cstr!("_id"), value);
        }
        (id.into_bytes(), document)
    });
    Ok(by_id.collect())
}
