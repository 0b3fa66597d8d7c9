//! A lane: one thread, one isolate, one socket, one job at a time.
//!
//! The realm that is entered between two messages is one in which no script has run. A job takes
//! it, and leaves a new one behind. The first call of a session takes it and keeps it for the
//! calls to come.

use std::io::BufReader;
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use bson::{RawDocument, rawdoc};

use super::call::Functions;
use super::job::{Job, JobSpec};
use super::print::{self, Printer};
use super::sink::Output;
use crate::bindings::ConvertError;
use crate::frame::{Kind, read_frame};
use crate::runtime::{Realm, Runtime, RuntimeOptions, ScriptError};

/// Why a job ended without a result, in the terms of the wire.
#[derive(Debug)]
pub struct Failure {
    pub code: i32,
    pub message: String,
}

const JS_INTERPRETER_FAILURE: i32 = 139;
pub const EXCEEDED_MEMORY_LIMIT: i32 = 146;
const INTERRUPTED: i32 = 11601;
const OBJECT_TOO_LARGE: i32 = 17260;
const NESTED_TOO_DEEP: i32 = 17279;
/// The codes that `driver.js` throws with; those of a user's own exceptions mean nothing.
const DRIVER_CODES: [i32; 4] = [31220, 31292, OBJECT_TOO_LARGE, NESTED_TOO_DEEP];

impl From<ScriptError> for Failure {
    fn from(error: ScriptError) -> Self {
        let message = error.to_string();
        let code = match error {
            ScriptError::Thrown {
                code: Some(code), ..
            } if DRIVER_CODES.contains(&code) => code,
            ScriptError::OutOfMemory { .. } => EXCEEDED_MEMORY_LIMIT,
            ScriptError::Terminated => INTERRUPTED,
            ScriptError::Convert(ConvertError::TooLarge) => OBJECT_TOO_LARGE,
            ScriptError::Convert(ConvertError::TooDeep) => NESTED_TOO_DEEP,
            ScriptError::Thrown {
                stack: Some(stack), ..
            } => {
                // V8's trace begins with the message; MongoDB's messages have both as well.
                return Failure {
                    code: JS_INTERPRETER_FAILURE,
                    message: with_trace(message, &stack),
                };
            }
            _ => JS_INTERPRETER_FAILURE,
        };
        Failure { code, message }
    }
}

impl From<ConvertError> for Failure {
    fn from(error: ConvertError) -> Self {
        ScriptError::Convert(error).into()
    }
}

/// `Error: boom :` and the places in the user's functions, without those of the driver.
fn with_trace(message: String, stack: &str) -> String {
    let places = stack
        .lines()
        .filter_map(|line| line.trim().strip_prefix("at "));
    let own: Vec<&str> = places
        .filter(|place| !place.contains("driver:"))
        .take(8)
        .collect();
    if own.is_empty() {
        message
    } else {
        format!("{message} :\n@{}\n", own.join("\n@"))
    }
}

pub fn run(socket: UnixStream, heap_bytes_max: usize) {
    let (Ok(output), Ok(prints)) = (socket.try_clone(), socket.try_clone()) else {
        super::exit(0);
    };
    let mut runtime = Runtime::new(&RuntimeOptions {
        heap_bytes_max: Some(heap_bytes_max),
        globals: Some(print::install),
    });
    runtime.isolate().set_oom_error_handler(out_of_memory);
    let printer = Rc::new(Printer::new(prints));
    runtime.isolate().set_slot(printer.clone());
    let mut lane = Lane {
        input: BufReader::with_capacity(64 << 10, socket),
        output: Output::new(output),
        sessions: Vec::new(),
        runtime,
        printer,
        payload: Vec::new(),
        heap_bytes_max,
    };
    loop {
        if let Err(failure) = lane.serve() {
            lane.fail(failure);
        }
    }
}

/// V8 has no memory left and would abort.
unsafe extern "C" fn out_of_memory(_: *const std::ffi::c_char, _: &v8::OomDetails) {
    super::exit(super::EXIT_OUT_OF_MEMORY);
}

/// Sessions beyond this lose their variables, those first that were called the longest ago.
const SESSIONS_MAX: usize = 16;

struct Lane {
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
    /// The next frame; its payload is in `self.payload`. A stream that ends or breaks ends the
    /// process.
    fn read(&mut self) -> Kind {
        match read_frame(&mut self.input, &mut self.payload) {
            Ok(Some(kind)) => kind,
            Ok(None) | Err(_) => super::exit(0),
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
        let spec = JobSpec::parse(&self.payload).ok_or_else(|| broken("a job"))?;
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
                Kind::Groups => {
                    let reduced = job.reduce(&mut self.runtime, &self.payload)?;
                    self.printer.end();
                    self.output.send(Kind::Reduced, &reduced);
                    self.output.flush();
                }
                Kind::Done => break,
                _ => return Err(broken("a frame in a job")),
            }
        }
        drop(job);
        super::job::forget(&mut self.runtime);
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
            .map_err(|_| broken("the socket"))
    }

    fn call(&mut self) -> Result<(), Failure> {
        let (number, request) = session_number(&self.payload).ok_or_else(|| broken("a call"))?;
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
        let ended = session_number(&self.payload).ok_or_else(|| broken("a session"))?;
        self.sessions.retain(|session| session.number != ended.0);
        Ok(())
    }
}

/// The number of a session, and what follows it.
fn session_number(payload: &[u8]) -> Option<(i64, &[u8])> {
    let (number, rest) = payload.split_first_chunk::<8>()?;
    Some((i64::from_le_bytes(*number), rest))
}

fn broken(what: &str) -> Failure {
    let message = format!("the script host could not read {what}");
    Failure {
        code: JS_INTERPRETER_FAILURE,
        message,
    }
}

/// The documents of a payload, end to end.
pub fn documents(mut payload: &[u8]) -> impl Iterator<Item = Result<&[u8], ConvertError>> {
    std::iter::from_fn(move || {
        if payload.is_empty() {
            return None;
        }
        let length = payload
            .first_chunk::<4>()
            .map(|bytes| i32::from_le_bytes(*bytes));
        let length = length.and_then(|length| usize::try_from(length).ok());
        match length {
            Some(length) if length >= 5 && length <= payload.len() => {
                let (document, rest) = payload.split_at(length);
                payload = rest;
                Some(Ok(document))
            }
            _ => {
                payload = &[];
                Some(Err(ConvertError::Malformed))
            }
        }
    })
}

/// Raw bytes that the host was sent, as a document.
pub fn document(bytes: &[u8]) -> Result<&RawDocument, ConvertError> {
    RawDocument::from_bytes(bytes).map_err(|_| ConvertError::Malformed)
}
