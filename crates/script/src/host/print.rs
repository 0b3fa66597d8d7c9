//! `print`: a line for the data node's log.
//!
//! What a job prints beyond [`PRINT_BYTES_MAX`] is not even sent, only counted: the reader of the
//! lane's socket must find it silent to see that the job's time is over.

use std::cell::RefCell;
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use super::sink::Output;
use crate::frame::{Kind, PRINT_BYTES_MAX, print_bytes};

const LINE_BYTES_MAX: usize = 4096;

/// A lane's way to the log, in the isolate's slot. Everybody else's output is flushed whenever a
/// script runs.
pub struct Printer(RefCell<State>);

struct State {
    output: Output,
    /// Sent for the job, or the session, that runs.
    sent_bytes: usize,
    left_out_lines: u64,
    left_out_bytes: u64,
    /// A script that never ends has to be told of as well: after 1 line, 2, 4, …
    tell_at_lines: u64,
}

impl Printer {
    pub fn new(socket: UnixStream) -> Printer {
        Printer(RefCell::new(State {
            output: Output::new(socket),
            sent_bytes: 0,
            left_out_lines: 0,
            left_out_bytes: 0,
            tell_at_lines: 1,
        }))
    }

    /// Scripts run that have printed `sent_bytes` already.
    pub fn begin(&self, sent_bytes: usize) {
        let mut state = self.0.borrow_mut();
        state.sent_bytes = sent_bytes;
        state.tell_at_lines = 1;
    }

    /// The scripts have run. Gives back how much they have printed.
    pub fn end(&self) -> usize {
        let mut state = self.0.borrow_mut();
        state.tell();
        state.sent_bytes
    }
}

impl State {
    fn print(&mut self, mut line: String) {
        let whole_bytes = line.len();
        if whole_bytes > LINE_BYTES_MAX {
            let mut ends = (0..=LINE_BYTES_MAX).rev();
            let end = ends.find(|at| line.is_char_boundary(*at));
            line.truncate(end.unwrap_or(0));
        }
        let bytes = print_bytes(line.len());
        if self.sent_bytes + bytes <= PRINT_BYTES_MAX {
            self.sent_bytes += bytes;
            self.output.send(Kind::Print, line.as_bytes());
            self.output.flush();
            return;
        }
        // Shorter ones, which might still fit, would stand there as if nothing were missing.
        self.sent_bytes = PRINT_BYTES_MAX;
        self.left_out_lines += 1;
        self.left_out_bytes += whole_bytes as u64;
        if self.left_out_lines >= self.tell_at_lines {
            self.tell_at_lines = self.left_out_lines * 2;
            self.tell();
        }
    }

    /// Tells how much is missing since the last time.
    fn tell(&mut self) {
        if self.left_out_lines == 0 {
            return;
        }
        let mut payload = [0; 16];
        payload[..8].copy_from_slice(&self.left_out_lines.to_le_bytes());
        payload[8..].copy_from_slice(&self.left_out_bytes.to_le_bytes());
        (self.left_out_lines, self.left_out_bytes) = (0, 0);
        self.output.send(Kind::PrintsLeftOut, &payload);
        self.output.flush();
    }
}

/// Puts `print` into the scope's context.
pub fn install(scope: &mut v8::HandleScope<'_>) {
    let global = scope.get_current_context().global(scope);
    let function = v8::Function::new(scope, print);
    let name = v8::String::new(scope, "print");
    if let (Some(name), Some(function)) = (name, function) {
        global.create_data_property(scope, name.into(), function.into());
    }
}

fn print<'s>(
    scope: &mut v8::HandleScope<'s>,
    arguments: v8::FunctionCallbackArguments<'s>,
    _: v8::ReturnValue<'_>,
) {
    let Some(printer) = scope.get_slot::<Rc<Printer>>().cloned() else {
        return;
    };
    // These may call back into scripts, which may print.
    let words = (0..arguments.length()).map(|at| arguments.get(at).to_rust_string_lossy(scope));
    let line = words.collect::<Vec<_>>().join(" ");
    printer.0.borrow_mut().print(line);
}
