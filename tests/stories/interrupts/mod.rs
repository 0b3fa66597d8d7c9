//! Generated requests of extreme size: each ends when its time is over, when it is killed and when
//! its client leaves, and none holds up another connection.
//!
//! A request is judged by the machine as it is at that moment (`noise.rs`): what is late only
//! because others compute, too, is asked again. `BANYAN_INTERRUPTS_SEED` and
//! `BANYAN_INTERRUPTS_CASES` repeat a run or make it longer.

mod extreme;
mod noise;
mod values;

use std::net::Shutdown;
use std::ops::Range;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use banyan_diff::random::Random;
use banyan_tests::{Launch, Process};
use bson::{Document, doc};

use crate::concerns::Wire;
use extreme::Extreme;
use noise::{Noise, Pinger};

/// How late an operation may end, and how long a ping may take, on a machine that is idle: 50 ms. A
/// build without optimization takes several times as long for the same work.
const LATE_MAX: Duration = match cfg!(debug_assertions) {
    true => Duration::from_millis(250),
    false => Duration::from_millis(50),
};
/// A request fails if it is late each time.
const ATTEMPTS: usize = 4;
/// What goes on for so long never ends.
const FOREVER: Duration = Duration::from_secs(5);
const FIXED_SEED: u64 = 20_261;
const CASES: u64 = 60;

/// What ends a request that would run for longer.
#[derive(Clone, Copy, Debug)]
enum End {
    MaxTime(Duration),
    Kill(Duration),
    Leave(Duration),
}

impl End {
    fn draw(random: &mut Random) -> End {
        let after = Duration::from_millis(random.between(10, 150) as u64);
        *random.pick(&[End::MaxTime(after), End::Kill(after), End::Leave(after)])
    }
}

/// What was seen of one request.
struct Seen {
    began: Instant,
    ended: Instant,
    /// How long after what should have ended it the request went on; `None` if it was done before.
    late: Option<Duration>,
}

#[test]
fn a_fixed_choice_of_extreme_requests_is_interruptible() -> Result<()> {
    check(FIXED_SEED)
}

#[test]
fn fresh_extreme_requests_are_interruptible() -> Result<()> {
    let given = std::env::var("BANYAN_INTERRUPTS_SEED");
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis() as u64;
    check(given.map_or(Ok(now), |seed| seed.parse())?)
}

fn check(seed: u64) -> Result<()> {
    let cases = cases()?;
    let runtime = tokio::runtime::Runtime::new()?;
    let server = runtime.block_on(Launch::mongod().start());
    let mut trial = Trial::new(&server)?;
    let (mut failed, mut interrupted) = (Vec::new(), 0);
    for number in cases.clone() {
        let mut random = Random::new(seed, number);
        let end = End::draw(&mut random);
        let request = Extreme::new(random).request();
        if let Some(complaint) = trial.judge(&request, end, &mut interrupted)? {
            let name = &request.name;
            let line = format!("seed {seed}, case {number}, {name}, {end:?}: {complaint}");
            println!("{line}");
            failed.push(line);
        }
    }
    ensure!(failed.is_empty(), "{}", failed.join("\n"));
    ensure!(
        interrupted >= (cases.end - cases.start) / 6,
        "only {interrupted} of {cases:?} requests had to be interrupted: they are not extreme"
    );
    Ok(())
}

/// `60`: the first sixty; `7..8`: the one with that number.
fn cases() -> Result<Range<u64>> {
    let Ok(given) = std::env::var("BANYAN_INTERRUPTS_CASES") else {
        return Ok(0..CASES);
    };
    let (first, end) = given.split_once("..").unwrap_or(("0", &given));
    Ok(first.parse()?..end.parse()?)
}

struct Trial<'p> {
    server: &'p Process,
    control: Wire,
    noise: Noise,
    pingers: [Pinger; 2],
}

impl<'p> Trial<'p> {
    fn new(server: &'p Process) -> Result<Trial<'p>> {
        let noise = Noise::measure();
        let mut control = Wire::connect(server)?;
        for command in extreme::preparation() {
            control.ok("test", command)?;
        }
        // A connection that carried a query is served where queries are.
        let mut ordinary = Wire::connect(server)?;
        ordinary.ok("test", doc! { "find": "small", "filter": { "_id": 1 } })?;
        Ok(Trial {
            server,
            control,
            noise,
            pingers: [
                Pinger::start(Wire::connect(server)?),
                Pinger::start(ordinary),
            ],
        })
    }

    /// What is wrong each time that the request is asked.
    fn judge(
        &mut self,
        request: &extreme::Request,
        end: End,
        interrupted: &mut u64,
    ) -> Result<Option<String>> {
        let mut complaint = None;
        for attempt in 0..ATTEMPTS {
            if let Some(document) = &request.changes {
                self.control.ok("test", document.clone())?;
            }
            let seen = self
                .run(&request.command, end)
                .with_context(|| format!("{}, {end:?}", request.name))?;
            if attempt == 0 && seen.late.is_some() {
                *interrupted += 1;
            }
            complaint = self.complaint(&seen);
            if complaint.is_none() {
                break;
            }
        }
        Ok(complaint)
    }

    fn complaint(&self, seen: &Seen) -> Option<String> {
        let noise = self.noise.between(seen.began, seen.ended);
        let allowed = noise.allowed(LATE_MAX);
        if let Some(late) = seen.late
            && late > allowed
        {
            return Some(format!("{late:?} late, {allowed:?} are allowed"));
        }
        let slowest = self
            .pingers
            .iter()
            .map(|pinger| pinger.slowest(seen.began, seen.ended));
        let slowest = slowest.max().unwrap_or_default();
        (slowest > allowed).then(|| format!("a ping took {slowest:?}, {allowed:?} are allowed"))
    }

    fn run(&mut self, command: &Document, end: End) -> Result<Seen> {
        let mut command = command.clone();
        if let End::MaxTime(limit) = end {
            command.insert("maxTimeMS", limit.as_millis() as i64);
        }
        let mut wire = Wire::connect(self.server)?;
        let client = wire.local_address()?;
        let began = Instant::now();
        wire.send("test", command)?;
        let sent = Instant::now();
        let handle = wire.try_clone()?;
        let reply = std::thread::spawn(move || {
            let reply = wire.receive();
            (reply, Instant::now())
        });
        let until = |due: Instant| {
            while Instant::now() < due && !reply.is_finished() {
                std::thread::sleep(Duration::from_millis(1));
            }
            !reply.is_finished()
        };
        let due = match end {
            End::MaxTime(limit) => {
                until(sent + FOREVER);
                Some(sent + limit)
            }
            End::Kill(after) => match until(sent + after) {
                true => self.kill(&client, || reply.is_finished())?,
                false => None,
            },
            End::Leave(after) => match until(sent + after) {
                true => return self.leave(&client, &handle, began),
                false => None,
            },
        };
        let (reply, ended) = reply.join().expect("the reader does not panic");
        reply.context("no reply")?;
        let late = due.and_then(|due| ended.checked_duration_since(due));
        Ok(Seen { began, ended, late })
    }

    /// Kills what this client asks, and says when.
    fn kill(&mut self, client: &str, is_over: impl Fn() -> bool) -> Result<Option<Instant>> {
        while !is_over() {
            let Some(operation) = self.operation(client)? else {
                continue;
            };
            let id = operation.get_i32("opid")?;
            self.control.ok("admin", doc! { "killOp": 1, "op": id })?;
            return Ok(Some(Instant::now()));
        }
        Ok(None)
    }

    /// Closes the connection, and sees how long its operation goes on.
    fn leave(&mut self, client: &str, handle: &Wire, began: Instant) -> Result<Seen> {
        let left = Instant::now();
        handle.shutdown(Shutdown::Both)?;
        let mut late = Duration::ZERO;
        loop {
            let asked = Instant::now();
            if self.operation(client)?.is_none() {
                break;
            }
            late = asked - left;
            if late > FOREVER {
                // It must not disturb those that follow.
                self.kill(client, || false)?;
                break;
            }
        }
        Ok(Seen {
            began,
            ended: left + late,
            late: (late > Duration::ZERO).then_some(late),
        })
    }

    fn operation(&mut self, client: &str) -> Result<Option<Document>> {
        let ask = doc! { "currentOp": 1, "client": client };
        let reply = self.control.ok("admin", ask)?;
        let found = reply.get_array("inprog")?.first().cloned();
        Ok(found.and_then(|found| found.as_document().cloned()))
    }
}
