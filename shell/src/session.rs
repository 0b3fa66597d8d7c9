//! An isolate with the shell's scripts in it.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use banyan_script::{Runtime, RuntimeOptions, ScriptError, v8};

use crate::connections::Connections;
use crate::encryption::Encryption;
use crate::interrupt::Interrupt;
use crate::login::Login;
use crate::natives::{self, Outside};

/// The shell's own scripts, in the order in which they stand on each other.
const SCRIPTS: [(&str, &str); 10] = [
    ("errors.js", include_str!("js/errors.js")),
    ("mongo.js", include_str!("js/mongo.js")),
    ("session.js", include_str!("js/session.js")),
    ("users.js", include_str!("js/users.js")),
    ("query.js", include_str!("js/query.js")),
    ("collection.js", include_str!("js/collection.js")),
    ("watch.js", include_str!("js/watch.js")),
    ("replica_set.js", include_str!("js/replica_set.js")),
    ("sharding.js", include_str!("js/sharding.js")),
    ("interactive.js", include_str!("js/interactive.js")),
];

/// Why an evaluation has no value.
pub enum Ended {
    /// `quit(code)` was called.
    Quit(u8),
    /// What to print.
    Failed(String),
}

pub struct Session {
    runtime: Runtime,
    outside: Rc<Outside>,
    interrupt: Interrupt,
}

impl Session {
    pub fn new(encryption: Encryption, login: Login) -> Result<Self> {
        let mut runtime = Runtime::new(&RuntimeOptions::default());
        let interrupt = Interrupt::default();
        let connections = Connections::new(interrupt.clone(), encryption, login)?;
        let outside = Rc::new(Outside {
            connections: RefCell::new(connections),
            quit: Cell::new(None),
        });
        let natives = outside.clone();
        runtime.with_scope(|scope| natives::install(scope, natives));
        let mut session = Self {
            runtime,
            outside,
            interrupt,
        };
        for (name, source) in SCRIPTS {
            let loaded = session.runtime.evaluate(name, source);
            loaded.map_err(|error| anyhow!("the shell's own {name}: {error}"))?;
        }
        Ok(session)
    }

    /// From now on Ctrl-C ends the running script, and the command that it waits for. Whoever takes
    /// the signal last has it, so a line editor must be there before.
    pub fn end_scripts_on_ctrl_c(&mut self) {
        let terminator = self.runtime.terminator();
        let raised = self.interrupt.clone();
        self.outside
            .connections
            .borrow()
            .runtime()
            .spawn(async move {
                while tokio::signal::ctrl_c().await.is_ok() {
                    // Whoever waits and is woken finds the script ended.
                    terminator.terminate();
                    raised.raise();
                }
            });
    }

    /// Makes `db` the database that the address names.
    pub fn connect(&mut self, address: &str) -> Result<()> {
        let quoted = quoted(address);
        match self.evaluate("(connect)", &format!("var db = connect({quoted})")) {
            Ok(_) => Ok(()),
            Err(Ended::Quit(_)) => Err(anyhow!("interrupted")),
            Err(Ended::Failed(message)) => {
                let told = message.strip_prefix("uncaught exception: ");
                let told = told.and_then(|told| told.strip_prefix("Error: "));
                Err(anyhow!("{}", told.unwrap_or(&message).to_owned()))
            }
        }
    }

    fn evaluate(&mut self, name: &str, source: &str) -> Result<v8::Global<v8::Value>, Ended> {
        // An interrupt that came while nothing ran is void.
        self.interrupt.lower();
        self.runtime.isolate().cancel_terminate_execution();
        let value = self
            .runtime
            .evaluate(name, source)
            .map_err(|error| self.ended(&error))?;
        // A script whose last call is `quit()` ends before V8 sees the termination.
        match self.outside.quit.get() {
            Some(code) => Err(Ended::Quit(code)),
            // What waited came back early, and there was nothing left to end.
            None if self.interrupt.is_raised() => {
                self.runtime.isolate().cancel_terminate_execution();
                Err(Ended::Failed("interrupted".to_owned()))
            }
            None => Ok(value),
        }
    }

    fn ended(&mut self, error: &ScriptError) -> Ended {
        self.runtime.isolate().cancel_terminate_execution();
        match (self.outside.quit.get(), error) {
            (Some(code), _) => Ended::Quit(code),
            (None, ScriptError::Terminated) => Ended::Failed("interrupted".to_owned()),
            // Whatever was thrown then is only what became of it.
            (None, _) if self.interrupt.is_raised() => Ended::Failed("interrupted".to_owned()),
            (None, ScriptError::Thrown { message, stack, .. }) => {
                Ended::Failed(shown(message, stack.as_deref()))
            }
            (None, other) => Ended::Failed(other.to_string()),
        }
    }

    /// Evaluates and prints the value as the prompt does.
    pub fn evaluate_and_print(&mut self, name: &str, source: &str) -> Result<(), Ended> {
        let value = self.evaluate(name, source)?;
        self.call("shellPrint", &[value]).map(drop)
    }

    /// A line of the prompt: one of the shell's words (`show dbs`), or JavaScript.
    pub fn line(&mut self, line: &str) -> Result<(), Ended> {
        let word = format!("shellWord({})", quoted(line));
        if self.truth("(shell)", &word)? {
            return Ok(());
        }
        self.evaluate_and_print("(shell)", line)
    }

    fn truth(&mut self, name: &str, source: &str) -> Result<bool, Ended> {
        let value = self.evaluate(name, source)?;
        Ok(self
            .runtime
            .with_scope(|scope| v8::Local::new(scope, value).boolean_value(scope)))
    }

    pub fn load(&mut self, path: &Path) -> Result<(), Ended> {
        let source = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))
            .map_err(|error| Ended::Failed(format!("{error:#}")))?;
        self.evaluate(&path.display().to_string(), &source)
            .map(drop)
    }

    /// What stands before the cursor on a fresh line.
    pub fn prompt(&mut self) -> String {
        self.text("(prompt)", "shellPrompt()")
            .unwrap_or_else(|| "> ".to_owned())
    }

    /// The words that `text` can grow into.
    pub fn completions(&mut self, text: &str) -> Vec<String> {
        let source = format!("shellComplete({}).join('\\n')", quoted(text));
        let words = self.text("(completion)", &source).unwrap_or_default();
        words.lines().map(str::to_owned).collect()
    }

    /// Whether more lines must follow before this is a statement.
    pub fn is_incomplete(&mut self, source: &str) -> bool {
        let open = open_brackets(source) > 0;
        let complaint = self.runtime.with_scope(|scope| {
            let scope = &mut v8::TryCatch::new(scope);
            let code = v8::String::new(scope, source)?;
            if v8::Script::compile(scope, code, None).is_some() {
                return None;
            }
            let exception = scope.exception()?;
            Some(exception.to_rust_string_lossy(scope))
        });
        complaint.is_some_and(|complaint| {
            open || complaint.contains("Unexpected end of input")
                || complaint.contains("Unterminated template literal")
        })
    }

    fn text(&mut self, name: &str, source: &str) -> Option<String> {
        let value = self.evaluate(name, source).ok()?;
        Some(
            self.runtime
                .with_scope(|scope| v8::Local::new(scope, value).to_rust_string_lossy(scope)),
        )
    }

    /// Calls one of the shell's functions with values.
    fn call(
        &mut self,
        function: &str,
        arguments: &[v8::Global<v8::Value>],
    ) -> Result<v8::Global<v8::Value>, Ended> {
        let function = self.evaluate("(shell)", function)?;
        let outcome = self.runtime.with_scope(|scope| {
            let scope = &mut v8::TryCatch::new(scope);
            let function = v8::Local::new(scope, function);
            let arguments: Vec<_> = arguments
                .iter()
                .map(|argument| v8::Local::new(scope, argument))
                .collect();
            let receiver = v8::undefined(scope).into();
            let called = v8::Local::<v8::Function>::try_from(function)
                .ok()
                .and_then(|function| function.call(scope, receiver, &arguments));
            match called {
                Some(value) => Ok(v8::Global::new(scope, value)),
                None => Err(banyan_script::evaluate::caught(scope)),
            }
        });
        outcome.map_err(|error| self.ended(&error))
    }

    /// Time for what runs in the background to end.
    pub fn close(self) {
        drop(self.runtime);
        if let Ok(outside) = Rc::try_unwrap(self.outside) {
            outside
                .connections
                .into_inner()
                .shut_down(Duration::from_millis(200));
        }
    }
}

/// A string as a JavaScript literal.
fn quoted(text: &str) -> String {
    let mut literal = String::with_capacity(text.len() + 2);
    literal.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => literal.extend(['\\', character]),
            '\n' => literal.push_str("\\n"),
            '\r' => literal.push_str("\\r"),
            '\u{2028}' => literal.push_str("\\u2028"),
            '\u{2029}' => literal.push_str("\\u2029"),
            other if other.is_control() => {
                literal.push_str(&format!("\\u{:04x}", u32::from(other)));
            }
            other => literal.push(other),
        }
    }
    literal.push('"');
    literal
}

/// An exception with the frames of the user's code; those of the shell's own scripts say nothing.
fn shown(message: &str, stack: Option<&str>) -> String {
    let frames = stack
        .unwrap_or("")
        .lines()
        .filter(|line| line.trim_start().starts_with("at "));
    let own = |frame: &&str| {
        !frame.contains("<anonymous>")
            && !SCRIPTS
                .iter()
                .any(|(name, _)| frame.contains(&format!("{name}:")))
    };
    let frames: Vec<&str> = frames
        .filter(own)
        .filter(|frame| frame.contains('.'))
        .collect();
    // What is thrown without being an error says so already.
    let message = message
        .strip_prefix("uncaught exception: ")
        .unwrap_or(message);
    let uncaught = format!("uncaught exception: {message}");
    std::iter::once(uncaught.as_str())
        .chain(frames)
        .collect::<Vec<_>>()
        .join("\n")
}

/// How many brackets stay open, leaving out those in strings and comments.
fn open_brackets(source: &str) -> i32 {
    let mut depth = 0;
    let mut characters = source.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            '\'' | '"' | '`' => {
                while let Some(inside) = characters.next() {
                    if inside == '\\' {
                        characters.next();
                    } else if inside == character {
                        break;
                    }
                }
            }
            '/' if characters.peek() == Some(&'/') => {
                characters.by_ref().find(|&inside| inside == '\n');
            }
            _ => {}
        }
    }
    depth
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_in_strings_and_comments_do_not_count() {
        assert_eq!(open_brackets("f({a: [1, '(', \"\\\"{\"]"), 2);
        assert_eq!(open_brackets("f() // ((("), 0);
    }

    #[test]
    fn quoting_survives_javascript() {
        assert_eq!(
            quoted("a\"b\\c\nd\u{2028}\u{1}"),
            r#""a\"b\\c\nd\u2028\u0001""#
        );
    }
}
