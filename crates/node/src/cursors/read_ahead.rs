//! Reading ahead: while a client looks at one batch, the next one is read.
//!
//! A cursor whose client has asked for a second batch, and a large one, most often is read to its
//! end. Its next batch is read on another thread as soon as this one goes out, where a ticket is free
//! and this one was found quickly. No more than one batch is read ahead, and the process keeps only so
//! many bytes of such batches ([`Reserved`]). Reading ends early when somebody waits for a ticket or
//! [`TIME_MAX`] is over: the `getMore` goes on from there.

use std::sync::Arc;
use std::time::{Duration, Instant};

use banyan_execution::tickets;
use banyan_wire::CommandError;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::ahead::{Ahead, Reserved};
use super::batch::Batch;
use super::{Cursor, CursorManager, Tail};
use crate::context::CommandContext;

/// Smaller batches are read as soon as another thread has begun to.
const WORTHWHILE_BYTES: usize = 64 << 10;
/// What takes longer is read for a client that waits for it.
const TIME_MAX: Duration = Duration::from_millis(100);

/// Gives a cursor back after a batch of `sent` bytes, and has its next batch of so many documents read
/// if that is worth it.
pub fn put_back(
    ctx: &CommandContext<'_>,
    id: i64,
    mut cursor: Box<Cursor>,
    sent: usize,
    documents: u64,
) -> Result<(), CommandError> {
    let manager = &ctx.node.cursors;
    let took = std::mem::take(&mut cursor.batch_took);
    let is_worthwhile = sent >= WORTHWHILE_BYTES
        && took < TIME_MAX
        && cursor.tail == Tail::Ends
        && cursor.stats.is_some();
    let (true, Ok(runtime)) = (is_worthwhile, Handle::try_current()) else {
        return manager.put_back(id, cursor);
    };
    let bytes_max = cursor.batch_bytes(documents);
    let Some(reserved) = Reserved::take(&manager.read_ahead, bytes_max) else {
        return manager.put_back(id, cursor);
    };
    let interrupt = ctx.interrupt().anew(deadline(&cursor));
    let Some(assistant) = ctx.node.tickets.assistant(&interrupt) else {
        return manager.put_back(id, cursor);
    };
    let (sender, receiver) = oneshot::channel();
    manager.lend(id, &cursor, &interrupt, receiver)?;
    cursor.slot.set(Some(interrupt));
    let borrowed = Borrowed {
        manager: manager.clone(),
        id,
        cursor: Some(cursor),
        sender: Some(sender),
    };
    runtime.spawn_blocking(move || {
        let mut borrowed = borrowed;
        if let Some(cursor) = &mut borrowed.cursor {
            assistant.run(|| read(cursor, documents, bytes_max, reserved));
        }
        borrowed.give_back();
    });
    Ok(())
}

fn deadline(cursor: &Cursor) -> Option<Instant> {
    cursor.time_left.map(|left| Instant::now() + left)
}

fn read(cursor: &mut Cursor, documents: u64, bytes_max: usize, reserved: Reserved) {
    let began = Instant::now();
    let mut batch = Batch::next(4096);
    batch.limit_bytes(bytes_max);
    let goes_on = || !tickets::is_waited_for() && began.elapsed() < TIME_MAX;
    let filled = cursor.fill_while(&mut batch, documents, goes_on);
    cursor.slot.set(None);
    cursor.note_time(began.elapsed());
    cursor.ahead = Some(Ahead::new(batch, documents, filled, reserved));
}

/// A cursor while its next batch is read; it is closed if the thread that reads fails.
struct Borrowed {
    manager: Arc<CursorManager>,
    id: i64,
    cursor: Option<Box<Cursor>>,
    sender: Option<oneshot::Sender<Box<Cursor>>>,
}

impl Borrowed {
    fn give_back(mut self) {
        if let (Some(cursor), Some(sender)) = (self.cursor.take(), self.sender.take()) {
            self.manager.take_back(self.id, cursor, sender);
        }
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        if self.sender.is_some() {
            self.manager.forget_lent(self.id);
        }
    }
}
