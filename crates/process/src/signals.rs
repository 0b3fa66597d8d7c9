//! SIGTERM and SIGINT ask for a clean end, SIGUSR1 for a new log file.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use crate::audit::{self, AuditSink};
use crate::logging;

/// A token that is cancelled by the first SIGTERM, SIGINT, SIGQUIT or SIGHUP. Call on a runtime.
pub fn shutdown_token() -> io::Result<CancellationToken> {
    let token = CancellationToken::new();
    for (kind, name) in [
        (SignalKind::terminate(), "SIGTERM"),
        (SignalKind::interrupt(), "SIGINT"),
        (SignalKind::quit(), "SIGQUIT"),
        (SignalKind::hangup(), "SIGHUP"),
    ] {
        let mut signals = signal(kind)?;
        let token = token.clone();
        tokio::spawn(async move {
            while signals.recv().await.is_some() {
                info!("got {name}, will terminate after current commands end");
                token.cancel();
            }
        });
    }
    let mut rotate = signal(SignalKind::user_defined1())?;
    tokio::spawn(async move {
        while rotate.recv().await.is_some() {
            // The log says how it went.
            let _ = tokio::task::spawn_blocking(|| {
                if let Some(Err(error)) = audit::sink().map(AuditSink::rotate) {
                    error!(%error, "the audit log cannot be rotated; going on in the old one");
                }
                logging::log().map(logging::Log::rotate_and_tell)
            })
            .await;
        }
    });
    Ok(token)
}
