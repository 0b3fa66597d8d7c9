//! Who computes, and who waits in line.
//!
//! However many clients scan, sort and parse at once, only as many of them compute as the machine
//! can carry: each holds one of a fixed number of tickets. A point operation needs none.
//!
//! - A command that may compute for long runs as a future under [`Tickets::run`]. It takes a ticket
//!   whenever it is polled and gives it back when it waits for something else (a latch, the log,
//!   another member): whoever holds a ticket computes, and never waits for somebody without one.
//! - Its work is done where it holds up no other connection. While it stands in line for its first
//!   turn it holds no thread.
//! - A turn lasts some milliseconds. What looks at its interruption ([`Interrupt::check`]) gives
//!   the ticket back then, if others wait, and stands in line once more, with its thread parked
//!   ([`breathe`]). There is a limit to parked threads: beyond it whoever has begun goes on.
//! - `killOp`, `maxTimeMS`, a client that leaves and a shutdown end the waiting, too.

mod line;

use std::cell::RefCell;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use banyan_query::QueryError;
use tokio::runtime::{Handle, RuntimeFlavor};

use crate::interrupt::{Interrupt, give_way_with};
pub use line::Figures;
use line::{Class, Line, Ticket};

/// What ends within this is no large operation.
const FRESH_TURN: Duration = Duration::from_millis(5);
/// How long a large operation computes before others have their turn.
const LARGE_TURN: Duration = Duration::from_millis(20);
/// Tickets for each core: some of those who hold one wait for a disk.
const TICKETS_PER_CORE: usize = 2;
/// So many threads may be parked in the middle of their work.
const PARKED_MAX: usize = 1024;

/// The tickets of a process.
pub struct Tickets {
    shared: Arc<Shared>,
}

struct Shared {
    line: Arc<Line>,
    parked: AtomicUsize,
}

impl Default for Tickets {
    fn default() -> Tickets {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        Tickets::new(cores * TICKETS_PER_CORE)
    }
}

/// What the thread computes for at the moment.
struct Running {
    shared: Arc<Shared>,
    /// `None`: it is to end, and goes on without one until it has seen that.
    ticket: Option<Ticket>,
    interrupt: Interrupt,
    began: Instant,
    turn_ends: Instant,
    /// It holds what others wait for.
    urgent: bool,
}

thread_local! {
    static RUNNING: RefCell<Option<Running>> = const { RefCell::new(None) };
}

impl Tickets {
    pub fn new(total: usize) -> Tickets {
        Tickets {
            shared: Arc::new(Shared {
                line: Line::new(total.max(1)),
                parked: AtomicUsize::new(0),
            }),
        }
    }

    pub fn figures(&self) -> Figures {
        self.shared.line.figures()
    }

    /// How many threads are parked in the middle of their work.
    pub fn parked(&self) -> usize {
        self.shared.parked.load(Ordering::Relaxed)
    }

    /// Runs a future that may compute for long. Only before it has begun does the interruption end
    /// it from outside: what it has begun it ends in its own way.
    pub async fn run<T>(
        &self,
        interrupt: &Interrupt,
        future: impl Future<Output = T>,
    ) -> Result<T, QueryError> {
        let can_hand_over = Handle::try_current()
            .is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread);
        // A part of what holds a ticket already.
        if is_running() || !can_hand_over {
            return Ok(future.await);
        }
        interrupt.check()?;
        let mut ticket = wait(self.shared.line.join(Class::Fresh), interrupt).await;
        if ticket.is_none() {
            interrupt.check()?;
        }
        let mut future = pin!(future);
        let mut used = Duration::ZERO;
        let mut begun = false;
        let mut turn = None;
        let output = std::future::poll_fn(|cx| {
            if begun {
                let next = turn.get_or_insert_with(|| {
                    Box::pin(wait(self.shared.line.join(class(used)), interrupt))
                });
                match next.as_mut().poll(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(next) => ticket = next,
                }
                turn = None;
            }
            begun = true;
            let running = self.running(ticket.take(), interrupt, used);
            tokio::task::block_in_place(|| {
                let entered = Entered::enter(running);
                let polled = future.as_mut().poll(cx);
                used += entered.leave();
                polled
            })
        })
        .await;
        Ok(output)
    }

    fn running(&self, ticket: Option<Ticket>, interrupt: &Interrupt, used: Duration) -> Running {
        let now = Instant::now();
        Running {
            shared: self.shared.clone(),
            ticket,
            interrupt: interrupt.clone(),
            began: now,
            turn_ends: now + turn_of(class(used)),
            urgent: false,
        }
    }
}

fn class(used: Duration) -> Class {
    if used < FRESH_TURN {
        Class::Fresh
    } else {
        Class::Large
    }
}

fn turn_of(class: Class) -> Duration {
    match class {
        Class::Fresh => FRESH_TURN,
        Class::Large => LARGE_TURN,
    }
}

/// The ticket; `None` if the operation has to end instead.
async fn wait(turn: line::Turn, interrupt: &Interrupt) -> Option<Ticket> {
    tokio::select! {
        biased;
        ticket = turn => Some(ticket),
        () = interrupt.ended() => None,
    }
}

/// Puts what the thread computes for in its place, and takes it out again, come what may.
struct Entered;

impl Entered {
    fn enter(running: Running) -> Entered {
        RUNNING.with_borrow_mut(|slot| *slot = Some(running));
        give_way_with(Some(breathe));
        Entered
    }

    /// How long it took, without what was waited in line.
    fn leave(self) -> Duration {
        let running = RUNNING.with_borrow_mut(Option::take);
        running.map_or(Duration::ZERO, |running| running.began.elapsed())
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        give_way_with(None);
        RUNNING.with_borrow_mut(|slot| drop(slot.take()));
    }
}

fn is_running() -> bool {
    RUNNING.with_borrow(Option::is_some)
}

/// From now on, in this turn, the operation holds something that others wait for: it lets go of
/// that before it stands in line, once [`turn_is_over`] says so.
pub fn hurry(urgent: bool) {
    RUNNING.with_borrow_mut(|slot| {
        if let Some(running) = slot {
            running.urgent = urgent;
        }
    });
}

/// A ticket for another thread that computes for this one's operation.
pub struct Assistant(Running);

/// One more thread may compute for the operation that this one computes for: a ticket is free, and
/// nobody waits for it.
pub fn assistant() -> Option<Assistant> {
    RUNNING.with_borrow(|slot| {
        let running = slot.as_ref()?;
        // The other one may wait for it, with a ticket: it leaves instead of standing in line.
        Assistant::of(&running.shared, &running.interrupt, true)
    })
}

impl Tickets {
    /// Another thread may compute for a client that has not asked for it yet: a ticket is free. It
    /// stands in line as others do once its turn is over.
    pub fn assistant(&self, interrupt: &Interrupt) -> Option<Assistant> {
        Assistant::of(&self.shared, interrupt, false)
    }
}

impl Assistant {
    fn of(shared: &Arc<Shared>, interrupt: &Interrupt, urgent: bool) -> Option<Assistant> {
        let ticket = shared.line.try_take()?;
        let now = Instant::now();
        Some(Assistant(Running {
            shared: shared.clone(),
            ticket: Some(ticket),
            interrupt: interrupt.clone(),
            began: now,
            turn_ends: now + LARGE_TURN,
            urgent,
        }))
    }

    pub fn run<T>(self, work: impl FnOnce() -> T) -> T {
        let _entered = Entered::enter(self.0);
        work()
    }
}

/// Whether somebody stands in line for the ticket that this thread computes with.
pub fn is_waited_for() -> bool {
    RUNNING.with_borrow(|slot| {
        slot.as_ref()
            .is_some_and(|running| running.shared.line.is_waited_for())
    })
}

/// Others wait, and the operation has computed for as long as it may at once.
pub fn turn_is_over() -> bool {
    RUNNING.with_borrow(|slot| {
        slot.as_ref().is_some_and(|running| {
            running.shared.line.is_waited_for() && Instant::now() >= running.turn_ends
        })
    })
}

/// Lets others compute if this operation's turn is over. Returns once it has a ticket again, or has
/// to end.
fn breathe() {
    RUNNING.with_borrow_mut(|slot| {
        let Some(running) = slot else { return };
        let now = Instant::now();
        if now < running.turn_ends || running.urgent || running.ticket.is_none() {
            return;
        }
        if running.shared.line.is_waited_for() {
            running.stand_in_line();
        }
        running.turn_ends = Instant::now() + LARGE_TURN;
    });
}

impl Running {
    fn stand_in_line(&mut self) {
        let shared = self.shared.clone();
        if shared.parked.fetch_add(1, Ordering::Relaxed) < PARKED_MAX {
            let left = Instant::now();
            // Behind those who wait already, before the ticket goes to one of them.
            let turn = shared.line.join(Class::Large);
            self.ticket = None;
            self.ticket = Handle::current().block_on(wait(turn, &self.interrupt));
            self.began += left.elapsed();
        }
        shared.parked.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Runs work that mostly waits (for script hosts, for the log), without holding up the other
/// connections that share this worker. It takes no ticket: see [`Tickets::run`] for work that
/// computes.
pub fn blocking<T>(work: impl FnOnce() -> T) -> T {
    tokio::task::block_in_place(work)
}

#[cfg(test)]
mod tests {
    use super::*;
    use banyan_query::ErrorKind;
    use std::sync::atomic::AtomicBool;

    fn interrupt(deadline: Option<Instant>) -> Interrupt {
        Interrupt::new(Arc::default(), deadline)
    }

    /// Computes for a while, looking at its interruption; how often the turn was given away shows
    /// in `others`.
    fn compute(interrupt: &Interrupt, time: Duration) -> Result<(), QueryError> {
        let until = Instant::now() + time;
        while Instant::now() < until {
            interrupt.check()?;
        }
        Ok(())
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn no_more_compute_at_once_than_there_are_tickets() {
        let tickets = Arc::new(Tickets::new(2));
        let (now, most) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..40 {
            let (tickets, now, most) = (tickets.clone(), now.clone(), most.clone());
            tasks.spawn(async move {
                let interrupt = interrupt(None);
                let work = async {
                    for _ in 0..20 {
                        most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        std::thread::sleep(Duration::from_millis(1));
                        now.fetch_sub(1, Ordering::SeqCst);
                        interrupt.check()?;
                    }
                    Ok::<_, QueryError>(())
                };
                tickets.run(&interrupt, work).await?
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.unwrap().unwrap();
        }
        assert_eq!(most.load(Ordering::SeqCst), 2);
        assert_eq!((tickets.figures().out, tickets.parked()), (0, 0));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_short_operation_need_not_wait_for_the_end_of_a_long_one() {
        let tickets = Arc::new(Tickets::new(1));
        let ended = Arc::new(AtomicBool::new(false));
        let stop = interrupt(None);
        let long = {
            let (tickets, stop, ended) = (tickets.clone(), stop.clone(), ended.clone());
            tokio::spawn(async move {
                let work = async { compute(&stop, Duration::from_secs(600)) };
                let outcome = tickets.run(&stop, work).await.unwrap();
                ended.store(true, Ordering::SeqCst);
                outcome
            })
        };
        while tickets.figures().out == 0 {
            tokio::task::yield_now().await;
        }
        for _ in 0..3 {
            let short = interrupt(None);
            tickets.run(&short, async {}).await.unwrap();
        }
        assert!(!ended.load(Ordering::SeqCst), "it went on meanwhile");
        stop.raise(crate::interrupt::Cause::Killed);
        let error = long.await.unwrap().unwrap_err();
        assert_eq!(error.kind, ErrorKind::Interrupted);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn waiting_in_line_ends_with_the_deadline_and_when_it_is_killed() {
        let tickets = Arc::new(Tickets::new(1));
        let held = wait(tickets.shared.line.join(Class::Fresh), &interrupt(None)).await;
        assert!(held.is_some());
        let late = interrupt(Some(Instant::now() + Duration::from_millis(20)));
        let error = tickets.run(&late, async {}).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::MaxTimeMSExpired);
        let killed = interrupt(None);
        let waiting = {
            let (tickets, killed) = (tickets.clone(), killed.clone());
            tokio::spawn(async move { tickets.run(&killed, async {}).await })
        };
        while tickets.figures().fresh == 0 {
            tokio::task::yield_now().await;
        }
        killed.raise(crate::interrupt::Cause::ClientGone);
        let error = waiting.await.unwrap().unwrap_err();
        assert_eq!(error.kind, ErrorKind::ClientDisconnect);
        assert_eq!(tickets.figures().fresh, 0, "it left the line");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn who_waits_for_something_else_holds_no_ticket() {
        let tickets = Arc::new(Tickets::new(1));
        let (send, receive) = tokio::sync::oneshot::channel::<()>();
        let waiting = {
            let tickets = tickets.clone();
            tokio::spawn(async move {
                let interrupt = interrupt(None);
                let work = async {
                    receive.await.ok();
                    tickets.figures().out
                };
                tickets.run(&interrupt, work).await
            })
        };
        // Had the other one kept its ticket, this would never end.
        let own = interrupt(None);
        let work = async {
            send.send(()).ok();
        };
        tickets.run(&own, work).await.unwrap();
        assert_eq!(waiting.await.unwrap().unwrap(), 1);
    }
}
