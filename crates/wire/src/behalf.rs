//! Whom a request to another process is sent for.
//!
//! A router proves who it is itself, and says with each request whose it is. What that is, its
//! task knows while it works for a client; requests that are made meanwhile carry it.

use std::sync::Arc;

use bson::{RawDocument, RawDocumentBuf};

tokio::task_local! {
    /// The fields that requests carry.
    static CLIENT: Option<Arc<RawDocumentBuf>>;
}

/// Runs work of which every request that it sends carries `client`.
pub async fn on_behalf_of<T>(
    client: Option<Arc<RawDocumentBuf>>,
    work: impl Future<Output = T>,
) -> T {
    CLIENT.scope(client, work).await
}

/// Whom this task works for, for work of theirs that goes on elsewhere.
pub fn current() -> Option<Arc<RawDocumentBuf>> {
    CLIENT.try_with(Clone::clone).ok().flatten()
}

pub(crate) fn with_client(attach: impl FnOnce(&RawDocument)) {
    let _ = CLIENT.try_with(|client| {
        if let Some(client) = client {
            attach(client);
        }
    });
}
