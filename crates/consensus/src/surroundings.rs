//! What the driver takes from the machine that it runs on: the time, and chance. A simulation
//! brings its own.

use std::time::Instant;

pub(crate) fn now() -> Instant {
    #[cfg(feature = "simulation")]
    if let Some(now) = crate::stage::now() {
        return now;
    }
    Instant::now()
}

pub(crate) fn random() -> u64 {
    #[cfg(feature = "simulation")]
    if let Some(number) = crate::stage::random() {
        return number;
    }
    rand::random()
}
