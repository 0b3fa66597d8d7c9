//! What a router reads again and again.

use std::sync::Arc;
use std::time::Duration;

use banyan_wire::{CommandError, ReadPreference, RequestOptions};
use bson::rawdoc;

use crate::defaults::Known;
use crate::router::Router;

/// How long a change made elsewhere may stay unknown here.
const REFRESH_EVERY: Duration = Duration::from_secs(5);

impl Router {
    /// Asks the config servers.
    pub async fn refresh_defaults(&self) -> Result<Arc<Known>, CommandError> {
        let read = RequestOptions::read(ReadPreference::default());
        let command = rawdoc! { "getDefaultRWConcern": 1 };
        let reply = self.config.command(read, "admin", &command).await?;
        Ok(self.defaults.note(reply))
    }
}

/// Keeps the defaults up to date for as long as the router runs.
pub async fn keep_defaults(router: Arc<Router>) {
    loop {
        if let Err(error) = router.refresh_defaults().await {
            tracing::debug!(%error, "cannot read the default read and write concern");
        }
        tokio::select! {
            () = router.identity.stop.cancelled() => return,
            () = tokio::time::sleep(REFRESH_EVERY) => {}
        }
    }
}
