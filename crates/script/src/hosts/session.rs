//! Calls of single functions, for queries: the calls of one session share a global object.
//!
//! They run in hosts of their own, apart from those of map-reduce: a call is short and a job may be
//! long, and neither waits for the other. A session stays with the host in which its variables are,
//! for as long as nobody else's script keeps that host busy.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use bson::{RawDocument, RawDocumentBuf};
use parking_lot::{Mutex, MutexGuard};

use super::channel::{Channel, Interrupted};
use super::error::JobError;
use super::options::HostOptions;
use super::prints::Prints;
use super::process::Host;
use crate::frame::Kind;
use crate::host::EXCEEDED_MEMORY_LIMIT;

/// A session waits so long for its host before it looks for another one.
const TIMEOUT: Duration = Duration::from_millis(100);
/// How often one that looks for another host looks whether it was interrupted.
const WAIT_STEP: Duration = Duration::from_millis(50);

/// The hosts of all sessions; each is started when it is first called.
pub(super) struct Callers {
    options: HostOptions,
    seats: Vec<Seat>,
}

#[derive(Default)]
struct Seat {
    host: Mutex<Option<Host>>,
    sessions: AtomicUsize,
}

impl Callers {
    pub fn new(options: &HostOptions) -> Callers {
        // Each worker of a query may call scripts.
        let seats = options.hosts_max.max(options.lanes).max(1);
        let options = HostOptions {
            lanes: 1,
            ..options.clone()
        };
        let seats = (0..seats).map(|_| Seat::default());
        Callers {
            seats: seats.collect(),
            options,
        }
    }

    pub fn idle_process_ids(&self) -> Vec<u32> {
        let idle = |seat: &Seat| Some(seat.host.try_lock()?.as_ref()?.process_id());
        self.seats.iter().filter_map(idle).collect()
    }

    /// The seat with the fewest sessions; now with one more.
    fn choose(&self) -> usize {
        let sessions = |seat: &Seat| seat.sessions.load(Ordering::Relaxed);
        let seats = self.seats.iter().enumerate();
        let least = seats.min_by_key(|(_, seat)| sessions(seat));
        let at = least.map_or(0, |(at, _)| at);
        self.seats[at].sessions.fetch_add(1, Ordering::Relaxed);
        at
    }

    fn leave(&self, at: usize) {
        self.seats[at].sessions.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Calls that share variables with each other and with nobody else.
pub struct Session {
    callers: Arc<Callers>,
    number: i64,
    /// Chosen with the first call. Held for as long as a call runs.
    seat: Mutex<Option<usize>>,
    prints: Arc<Prints>,
}

impl Session {
    pub(super) fn new(callers: &Arc<Callers>, prints: Arc<Prints>) -> Session {
        static NUMBERS: AtomicI64 = AtomicI64::new(1);
        Session {
            callers: callers.clone(),
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            seat: Mutex::new(None),
            prints,
        }
    }

    /// Calls a function, or several one after the other: what `request` may be and what it is
    /// answered, `host::call` says. What a function throws is an error; the host goes on.
    pub fn call(
        &self,
        request: &RawDocument,
        interrupted: Interrupted,
    ) -> Result<RawDocumentBuf, JobError> {
        self.begin(request, interrupted)?.finish()
    }

    /// Begins such a call. Whoever calls anything else meanwhile waits until it is finished.
    pub fn begin(
        &self,
        request: &RawDocument,
        interrupted: Interrupted,
    ) -> Result<BegunCall<'_>, JobError> {
        let mut seat = self.seat.lock();
        let mut host = self.sit(&mut seat, &interrupted)?;
        if !host.as_mut().is_some_and(Host::is_alive) {
            *host = Some(Host::start(&self.callers.options)?);
        }
        // It was started just now, if it was not there.
        let Some(running) = host.as_ref() else {
            return Err(JobError::Protocol);
        };
        let channel = Channel::open(running, 0, interrupted, self.prints.clone())?;
        let mut call = BegunCall {
            channel,
            host,
            _seat: seat,
            is_answered: false,
        };
        let request = request.as_bytes();
        let mut payload = Vec::with_capacity(8 + request.len());
        payload.extend_from_slice(&self.number.to_le_bytes());
        payload.extend_from_slice(request);
        call.channel.send(Kind::Call, &payload)?;
        Ok(call)
    }

    /// The host to call. One that has another session's script for long is left to it, and what
    /// this one's scripts have in their variables with it.
    fn sit<'h>(
        &'h self,
        seat: &mut Option<usize>,
        interrupted: &Interrupted,
    ) -> Result<MutexGuard<'h, Option<Host>>, JobError> {
        let callers = &*self.callers;
        let mut at = *seat.get_or_insert_with(|| callers.choose());
        let mut patience = TIMEOUT;
        loop {
            if let Some(host) = callers.seats[at].host.try_lock_for(patience) {
                return Ok(host);
            }
            if interrupted() {
                return Err(JobError::Interrupted);
            }
            patience = WAIT_STEP;
            callers.leave(at);
            let free = callers.seats.iter().position(|s| !s.host.is_locked());
            at = free.unwrap_or(at);
            callers.seats[at].sessions.fetch_add(1, Ordering::Relaxed);
            *seat = Some(at);
        }
    }
}

/// A call that a host is at.
pub struct BegunCall<'s> {
    channel: Channel,
    host: MutexGuard<'s, Option<Host>>,
    _seat: MutexGuard<'s, Option<usize>>,
    is_answered: bool,
}

impl BegunCall<'_> {
    pub fn finish(mut self) -> Result<RawDocumentBuf, JobError> {
        let answer = self.receive();
        self.is_answered = match &answer {
            // A heap that has been full has been lent more than it should have.
            Err(JobError::Script { code, .. }) => *code != EXCEEDED_MEMORY_LIMIT,
            Ok(_) => true,
            Err(_) => false,
        };
        answer
    }

    fn receive(&mut self) -> Result<RawDocumentBuf, JobError> {
        let mut payload = Vec::new();
        match self.channel.receive(&mut payload)? {
            Kind::Returned => {}
            _ => return Err(JobError::Protocol),
        }
        let answer = RawDocumentBuf::from_bytes(payload).map_err(|_| JobError::Protocol)?;
        if let Ok(error) = answer.get_document("error") {
            return Err(JobError::Script {
                code: error.get_i32("code").unwrap_or_default(),
                message: error.get_str("message").unwrap_or_default().to_string(),
            });
        }
        Ok(answer)
    }
}

impl Drop for BegunCall<'_> {
    fn drop(&mut self) {
        // Whatever the host may still say would be taken for the answer to the next call.
        if !self.is_answered {
            *self.host = None;
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let Some(at) = *self.seat.get_mut() else {
            return;
        };
        let callers = &self.callers;
        callers.leave(at);
        // A host that is busy forgets the session when it needs the room.
        if let Some(host) = callers.seats[at].host.try_lock()
            && let Some(lane) = host.as_ref().and_then(|host| host.lanes.first())
        {
            // One that is gone is found out by the next call.
            let _ = crate::frame::write_frame(&mut &**lane, Kind::Done, &self.number.to_le_bytes());
        }
    }
}
