//! How busy the machine is by itself, and how long pings take meanwhile.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bson::doc;

use crate::concerns::Wire;

const PAUSE: Duration = Duration::from_millis(4);
/// Steps of the piece of work that is measured again and again: about a millisecond.
const STEPS: u64 = 40_000;

/// Times, each with the moment at which it began.
type Samples = Arc<Mutex<Vec<(Instant, Duration)>>>;

/// Something that is done over and over on a thread of its own, until it is dropped.
struct Repeated {
    samples: Samples,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Repeated {
    fn start(mut act: impl FnMut() -> bool + Send + 'static) -> Repeated {
        let (samples, over) = (Samples::default(), Arc::<AtomicBool>::default());
        let (kept, ends) = (samples.clone(), over.clone());
        let thread = std::thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                let began = Instant::now();
                if !act() {
                    // What failed took for ever.
                    kept.lock().unwrap().push((began, Duration::MAX));
                    break;
                }
                kept.lock().unwrap().push((began, began.elapsed()));
                std::thread::sleep(PAUSE);
            }
        });
        Repeated {
            samples,
            over,
            thread: Some(thread),
        }
    }

    /// What was under way between two moments.
    fn between(&self, from: Instant, to: Instant) -> Vec<Duration> {
        let samples = self.samples.lock().unwrap();
        let within = samples.iter().filter(|(began, took)| {
            *began <= to && began.checked_add(*took).is_none_or(|end| end >= from)
        });
        within.map(|(_, took)| *took).collect()
    }
}

impl Drop for Repeated {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A piece of work whose time says how fast the machine is, and how late it wakes threads.
pub struct Noise {
    work: Repeated,
    /// What it takes if nobody disturbs it.
    alone: Duration,
}

fn work() {
    let mut number = 1_u64;
    for step in 0..STEPS {
        number = std::hint::black_box(number.rotate_left(5) ^ step);
    }
}

impl Noise {
    pub fn measure() -> Noise {
        let once = || {
            let began = Instant::now();
            work();
            began.elapsed()
        };
        Noise {
            alone: (0..50).map(|_| once()).min().unwrap_or_default(),
            work: Repeated::start(|| {
                work();
                true
            }),
        }
    }

    /// The machine between two moments.
    pub fn between(&self, from: Instant, to: Instant) -> Level {
        // A little before and after: a short time tells little.
        let around = Duration::from_millis(50);
        let samples = self.work.between(from - around, to + around);
        let total: Duration = samples.iter().sum();
        let alone = self.alone.as_secs_f64() * samples.len().max(1) as f64;
        Level {
            slowness: (total.as_secs_f64() / alone).max(1.0),
            worst: samples.into_iter().max().unwrap_or_default(),
        }
    }
}

/// How disturbed the machine is.
pub struct Level {
    /// How many times as long as alone work takes on the whole.
    slowness: f64,
    worst: Duration,
}

impl Level {
    /// What is allowed now where an idle machine is allowed `time`.
    pub fn allowed(&self, time: Duration) -> Duration {
        time.mul_f64(self.slowness) + 2 * self.worst
    }
}

/// Another client, which only wants to know whether the server is there.
pub struct Pinger(Repeated);

impl Pinger {
    pub fn start(mut wire: Wire) -> Pinger {
        Pinger(Repeated::start(move || {
            wire.ok("admin", doc! { "ping": 1 }).is_ok()
        }))
    }

    /// The slowest ping between two moments.
    pub fn slowest(&self, from: Instant, to: Instant) -> Duration {
        let pings = self.0.between(from, to);
        pings.into_iter().max().unwrap_or_default()
    }
}
