//! SIGTERM and SIGINT ask for a clean end, SIGUSR1 for new files of the logs.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::audit;
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
                if let Some(sink) = audit::sink() {
                    sink.rotate_and_note();
                }
                logging::log().map(logging::Log::rotate_and_tell)
            })
            .await;
        }
    });
    Ok(token)
}
