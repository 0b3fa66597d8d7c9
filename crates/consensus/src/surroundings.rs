//! What the driver takes from the machine that it runs on: the time, and chance. A simulation
//! brings its own.

use std::time::{Instant, SystemTime};

pub(crate) fn now() -> Instant {
    #[cfg(feature = "simulation")]
    if let Some(now) = crate::simulated::world::now() {
        return now;
    }
    Instant::now()
}

/// Milliseconds since 1970, by the wall clock. Nothing that has to be safe rests on it.
pub(crate) fn wall_ms() -> i64 {
    #[cfg(feature = "simulation")]
    if let Some(now) = crate::simulated::world::wall_ms() {
        return now;
    }
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as i64)
}

pub(crate) fn random() -> u64 {
    #[cfg(feature = "simulation")]
    if let Some(number) = crate::simulated::world::random() {
        return number;
    }
    rand::random()
}
