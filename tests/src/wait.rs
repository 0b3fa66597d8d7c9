//! Waiting for conditions instead of for time.

use std::fmt::Debug;
use std::future::Future;
use std::time::{Duration, Instant};

/// Asks until the answer is `Ok`, for at most `limit`; panics with the last `Err` after that.
pub async fn within<T, E, F, R>(limit: Duration, what: &str, mut ask: F) -> T
where
    E: Debug,
    F: FnMut() -> R,
    R: Future<Output = Result<T, E>>,
{
    let started = Instant::now();
    loop {
        // An answer that never comes counts as a failed one.
        let left = limit
            .saturating_sub(started.elapsed())
            .max(Duration::from_millis(100));
        let last = match tokio::time::timeout(left, ask()).await {
            Ok(Ok(value)) => return value,
            Ok(Err(error)) => format!("{error:?}"),
            Err(_) => "no answer".to_owned(),
        };
        assert!(
            started.elapsed() < limit,
            "{what}: not within {limit:?}; last: {last}"
        );
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
}

/// [`within`] the time that a loaded two-core machine may need for anything: 60 s.
pub async fn eventually<T, E, F, R>(what: &str, ask: F) -> T
where
    E: Debug,
    F: FnMut() -> R,
    R: Future<Output = Result<T, E>>,
{
    within(Duration::from_secs(60), what, ask).await
}
