//! Failed logins from one address are answered later and later.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

const DELAY_FIRST: Duration = Duration::from_millis(50);
const DELAY_MAX: Duration = Duration::from_secs(2);
/// An address is forgotten that has not failed for so long.
const FORGET_AFTER: Duration = Duration::from_secs(60);
/// Addresses that are remembered at once.
const ADDRESSES_MAX: usize = 4_096;

#[derive(Default)]
pub struct Throttle(Mutex<HashMap<IpAddr, Failures>>);

struct Failures {
    count: u32,
    last: Instant,
}

impl Throttle {
    /// A login from there has failed: how long its reply waits.
    pub fn failed(&self, address: IpAddr) -> Duration {
        self.failed_at(address, Instant::now())
    }

    fn failed_at(&self, address: IpAddr, now: Instant) -> Duration {
        let mut known = self.0.lock();
        if known.len() >= ADDRESSES_MAX && !known.contains_key(&address) {
            known.retain(|_, failures| now.duration_since(failures.last) < FORGET_AFTER);
            // Under an attack from everywhere everybody waits longest.
            if known.len() >= ADDRESSES_MAX {
                return DELAY_MAX;
            }
        }
        let failures = known.entry(address).or_insert(Failures {
            count: 0,
            last: now,
        });
        if now.duration_since(failures.last) >= FORGET_AFTER {
            failures.count = 0;
        }
        failures.last = now;
        let delay = DELAY_FIRST.saturating_mul(1 << failures.count.min(16));
        failures.count = failures.count.saturating_add(1);
        delay.min(DELAY_MAX)
    }

    pub fn succeeded(&self, address: IpAddr) {
        let mut known = self.0.lock();
        if !known.is_empty() {
            known.remove(&address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_waits_longer_until_it_is_forgotten() {
        let throttle = Throttle::default();
        let (a, b) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let now = Instant::now();
        let delays: Vec<u128> = (0..8)
            .map(|_| throttle.failed_at(a, now).as_millis())
            .collect();
        assert_eq!(delays, [50, 100, 200, 400, 800, 1600, 2000, 2000]);
        assert_eq!(throttle.failed_at(b, now), DELAY_FIRST);
        assert_eq!(throttle.failed_at(a, now + FORGET_AFTER), DELAY_FIRST);
        throttle.failed_at(b, now);
        throttle.succeeded(b);
        assert_eq!(throttle.failed_at(b, now), DELAY_FIRST);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let throttle = Throttle::default();
        let now = Instant::now();
        for n in 0..ADDRESSES_MAX as u32 {
            throttle.failed_at(IpAddr::from(n.to_be_bytes()), now);
        }
        let other = IpAddr::from([255, 0, 0, 1]);
        assert_eq!(throttle.failed_at(other, now), DELAY_MAX);
        assert_eq!(throttle.failed_at(other, now + FORGET_AFTER), DELAY_FIRST);
        assert_eq!(throttle.0.lock().len(), 1);
    }
}
