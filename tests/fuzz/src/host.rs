//! A script host that is told nonsense by its node: it ends, or answers, and does not panic.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use banyan_diff::generate::Generator;
use banyan_diff::random::Random;
use banyan_tests::program;
use bson::{Document, doc};
use tempfile::TempDir;

use crate::batch::Counts;
use crate::places;

/// The argument that makes the data node a script host.
const HOST_ARGUMENT: &str = "--script-host";
const CONTROL_FD: i32 = 3;
const FRAMES_PER_HOST: usize = 12;
/// Long enough for V8 to start on a machine that does other things.
const ENDING_MAX: Duration = Duration::from_secs(20);

struct Host {
    child: Child,
    control: UnixStream,
    lane: UnixStream,
    output: TempDir,
}

impl Host {
    fn start() -> Result<Host> {
        let output = tempfile::tempdir()?;
        let (control, control_theirs) = UnixStream::pair()?;
        let (lane, lane_theirs) = UnixStream::pair()?;
        let (one, two) = (control_theirs.as_raw_fd(), lane_theirs.as_raw_fd());
        let mut command = Command::new(program("mongod"));
        command
            .arg(HOST_ARGUMENT)
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(output.path().join("stderr"))?);
        // SAFETY: between fork and exec only system calls are made, on descriptors that are open.
        unsafe {
            command.pre_exec(move || {
                let place = |from: i32, to: i32| match nix::libc::dup2(from, to) {
                    -1 => Err(std::io::Error::last_os_error()),
                    _ => Ok(()),
                };
                // First out of the way: one may lie where the other has to go.
                place(one, 100)?;
                place(two, 101)?;
                place(100, CONTROL_FD)?;
                place(101, CONTROL_FD + 1)
            });
        }
        let child = command.spawn().context("a script host starts")?;
        lane.set_read_timeout(Some(Duration::from_millis(30)))?;
        lane.set_write_timeout(Some(Duration::from_millis(300)))?;
        Ok(Host {
            child,
            control,
            lane,
            output,
        })
    }

    /// Closes its sockets, and waits for its end.
    fn end(mut self) -> Result<(Option<ExitStatus>, String)> {
        drop(self.control);
        drop(self.lane);
        let began = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break Some(status);
            }
            if began.elapsed() > ENDING_MAX {
                self.child.kill()?;
                self.child.wait()?;
                break None;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let said = std::fs::read(self.output.path().join("stderr"))?;
        Ok((status, String::from_utf8_lossy(&said).into_owned()))
    }
}

fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = (payload.len() as u32).to_le_bytes().to_vec();
    out.push(kind);
    out.extend_from_slice(payload);
    out
}

fn any_frame(random: &mut Random, generator: &mut Generator) -> Vec<u8> {
    let code = *random.pick(&[
        "function() { emit(this.a, 1); }",
        "function(k, v) { return Array.sum(v); }",
        "function() { for (;;) print('x'); }",
        "function() { return this; }",
        "function( {",
        "",
    ]);
    let job = doc! { "map": code, "reduce": "function(k, v) { return v[0]; }",
    "scope": generator.object(2), "jsMode": random.percent(50), "limit": random.between(-1, 9) };
    let call = doc! { "code": code, "function": code, "args": [generator.value(2)],
    "this": generator.object(2), "scope": generator.object(1) };
    let bytes = |document: &Document| document.to_vec().unwrap_or_default();
    let (kind, mut payload) = match random.below(7) {
        0 => (b'J', bytes(&job)),
        1 => {
            let mut payload = random.between(0, 3).to_le_bytes().to_vec();
            payload.extend(bytes(&call));
            (b'A', payload)
        }
        2 => {
            let documents: Vec<Document> = (0..3).map(|_| generator.object(3)).collect();
            (b'D', documents.iter().flat_map(bytes).collect())
        }
        3 => (b'E', Vec::new()),
        4 => (
            b'G',
            bytes(&doc! { "k": generator.value(1), "v": [generator.value(1), 2] }),
        ),
        5 => (b'Z', random.between(0, 3).to_le_bytes().to_vec()),
        _ => (*random.pick(b"OPRMgaFLl"), bytes(&job)),
    };
    if random.percent(55) {
        places::damage(random, &mut payload);
    }
    let mut out = frame(kind, &payload);
    if random.percent(15) {
        places::any_bytes(random, &mut out);
    }
    out
}

/// Tells one host a few frames; what was wrong with how it took them.
pub fn round(seed: u64, number: u64, counts: &mut Counts) -> Result<Vec<String>> {
    let mut random = Random::new(seed, 2 * number);
    let mut generator = Generator::new(Random::new(seed, 2 * number + 1));
    let mut host = Host::start()?;
    let mut configuration = doc! { "lanes": 1_i64, "heapBytesMax": 64_i64 << 20 }.to_vec()?;
    if random.percent(10) {
        places::damage(&mut random, &mut configuration);
    }
    let mut sent = vec![frame(b'O', &configuration)];
    let mut is_open = host.control.write_all(&sent[0]).is_ok();
    for _ in 0..FRAMES_PER_HOST {
        let next = any_frame(&mut random, &mut generator);
        counts.sent += 1;
        is_open = is_open && host.lane.write_all(&next).is_ok();
        sent.push(next);
        if !is_open {
            counts.closed += 1;
            break;
        }
        let mut answer = [0; 1 << 16];
        match host.lane.read(&mut answer) {
            Ok(0) => is_open = false,
            Ok(_) => counts.answered += 1,
            Err(_) => counts.silent += 1,
        }
    }
    let (status, said) = host.end()?;
    let mut problems = Vec::new();
    if said.contains("panicked at") || said.contains("Fatal error") {
        problems.push(format!("seed {seed}, host {number}: it said {said}"));
    }
    match status {
        None => problems.push(format!("seed {seed}, host {number}: it does not end")),
        Some(status) => {
            if let Some(signal) = status.signal() {
                problems.push(format!(
                    "seed {seed}, host {number}: ended by signal {signal}: {said}"
                ));
            }
        }
    }
    Ok(problems)
}
