//! A lane: one thread, one isolate, one socket, one job at a time.
//!
//! The realm that is entered between two messages is one in which no script has run. A job takes
//! it, and leaves a new one behind. The first call of a session takes it and keeps it for the
//! calls to come.

use std::io::BufReader;
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use bson::rawdoc;

use super::call::Functions;
use super::exit::{EXIT_MISUSED, EXIT_OUT_OF_MEMORY, exit};
use super::failure::Failure;
use super::globals;
use super::job::{self, Job, JobSpec};
use super::print::Printer;
use super::sink::Output;
use crate::frame::{Kind, read_frame};
use crate::runtime::{Realm, Runtime, RuntimeOptions};

/// V8 has no memory left and would abort.
unsafe extern "C" fn out_of_memory(_: *const std::ffi::c_char, _: &v8::OomDetails) {
    exit(EXIT_OUT_OF_MEMORY);
}

/// Sessions beyond this lose their variables, those first that were called the longest ago.
const SESSIONS_MAX: usize = 16;

pub(super) struct Lane {
    input: BufReader<UnixStream>,
    output: Output,
    /// In the order of their last calls.
    sessions: Vec<Session>,
    runtime: Runtime,
    printer: Rc<Printer>,
    payload: Vec<u8>,
    heap_bytes_max: usize,
}

struct Session {
    number: i64,
    functions: Functions,
    printed_bytes: usize,
    realm: Realm,
}

impl Lane {
    /// With an isolate that has been used once: what V8 reads from the system it has read.
    pub(super) fn new(socket: UnixStream, heap_bytes_max: usize) -> Lane {
        let (Ok(output), Ok(prints)) = (socket.try_clone(), socket.try_clone()) else {
            exit(0);
        };
        let mut runtime = Runtime::new(&RuntimeOptions {
            heap_bytes_max: Some(heap_bytes_max),
            globals: Some(globals::install),
        });
        runtime.isolate().set_oom_error_handler(out_of_memory);
        // The time zone is read from files.
        if runtime.evaluate("start", "new Date().getHours()").is_err() {
            exit(EXIT_MISUSED);
        }
        runtime.renew();
        let printer = Rc::new(Printer::new(prints));
        runtime.isolate().set_slot(printer.clone());
        Lane {
            input: BufReader::with_capacity(64 << 10, socket),
            output: Output::new(output),
            sessions: Vec::new(),
            runtime,
            printer,
            payload: Vec::new(),
            heap_bytes_max,
        }
    }

    /// Serves until the socket ends, and the process with it.
    pub(super) fn run(&mut self) -> ! {
        loop {
            if let Err(failure) = self.serve() {
                self.fail(failure);
            }
        }
    }

    /// The next frame; its payload is in `self.payload`. A stream that ends or breaks ends the
    /// process.
    fn read(&mut self) -> Kind {
        match read_frame(&mut self.input, &mut self.payload) {
            Ok(Some(kind)) => kind,
            Ok(None) | Err(_) => exit(0),
        }
    }

    fn serve(&mut self) -> Result<(), Failure> {
        match self.read() {
            Kind::Job => self.job(),
            Kind::Call => self.call(),
            Kind::Done => self.end_session(),
            _ => Ok(()),
        }
    }

    /// Says what happened, and then only drains the socket: the node gives this host up.
    fn fail(&mut self, failure: Failure) -> ! {
        let document = rawdoc! { "code": failure.code, "message": failure.message };
        self.printer.end();
        self.output.send(Kind::Failure, document.as_bytes());
        self.output.flush();
        loop {
            self.read();
        }
    }

    fn job(&mut self) -> Result<(), Failure> {
        let spec = JobSpec::parse(&self.payload).ok_or_else(|| Failure::broken("a job"))?;
        let output = self.output_copy()?;
        self.printer.begin(0);
        let mut job = Job::start(&mut self.runtime, &spec, output, self.heap_bytes_max)?;
        let mut input_count: i64 = 0;
        loop {
            match self.read() {
                Kind::Documents => input_count += job.map(&mut self.runtime, &self.payload)?,
                Kind::End => {
                    let (emits, reduces) = job.finish_mapping(&mut self.runtime)?;
                    self.printer.end();
                    let counts = rawdoc! { "input": input_count, "emit": emits, "reduce": reduces };
                    self.output.send(Kind::Mapped, counts.as_bytes());
                    self.output.flush();
                }
                kind @ (Kind::Groups | Kind::LastGroups) => {
                    let last = kind == Kind::LastGroups;
                    let reduced = job.reduce(&mut self.runtime, &self.payload, last)?;
                    self.printer.end();
                    self.output.send(Kind::Reduced, &reduced);
                    self.output.flush();
                }
                Kind::Done => break,
                _ => return Err(Failure::broken("a frame in a job")),
            }
        }
        drop(job);
        job::forget(&mut self.runtime);
        // Made now, while nobody waits.
        drop(self.runtime.renew());
        Ok(())
    }

    /// A second handle to the socket for what the job sends from inside V8. The lane's own writer
    /// is always flushed when the job runs.
    fn output_copy(&self) -> Result<UnixStream, Failure> {
        self.input
            .get_ref()
            .try_clone()
            .map_err(|_| Failure::broken("the socket"))
    }

    fn call(&mut self) -> Result<(), Failure> {
        let (number, request) =
            session_number(&self.payload).ok_or_else(|| Failure::broken("a call"))?;
        let known = self.sessions.iter().position(|s| s.number == number);
        let known = known.map(|at| self.sessions.remove(at));
        let (mut functions, printed_bytes, clean) = match known {
            Some(session) => {
                let clean = self.runtime.enter(session.realm);
                (session.functions, session.printed_bytes, Some(clean))
            }
            None => (Functions::default(), 0, None),
        };
        self.printer.begin(printed_bytes);
        let answer = functions.call(&mut self.runtime, request);
        let printed_bytes = self.printer.end();
        let document = match answer {
            Ok(document) => document,
            Err(failure) => {
                rawdoc! { "error": rawdoc! { "code": failure.code, "message": failure.message } }
            }
        };
        self.output.send(Kind::Returned, document.as_bytes());
        self.output.flush();
        let realm = match clean {
            Some(clean) => self.runtime.enter(clean),
            None => self.runtime.renew(),
        };
        if self.sessions.len() >= SESSIONS_MAX {
            self.sessions.remove(0);
        }
        self.sessions.push(Session {
            number,
            functions,
            printed_bytes,
            realm,
        });
        Ok(())
    }

    fn end_session(&mut self) -> Result<(), Failure> {
        let ended = session_number(&self.payload).ok_or_else(|| Failure::broken("a session"))?;
        self.sessions.retain(|session| session.number != ended.0);
        Ok(())
    }
}

/// The number of a session, and what follows it.
fn session_number(payload: &[u8]) -> Option<(i64, &[u8])> {
    let (number, rest) = payload.split_first_chunk::<8>()?;
    Some((i64::from_le_bytes(*number), rest))
}
