//! Hosts that are somebody else's: whatever one answers, its node reports an error or takes what is
//! valid, in bounded time.

// The helpers of tests may panic as the tests do.
#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::FromRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use banyan_script::hosts::Interrupted;
use banyan_script::{HostOptions, Hosts, JobError, MapReduceSpec};
use bson::{Document, RawDocumentBuf, rawdoc};

const LANES: i32 = 2;
const CONTROL_FD: i32 = 3;
/// A host that says nothing is given up by then.
const PATIENCE: Duration = Duration::from_millis(400);

struct Random(u64);

impl Random {
    fn below(&mut self, count: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % count
    }
}

/// The inside of a host: started by the test below, in a process of its own. Its environment is
/// empty; the seed comes as the name of a test that is to be skipped.
#[test]
#[ignore = "not a test: the script hosts of the other"]
fn hostile_entry() {
    let mut arguments = std::env::args().skip_while(|argument| argument != "--skip");
    let seed: u64 = arguments.nth(1).unwrap().parse().unwrap();
    let lanes: Vec<_> = (0..LANES)
        .map(|lane| {
            // SAFETY: the node has put the lane's socket there, and nothing else uses it.
            let socket = unsafe { File::from_raw_fd(CONTROL_FD + 1 + lane) };
            thread::spawn(move || answer(socket, seed * 31 + lane as u64))
        })
        .collect();
    for lane in lanes {
        let _ = lane.join();
    }
}

/// Reads what comes, and says anything.
fn answer(socket: File, seed: u64) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut reader = socket.try_clone().unwrap();
    thread::spawn(move || {
        let mut taken = [0; 1 << 16];
        while matches!(reader.read(&mut taken), Ok(bytes) if bytes > 0) {}
    });
    let mut writer = socket;
    for _ in 0..random.below(12) {
        if writer.write_all(&frame(&mut random)).is_err() {
            return;
        }
    }
    if random.below(2) == 0 {
        thread::sleep(2 * PATIENCE);
    }
}

fn frame(random: &mut Random) -> Vec<u8> {
    let kind = match random.below(10) {
        0 => random.below(256) as u8,
        _ => b"PPRMgaFLl"[random.below(9) as usize],
    };
    let mut payload = Vec::new();
    for _ in 0..random.below(4) {
        let n = random.below(5) as i32;
        let document = match random.below(5) {
            0 => rawdoc! { "_id": n, "value": { "a": [1, "two", { "b": 3.0 }] } },
            1 => rawdoc! { "_id": "k", "v": [1, 2] },
            2 => rawdoc! { "input": 1_i64, "emit": -1_i64, "reduce": i64::MAX },
            3 => rawdoc! { "code": 139, "message": "it is said" },
            _ => rawdoc! { "value": true },
        };
        payload.extend_from_slice(document.as_bytes());
    }
    if random.below(2) == 0 && !payload.is_empty() {
        for _ in 0..=random.below(3) {
            let at = random.below(payload.len() as u64) as usize;
            payload[at] = random.below(256) as u8;
        }
    }
    let length = match random.below(12) {
        0 => random.below(1 << 32) as u32,
        1 => payload.len() as u32 + 1,
        _ => payload.len() as u32,
    };
    let mut out = length.to_le_bytes().to_vec();
    out.push(kind);
    out.extend_from_slice(&payload);
    out
}

fn hosts(seed: u64) -> Hosts {
    let arguments = [
        "hostile_entry",
        "--exact",
        "--ignored",
        "--nocapture",
        "--test-threads=1",
        "--skip",
        &seed.to_string(),
    ];
    Hosts::new(HostOptions {
        lanes: LANES as usize,
        ..HostOptions::new(
            std::env::current_exe().unwrap(),
            arguments.map(str::to_owned).to_vec(),
            std::env::temp_dir(),
        )
    })
}

fn patient() -> Interrupted {
    let began = Instant::now();
    Arc::new(move || began.elapsed() > PATIENCE)
}

/// What the node would go on with.
fn results(hosts: &Hosts) -> Result<Vec<RawDocumentBuf>, JobError> {
    let spec = MapReduceSpec {
        map: Some("function() { emit(1, 1); }".into()),
        reduce: "function(k, v) { return 1; }".into(),
        ..Default::default()
    };
    let mut job = hosts.map_reduce(&spec, patient())?;
    let feeders = job.start_mapping()?;
    thread::scope(|scope| {
        for mut feeder in feeders {
            scope.spawn(move || {
                if feeder.push(&rawdoc! { "_id": 1 }).is_ok() {
                    let _ = feeder.finish();
                }
            });
        }
    });
    let mapped = job.finish_mapping()?;
    let inputs = mapped.runs.into_iter();
    let inputs = inputs.map(|run| Box::new(run.documents()) as _).collect();
    job.reduce(inputs, true).collect()
}

#[test]
fn whatever_a_host_says_its_node_lives() {
    static PANICS: AtomicUsize = AtomicUsize::new(0);
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        PANICS.fetch_add(1, Ordering::Relaxed);
        usual(info);
    }));
    let mut errors = 0;
    for seed in 1..=40 {
        let (hosts, began) = (hosts(seed), Instant::now());
        match results(&hosts) {
            Err(_) => errors += 1,
            Ok(results) => {
                for result in &results {
                    assert!(
                        Document::try_from(result).is_ok(),
                        "seed {seed}: {result:?}"
                    );
                }
            }
        }
        let call =
            rawdoc! { "source": "function() { return 1; }", "expression": true, "arguments": [] };
        if let Ok(answer) = hosts.session().call(&call, patient()) {
            assert!(
                Document::try_from(&answer).is_ok(),
                "seed {seed}: {answer:?}"
            );
        }
        assert!(began.elapsed() < Duration::from_secs(20), "seed {seed}");
    }
    // The threads that read lanes are the node's own.
    assert_eq!(PANICS.load(Ordering::Relaxed), 0);
    assert!(errors > 20, "hosts were believed: {errors}");
}
