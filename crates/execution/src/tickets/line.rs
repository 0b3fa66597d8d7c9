//! The line in front of the tickets.
//!
//! Whoever comes first is served first, in two lines: those whose work has only begun go before
//! those that turned out to be large, but for every so many of them one of the large goes on.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

/// Of those whose work has only begun, so many go before one that is large.
const FRESH_IN_A_ROW: u32 = 4;

/// Which of the two lines somebody stands in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    Fresh,
    Large,
}

pub(super) struct Line {
    total: usize,
    state: Mutex<State>,
    /// How many wait: looked at without the lock.
    waiting: AtomicU64,
    /// How often somebody had to wait.
    waits: AtomicU64,
}

struct State {
    free: usize,
    fresh: VecDeque<Arc<Place>>,
    large: VecDeque<Arc<Place>>,
    /// How many of the fresh went in a row while a large one waited.
    streak: u32,
}

/// A place in the line.
#[derive(Default)]
struct Place {
    state: Mutex<PlaceState>,
}

#[derive(Default)]
struct PlaceState {
    served: bool,
    left: bool,
    waker: Option<Waker>,
}

/// The right to compute; dropping it lets the next one in.
pub struct Ticket {
    line: Arc<Line>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.line.serve_next();
    }
}

/// What the line looks like right now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Figures {
    pub total: usize,
    pub out: usize,
    pub fresh: usize,
    pub large: usize,
    pub waits: u64,
}

impl Line {
    pub fn new(total: usize) -> Arc<Line> {
        Arc::new(Line {
            total,
            state: Mutex::new(State {
                free: total,
                fresh: VecDeque::new(),
                large: VecDeque::new(),
                streak: 0,
            }),
            waiting: AtomicU64::new(0),
            waits: AtomicU64::new(0),
        })
    }

    /// Somebody would go on if a ticket were given back.
    pub fn is_waited_for(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Joins the line; the future resolves with the ticket, and leaves the line when dropped.
    pub fn join(self: &Arc<Line>, class: Class) -> Turn {
        let place = Arc::<Place>::default();
        let mut state = self.state.lock();
        // Whoever waits stands before whoever comes now; a free ticket means that nobody does.
        if state.free > 0 {
            state.free -= 1;
            place.state.lock().served = true;
        } else {
            state.line(class).push_back(place.clone());
            self.waiting.fetch_add(1, Ordering::Relaxed);
            self.waits.fetch_add(1, Ordering::Relaxed);
        }
        Turn {
            line: self.clone(),
            place: Some(place),
        }
    }

    /// A ticket that nobody waits for.
    pub fn try_take(self: &Arc<Line>) -> Option<Ticket> {
        let mut state = self.state.lock();
        state.free = state.free.checked_sub(1)?;
        Some(Ticket { line: self.clone() })
    }

    /// A ticket is back: it goes to whoever is next.
    fn serve_next(&self) {
        let mut state = self.state.lock();
        while let Some(place) = state.next() {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            let mut next = place.state.lock();
            if next.left {
                continue;
            }
            next.served = true;
            let waker = next.waker.take();
            drop(next);
            drop(state);
            if let Some(waker) = waker {
                waker.wake();
            }
            return;
        }
        state.free += 1;
    }

    pub fn figures(&self) -> Figures {
        let state = self.state.lock();
        let waiting = |line: &VecDeque<Arc<Place>>| {
            line.iter().filter(|place| !place.state.lock().left).count()
        };
        Figures {
            total: self.total,
            out: self.total - state.free,
            fresh: waiting(&state.fresh),
            large: waiting(&state.large),
            waits: self.waits.load(Ordering::Relaxed),
        }
    }
}

impl State {
    fn line(&mut self, class: Class) -> &mut VecDeque<Arc<Place>> {
        match class {
            Class::Fresh => &mut self.fresh,
            Class::Large => &mut self.large,
        }
    }

    fn next(&mut self) -> Option<Arc<Place>> {
        let large_is_due = self.streak >= FRESH_IN_A_ROW || self.fresh.is_empty();
        if large_is_due && !self.large.is_empty() {
            self.streak = 0;
            return self.large.pop_front();
        }
        self.streak = if self.large.is_empty() {
            0
        } else {
            self.streak + 1
        };
        self.fresh.pop_front()
    }
}

/// Waits for a ticket.
pub struct Turn {
    line: Arc<Line>,
    /// `None` once the ticket was handed out.
    place: Option<Arc<Place>>,
}

impl Future for Turn {
    type Output = Ticket;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Ticket> {
        if let Some(place) = &self.place {
            let mut state = place.state.lock();
            if !state.served {
                state.waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
        }
        self.place = None;
        Poll::Ready(Ticket {
            line: self.line.clone(),
        })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(place) = self.place.take() else {
            return;
        };
        let served = {
            let mut state = place.state.lock();
            state.left = true;
            state.served
        };
        if served {
            self.line.serve_next();
            return;
        }
        // Out of the line at once: a line of those who left would only grow.
        let mut state = self.line.state.lock();
        let before = state.fresh.len() + state.large.len();
        state.fresh.retain(|other| !Arc::ptr_eq(other, &place));
        state.large.retain(|other| !Arc::ptr_eq(other, &place));
        if state.fresh.len() + state.large.len() < before {
            self.line.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poll(turn: &mut Turn) -> Option<Ticket> {
        let mut context = Context::from_waker(Waker::noop());
        match Pin::new(turn).poll(&mut context) {
            Poll::Ready(ticket) => Some(ticket),
            Poll::Pending => None,
        }
    }

    /// Gives tickets back until everybody was served, and tells in which order that was.
    fn order(mut turns: Vec<(&'static str, Turn)>, ticket: Ticket) -> Vec<&'static str> {
        let mut order = Vec::new();
        let mut ticket = Some(ticket);
        while !turns.is_empty() {
            drop(ticket.take());
            let served = turns
                .iter_mut()
                .position(|(_, turn)| {
                    ticket = poll(turn);
                    ticket.is_some()
                })
                .expect("somebody is next");
            order.push(turns.remove(served).0);
        }
        order
    }

    #[test]
    fn first_come_first_served() {
        let line = Line::new(2);
        let first = poll(&mut line.join(Class::Large)).unwrap();
        let second = poll(&mut line.join(Class::Fresh)).unwrap();
        let turns = ["a", "b", "c"].map(|name| (name, line.join(Class::Fresh)));
        assert!(line.is_waited_for());
        drop(second);
        assert_eq!(order(turns.into(), first), ["a", "b", "c"]);
        assert_eq!(line.figures().out, 0);
        assert!(!line.is_waited_for());
    }

    #[test]
    fn the_fresh_go_first_and_the_large_are_not_starved() {
        let line = Line::new(1);
        let held = poll(&mut line.join(Class::Fresh)).unwrap();
        let mut turns: Vec<_> = ["A", "B"]
            .map(|name| (name, line.join(Class::Large)))
            .into();
        turns.extend(["1", "2", "3", "4", "5", "6"].map(|name| (name, line.join(Class::Fresh))));
        assert_eq!(
            order(turns, held),
            ["1", "2", "3", "4", "A", "5", "6", "B"],
            "one of the large after four of the fresh"
        );
    }

    #[test]
    fn who_leaves_the_line_holds_nobody_up() {
        let line = Line::new(1);
        let held = poll(&mut line.join(Class::Fresh)).unwrap();
        let gone = line.join(Class::Large);
        let mut stays = line.join(Class::Large);
        let figures = line.figures();
        assert_eq!((figures.out, figures.large, figures.waits), (1, 2, 2));
        drop(gone);
        assert_eq!(line.figures().large, 1);
        drop(held);
        // Served, and gone before it took the ticket.
        let late = line.join(Class::Fresh);
        assert!(poll(&mut stays).is_some_and(|ticket| {
            drop(ticket);
            true
        }));
        drop(late);
        assert_eq!(line.figures().out, 0);
        assert!(!line.is_waited_for());
        assert!(poll(&mut line.join(Class::Large)).is_some());
    }
}
