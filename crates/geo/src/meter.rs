//! How much work a question may be. Two shapes of a hundred thousand corners each have ten thousand
//! million pairs of edges: whoever asks has to be able to stop it.

/// The work was stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended;

/// Counts work.
#[derive(Clone, Copy)]
pub struct Meter<'a>(&'a dyn Fn(usize) -> Result<(), Ended>);

impl<'a> Meter<'a> {
    /// `spend` is told of steps as they are made, each of some tens of nanoseconds, and ends the
    /// work by failing.
    pub fn new(spend: &'a dyn Fn(usize) -> Result<(), Ended>) -> Meter<'a> {
        Meter(spend)
    }

    /// For work that is short by nature.
    pub fn unlimited() -> Meter<'static> {
        Meter(&|_| Ok(()))
    }

    pub(crate) fn spend(&self, steps: usize) -> Result<(), Ended> {
        (self.0)(steps)
    }
}
