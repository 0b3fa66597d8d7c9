//! A lane: one thread, one isolate, one socket, one job at a time.

use std::io::BufReader;
use std::os::unix::net::UnixStream;

use bson::{RawDocument, rawdoc};

use super::call::Functions;
use super::job::{Job, JobSpec};
use super::sink::Output;
use crate::bindings::ConvertError;
use crate::frame::{Kind, read_frame};
use crate::runtime::{Runtime, RuntimeOptions, ScriptError};

/// Why a job ended without a result, in the terms of the wire.
#[derive(Debug)]
pub struct Failure {
    pub code: i32,
    pub message: String,
}

const JS_INTERPRETER_FAILURE: i32 = 139;
const EXCEEDED_MEMORY_LIMIT: i32 = 146;
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
    let Ok(output) = socket.try_clone() else {
        super::exit(0);
    };
    let mut runtime = Runtime::new(&RuntimeOptions {
        heap_bytes_max: Some(heap_bytes_max),
    });
    runtime.isolate().set_oom_error_handler(out_of_memory);
    let mut lane = Lane {
        input: BufReader::with_capacity(64 << 10, socket),
        output: Output::new(output),
        runtime,
        payload: Vec::new(),
        heap_bytes_max,
        functions: Functions::default(),
        session: None,
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

struct Lane {
    input: BufReader<UnixStream>,
    output: Output,
    runtime: Runtime,
    payload: Vec<u8>,
    heap_bytes_max: usize,
    functions: Functions,
    /// Whose calls the global object has seen.
    session: Option<i64>,
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
            _ => Ok(()),
        }
    }

    /// Says what happened, and then only drains the socket: the node gives this host up.
    fn fail(&mut self, failure: Failure) -> ! {
        let document = rawdoc! { "code": failure.code, "message": failure.message };
        self.output.send(Kind::Failure, document.as_bytes());
        self.output.flush();
        loop {
            self.read();
        }
    }

    fn job(&mut self) -> Result<(), Failure> {
        let spec = JobSpec::parse(&self.payload).ok_or_else(|| broken("a job"))?;
        let output = self.output_copy()?;
        let mut job = Job::start(&mut self.runtime, &spec, output, self.heap_bytes_max)?;
        let mut input_count: i64 = 0;
        loop {
            match self.read() {
                Kind::Documents => input_count += job.map(&mut self.runtime, &self.payload)?,
                Kind::End => {
                    let (emits, reduces) = job.finish_mapping(&mut self.runtime)?;
                    let counts = rawdoc! { "input": input_count, "emit": emits, "reduce": reduces };
                    self.output.send(Kind::Mapped, counts.as_bytes());
                    self.output.flush();
                }
                Kind::Groups => {
                    let reduced = job.reduce(&mut self.runtime, &self.payload)?;
                    self.output.send(Kind::Reduced, &reduced);
                    self.output.flush();
                }
                Kind::Done => break,
                _ => return Err(broken("a frame in a job")),
            }
        }
        drop(job);
        super::job::forget(&mut self.runtime);
        // The next job finds a fresh context; made now, while nobody waits.
        self.functions.clear();
        self.runtime.reset();
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
        let session = RawDocument::from_bytes(&self.payload).ok();
        let session = session.and_then(|request| request.get_i64("session").ok());
        if session != self.session {
            self.session = session;
            self.functions.clear();
            self.runtime.reset();
        }
        let answer = self.functions.call(&mut self.runtime, &self.payload);
        let document = match answer {
            Ok(document) => document,
            Err(failure) => {
                rawdoc! { "error": rawdoc! { "code": failure.code, "message": failure.message } }
            }
        };
        self.output.send(Kind::Returned, document.as_bytes());
        self.output.flush();
        Ok(())
    }
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
