//! Whether a scan of an index steps over keys one by one or seeks the next one that it wants.

/// A seek costs as much as some dozens of steps.
const STEPS_MAX: u32 = 16;
/// Every so many seeks the wanted key may turn out to be near: more and more of them as long as it
/// does not.
const SEEKS_PER_LOOK_MIN: u32 = 8;
const SEEKS_PER_LOOK_MAX: u32 = 128;

/// What the scan has met so far tells whether the next wanted key is near.
#[derive(Debug)]
pub struct Stepping {
    /// Steps since the last wanted key, or since the last seek.
    steps: u32,
    /// Seeks since the last look whether the wanted key is near.
    seeks: u32,
    seeks_per_look: u32,
    /// Whether steps led to a wanted key the last time.
    near: bool,
}

impl Default for Stepping {
    fn default() -> Stepping {
        Stepping {
            steps: 0,
            seeks: 0,
            seeks_per_look: SEEKS_PER_LOOK_MIN,
            near: false,
        }
    }
}

impl Stepping {
    /// A wanted key was met.
    #[inline]
    pub fn arrive(&mut self) {
        if self.steps > 0 {
            self.near = true;
            self.seeks_per_look = SEEKS_PER_LOOK_MIN;
            self.steps = 0;
        }
    }

    /// A key was met that is not wanted: whether the scan should seek now.
    #[inline]
    pub fn should_seek(&mut self) -> bool {
        self.steps += 1;
        if self.expects_near() {
            if self.steps < STEPS_MAX {
                return false;
            }
            self.seeks = 0;
            if !self.near {
                self.seeks_per_look = (2 * self.seeks_per_look).min(SEEKS_PER_LOOK_MAX);
            }
        }
        self.steps = 0;
        self.near = false;
        self.seek();
        true
    }

    /// The scan seeks.
    pub fn seek(&mut self) {
        self.seeks = self.seeks.saturating_add(1);
    }

    /// Whether the next wanted key may be so near that steps lead to it.
    pub fn expects_near(&self) -> bool {
        self.near || self.seeks >= self.seeks_per_look
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many keys are stepped over where so many wanted keys lie far apart.
    fn steps_in_vain(wanted: u32) -> u32 {
        let mut stepping = Stepping::default();
        let mut steps = 0;
        for _ in 0..wanted {
            while !stepping.should_seek() {
                steps += 1;
            }
            stepping.arrive();
        }
        steps
    }

    #[test]
    fn a_scan_that_finds_nothing_near_looks_less_and_less_often() {
        assert!(steps_in_vain(8) <= STEPS_MAX);
        assert!(steps_in_vain(1000) < 12 * STEPS_MAX);
        assert!(steps_in_vain(1000) > STEPS_MAX);
    }

    #[test]
    fn a_scan_notices_that_wanted_keys_have_become_near() {
        let mut stepping = Stepping::default();
        for _ in 0..1000 {
            stepping.should_seek();
        }
        // Every third key is wanted from here on.
        let mut seeks = 0;
        for _ in 0..1000 {
            for _ in 0..2 {
                if stepping.should_seek() {
                    seeks += 1;
                    break;
                }
            }
            stepping.arrive();
        }
        assert!(seeks <= 2 * SEEKS_PER_LOOK_MAX, "{seeks}");
    }
}
