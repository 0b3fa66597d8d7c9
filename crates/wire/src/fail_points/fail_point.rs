//! One fail point.

use std::sync::atomic::{AtomicBool, Ordering};

use bson::{RawDocument, RawDocumentBuf, rawdoc};
use parking_lot::Mutex;

use super::mode::Mode;

/// Off until it is set. One that is off costs whoever passes a look at a flag.
#[derive(Default)]
pub struct FailPoint {
    is_on: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    mode: Mode,
    data: RawDocumentBuf,
    /// How often it has failed something since the process began.
    entered: i64,
}

impl FailPoint {
    /// How often it has failed something so far.
    pub(super) fn set(&self, mode: Mode, data: RawDocumentBuf) -> i64 {
        let mut state = self.state.lock();
        state.mode = mode;
        state.data = data;
        self.is_on.store(!mode.is_over(), Ordering::Release);
        state.entered
    }

    /// What it is told to do, if it is on and `applies` says that it is meant.
    pub fn hit(&self, applies: impl FnOnce(&RawDocument) -> bool) -> Option<RawDocumentBuf> {
        if !self.is_on.load(Ordering::Acquire) {
            return None;
        }
        let mut state = self.state.lock();
        if state.mode.is_over() || !applies(&state.data) {
            return None;
        }
        let (fails, next) = state.mode.hit();
        state.mode = next;
        if next.is_over() {
            self.is_on.store(false, Ordering::Release);
        }
        if !fails {
            return None;
        }
        state.entered += 1;
        Some(state.data.clone())
    }

    /// As `getParameter` shows it.
    pub(super) fn shown(&self) -> RawDocumentBuf {
        let state = self.state.lock();
        rawdoc! {
            "mode": state.mode.number(),
            "data": state.data.clone(),
            "timesEntered": state.entered,
        }
    }
}
