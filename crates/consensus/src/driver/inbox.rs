//! What waits for the core.

use std::time::Instant;

use futures::channel::oneshot;
use raft::eraftpb::Message;

use crate::apply::Answer;
use crate::error::Error;
use crate::machine::{Change, Member, Membership, PeerId, Position};
use crate::message::{self, Frame, Kind};
use crate::options::ProposeOptions;

/// So many entries are surely still in memory.
const CLOSE_ENTRIES: u64 = 512;

pub(crate) struct Proposal<P> {
    pub data: Vec<u8>,
    pub prepared: P,
    pub options: ProposeOptions,
    pub answer: Answer,
}

pub(crate) enum Control {
    Message(Box<Frame>),
    Installed(Box<Message>, bool),
    Change(Change, oneshot::Sender<Result<Membership, Error>>),
    /// Somebody asked for an index while no round was under way.
    Reads,
    /// Entries were held back until there is room to apply them.
    Room,
    Transfer(PeerId, &'static str),
    AnnounceCommit,
    StepDown(&'static str),
    Campaign,
    Suspect(PeerId),
    Electable(bool),
    Force(Vec<Member>, oneshot::Sender<Result<Membership, Error>>),
    Replace(PeerId, Member, oneshot::Sender<Result<Membership, Error>>),
    Witness(bool),
    Witnesses(Vec<PeerId>),
}

pub(super) struct Inbox<P> {
    pub proposals: Vec<Proposal<P>>,
    pub controls: Vec<Control>,
    /// Something among the controls is not light.
    heavy: bool,
    /// Answers that go out after the next sync.
    pub after_sync: Vec<(Answer, Position)>,
    /// When the oldest entry was written that is not synced (sync mode `Interval`).
    pub unsynced_since: Option<Instant>,
    /// When there is something to do even if nothing comes in.
    pub rounds_due: Option<Instant>,
    /// Until when the driving thread sleeps, if it does.
    pub slept_until: Option<Instant>,
}

/// What was taken out of it.
pub(super) struct Work<P> {
    pub proposals: Vec<Proposal<P>>,
    pub controls: Vec<Control>,
}

impl<P> Inbox<P> {
    pub fn new() -> Inbox<P> {
        Inbox {
            proposals: Vec::new(),
            controls: Vec::new(),
            heavy: false,
            after_sync: Vec::new(),
            unsynced_since: None,
            rounds_due: None,
            slept_until: None,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.proposals.is_empty() && self.controls.is_empty()
    }

    pub fn push(&mut self, control: Control, light: bool) {
        self.heavy |= !light;
        self.controls.push(control);
    }

    pub fn take(&mut self) -> Work<P> {
        self.heavy = false;
        Work {
            proposals: std::mem::take(&mut self.proposals),
            controls: std::mem::take(&mut self.controls),
        }
    }

    /// Everything, if all of it is light.
    pub fn take_light(&mut self) -> Option<Work<P>> {
        let light = self.proposals.is_empty() && !self.heavy && !self.controls.is_empty();
        light.then(|| self.take())
    }

    /// True if the driving thread sleeps past it.
    pub fn set_due(&mut self, due: Option<Instant>) -> bool {
        self.rounds_due = due;
        due.zip(self.slept_until)
            .is_some_and(|(due, until)| due < until)
    }
}

impl Control {
    /// The core is done with it without a disk, but for the heartbeat that brings a new term or the
    /// end of a change of members.
    pub(super) fn is_light(&self, last_index: u64) -> bool {
        match self {
            Control::Reads => true,
            Control::Message(frame) => match message::kind(&frame.message) {
                Kind::Heartbeat => true,
                // One that is far behind is sent what has to be read from the log.
                Kind::Taken(index) => index.saturating_add(CLOSE_ENTRIES) >= last_index,
                Kind::Other => false,
            },
            _ => false,
        }
    }
}
