//! Whether a scan of an index steps over keys one by one or seeks the next one that it wants.

/// A seek costs as much as some dozens of steps.
const STEPS_MAX: u32 = 16;
/// Every so many seeks the wanted key may turn out to be near.
const SEEKS_PER_LOOK: u32 = 8;

/// What the scan has met so far tells whether the next wanted key is near.
#[derive(Debug, Default)]
pub struct Stepping {
    /// Steps since the last wanted key, or since the last seek.
    steps: u32,
    seeks: u32,
    /// Whether steps led to a wanted key the last time.
    near: bool,
}

impl Stepping {
    /// A wanted key was met.
    #[inline]
    pub fn arrive(&mut self) {
        if self.steps > 0 {
            self.near = true;
            self.steps = 0;
        }
    }

    /// A key was met that is not wanted: whether the scan should seek now.
    #[inline]
    pub fn should_seek(&mut self) -> bool {
        self.steps += 1;
        if self.steps < if self.expects_near() { STEPS_MAX } else { 1 } {
            return false;
        }
        self.steps = 0;
        self.near = false;
        self.seek();
        true
    }

    /// The scan seeks.
    pub fn seek(&mut self) {
        self.seeks = self.seeks.wrapping_add(1);
    }

    /// Whether the next wanted key may be so near that steps lead to it.
    pub fn expects_near(&self) -> bool {
        self.near || self.seeks % SEEKS_PER_LOOK == SEEKS_PER_LOOK - 1
    }
}
