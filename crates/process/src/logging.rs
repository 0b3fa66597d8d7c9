//! The log: JSON lines to a file (or a pipe), readable lines on a terminal, and the last lines in
//! memory for `getLog`.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use clap::ValueEnum;

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::{LookupSpan, Registry};
use tracing_subscriber::reload;

/// How many lines `getLog` can show.
const RING_LINES: usize = 1024;

/// What a rotation does with the file that has been written so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Rotation {
    /// Moves it to a name with the time, and begins a new one.
    #[default]
    Rename,
    /// Leaves it to a program like `logrotate`, and opens the log's name anew.
    Reopen,
}

#[derive(Clone, Debug, Default)]
pub struct LogOptions {
    pub path: Option<PathBuf>,
    pub append: bool,
    pub rotation: Rotation,
    pub verbosity: u8,
    pub quiet: bool,
}

/// The process's log, once there is one.
#[derive(Clone)]
pub struct Log {
    inner: Arc<Inner>,
}

struct Inner {
    sink: Mutex<Sink>,
    ring: Mutex<Ring>,
    path: Option<PathBuf>,
    rotation: Rotation,
}

enum Sink {
    Terminal,
    Pipe,
    File(File),
}

#[derive(Default)]
struct Ring {
    lines: VecDeque<String>,
    warnings: VecDeque<String>,
    written: u64,
}

static LOG: OnceLock<Log> = OnceLock::new();

/// Which lines are written.
static FILTER: OnceLock<reload::Handle<Targets, Registry>> = OnceLock::new();
static QUIET: AtomicBool = AtomicBool::new(false);
static VERBOSITY: AtomicU8 = AtomicU8::new(0);

/// The parameters that say so.
pub const VERBOSITY_PARAMETER: &str = "logLevel";
pub const QUIET_PARAMETER: &str = "quiet";

/// Lines carry nothing of what clients have sent or stored.
static REDACTS: AtomicBool = AtomicBool::new(false);

/// The parameter that says so.
pub const REDACTION_PARAMETER: &str = "redactClientLogData";

/// What stands for a client's data in lines that carry none.
pub const REDACTED: &str = "###";

/// The fields of lines that hold, or quote, what clients have sent. What is shown of a command
/// hides its values itself, see [`redacts_client_data`].
const CLIENT_DATA: &[&str] = &[
    "details",
    "error",
    "errMsg",
    "range",
    "reason",
    "replanReason",
    "text",
];

/// `redactClientLogData`.
pub fn redact_client_data(redacts: bool) {
    REDACTS.store(redacts, Ordering::Relaxed);
}

/// Whether values that clients have sent are to be hidden from the log.
pub fn redacts_client_data() -> bool {
    REDACTS.load(Ordering::Relaxed)
}

/// The log of this process; `None` before [`init`].
pub fn log() -> Option<&'static Log> {
    LOG.get()
}

/// Opens the log and makes it the one that `tracing` writes to.
pub fn init(options: &LogOptions) -> io::Result<Log> {
    let sink = match &options.path {
        Some(path) => {
            let holds_something = std::fs::metadata(path).is_ok_and(|file| file.len() > 0);
            if !options.append && holds_something {
                std::fs::rename(path, rotated_name(path))?;
            }
            Sink::File(open(path)?)
        }
        None if io::stdout().is_terminal() => Sink::Terminal,
        None => Sink::Pipe,
    };
    let log = Log::new(sink, options);
    QUIET.store(options.quiet, Ordering::Relaxed);
    VERBOSITY.store(options.verbosity, Ordering::Relaxed);
    let (targets, handle) = reload::Layer::new(targets());
    let subscriber =
        tracing_subscriber::registry().with(LogLayer { log: log.clone() }.with_filter(targets));
    tracing::subscriber::set_global_default(subscriber).map_err(io::Error::other)?;
    FILTER.get_or_init(|| handle);
    Ok(LOG.get_or_init(|| log).clone())
}

fn targets() -> Targets {
    let level = match (is_quiet(), verbosity()) {
        (true, 0) => LevelFilter::WARN,
        (_, 0) => LevelFilter::INFO,
        (_, 1) => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    Targets::new()
        .with_default(LevelFilter::WARN)
        .with_target("banyan", level)
        // The programs' own modules go by the programs' names.
        .with_target("mongod", level)
        .with_target("mongos", level)
        .with_target("configsvr", level)
}

fn filter_anew() {
    if let Some(filter) = FILTER.get() {
        // It fails only where the log is gone.
        let _ = filter.reload(targets());
    }
}

/// `logLevel`: 0 writes what an operator wants to know, 1 what a developer wants, and 2 to 5
/// everything.
pub fn set_verbosity(verbosity: u8) {
    VERBOSITY.store(verbosity, Ordering::Relaxed);
    filter_anew();
}

pub fn verbosity() -> u8 {
    VERBOSITY.load(Ordering::Relaxed)
}

/// `quiet`: only warnings, unless a verbosity asks for more.
pub fn set_quiet(quiet: bool) {
    QUIET.store(quiet, Ordering::Relaxed);
    filter_anew();
}

pub fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// Moves the log file to a name with the time. One that somebody else has moved is where it
/// belongs: `None`.
pub(crate) fn move_away(path: &Path) -> io::Result<Option<PathBuf>> {
    let to = rotated_name(path);
    match std::fs::rename(path, &to) {
        Ok(()) => Ok(Some(to)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

/// The name a log file is moved to, with the time so that none is overwritten.
fn rotated_name(path: &Path) -> PathBuf {
    let stamp = chrono::Utc::now().format("%Y-%m-%dT%H-%M-%S");
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{stamp}"));
    let mut candidate = PathBuf::from(&name);
    let mut n = 1;
    while candidate.exists() {
        let mut numbered = name.clone();
        numbered.push(format!(".{n}"));
        candidate = numbered.into();
        n += 1;
    }
    candidate
}

/// A poisoned log is still a log: the line that broke is lost, no more.
fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Log {
    fn new(sink: Sink, options: &LogOptions) -> Log {
        let inner = Inner {
            sink: Mutex::new(sink),
            ring: Mutex::default(),
            path: options.path.clone(),
            rotation: options.rotation,
        };
        Log {
            inner: Arc::new(inner),
        }
    }

    /// Goes on in a new file of the log's name; does nothing without a file. If that fails, the
    /// lines go on to the file that is open.
    pub fn rotate(&self) -> io::Result<()> {
        let Some(path) = &self.inner.path else {
            return Ok(());
        };
        // Whoever writes a line waits: it belongs into one of the two files.
        let mut sink = held(&self.inner.sink);
        let moved = match self.inner.rotation {
            Rotation::Rename => move_away(path)?,
            Rotation::Reopen => None,
        };
        match open(path) {
            Ok(file) => *sink = Sink::File(file),
            Err(error) => {
                // The open file gets its name back, so that its lines are found.
                if let Some(moved) = moved {
                    let _ = std::fs::rename(moved, path);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// [`Self::rotate`], with a line that ends the old file and one that begins the new one.
    pub fn rotate_and_tell(&self) -> io::Result<()> {
        tracing::info!("log rotation initiated");
        match self.rotate() {
            Ok(()) => tracing::info!(pid = std::process::id(), "log file rotated"),
            Err(error) => {
                tracing::error!(%error, "the log file cannot be rotated; going on in the old one");
                return Err(error);
            }
        }
        Ok(())
    }

    /// The last lines and how many there have been: `getLog: "global"`.
    pub fn recent(&self) -> (Vec<String>, u64) {
        let ring = held(&self.inner.ring);
        (ring.lines.iter().cloned().collect(), ring.written)
    }

    /// The warnings among the lines since the start: `getLog: "startupWarnings"`.
    pub fn warnings(&self) -> Vec<String> {
        held(&self.inner.ring).warnings.iter().cloned().collect()
    }

    fn write(&self, line: &Line) {
        let json = line.json();
        let written = match &mut *held(&self.inner.sink) {
            Sink::Terminal => io::stdout().write_all(line.readable().as_bytes()),
            Sink::Pipe => io::stdout().write_all(format!("{json}\n").as_bytes()),
            Sink::File(file) => file.write_all(format!("{json}\n").as_bytes()),
        };
        // A full disk must not stop the server; there is nowhere left to say so.
        drop(written);
        let mut ring = held(&self.inner.ring);
        ring.written += 1;
        if line.level <= Level::WARN && ring.warnings.len() < RING_LINES {
            ring.warnings.push_back(json.clone());
        }
        if ring.lines.len() == RING_LINES {
            ring.lines.pop_front();
        }
        ring.lines.push_back(json);
    }
}

/// One event with the fields of the spans around it.
struct Line {
    time: chrono::DateTime<chrono::Utc>,
    level: Level,
    component: &'static str,
    message: String,
    fields: Map<String, Value>,
}

impl Line {
    fn json(&self) -> String {
        let severity = match self.level {
            Level::ERROR => "E",
            Level::WARN => "W",
            Level::INFO => "I",
            Level::DEBUG => "D1",
            Level::TRACE => "D2",
        };
        let time = self.time.format("%Y-%m-%dT%H:%M:%S%.3f+00:00").to_string();
        let mut line = serde_json::json!({
            "t": {"$date": time}, "s": severity, "c": self.component, "msg": self.message,
        });
        if !self.fields.is_empty() {
            line["attr"] = Value::Object(self.fields.clone());
        }
        line.to_string()
    }

    fn readable(&self) -> String {
        let color = match self.level {
            Level::ERROR => "\x1b[31m",
            Level::WARN => "\x1b[33m",
            _ => "",
        };
        let reset = if color.is_empty() { "" } else { "\x1b[0m" };
        let time = self
            .time
            .with_timezone(&chrono::Local)
            .format("%H:%M:%S%.3f");
        let mut out = format!("{time} {color}{:5}{reset} {}", self.level, self.message);
        for (name, value) in &self.fields {
            // Writing to a string cannot fail.
            let _ = match value {
                Value::String(text) => write!(out, " {name}={text}"),
                other => write!(out, " {name}={other}"),
            };
        }
        out.push('\n');
        out
    }
}

/// `banyan_wire::server` belongs to `wire`.
fn component(target: &'static str) -> &'static str {
    let head = target.split("::").next().unwrap_or(target);
    head.strip_prefix("banyan_").unwrap_or(head)
}

struct LogLayer {
    log: Log,
}

#[derive(Default)]
struct Fields {
    message: String,
    fields: Map<String, Value>,
}

impl Visit for Fields {
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.fields.insert(field.name().to_owned(), value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.fields.insert(field.name().to_owned(), value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.fields.insert(field.name().to_owned(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.fields.insert(field.name().to_owned(), value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.message = value.to_owned();
        } else {
            self.fields.insert(field.name().to_owned(), value.into());
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

impl<S> Layer<S> for LogLayer
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(fields);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(fields) = span.extensions_mut().get_mut::<Fields>()
        {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut own = Fields::default();
        event.record(&mut own);
        let mut fields = Map::new();
        for span in context
            .event_scope(event)
            .into_iter()
            .flat_map(|scope| scope.from_root())
        {
            if let Some(around) = span.extensions().get::<Fields>() {
                fields.extend(around.fields.clone());
            }
        }
        fields.extend(own.fields);
        if redacts_client_data() {
            for name in CLIENT_DATA {
                if let Some(value) = fields.get_mut(*name) {
                    *value = REDACTED.into();
                }
            }
        }
        let line = Line {
            time: chrono::Utc::now(),
            level: *event.metadata().level(),
            component: component(event.metadata().target()),
            message: own.message,
            fields,
        };
        self.log.write(&line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_go_to_the_file_and_the_ring_and_files_rotate() {
        let dir = std::env::temp_dir().join(format!("banyan-log-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("a.log");
        std::fs::write(&path, "old\n").unwrap();
        let log = init(&LogOptions {
            path: Some(path.clone()),
            ..LogOptions::default()
        })
        .unwrap();
        let span = tracing::info_span!(target: "banyan_test", "around", connection = 7);
        span.in_scope(|| tracing::warn!(target: "banyan_test::deep", shard = "a", "it {}", "is"));
        tracing::info!(target: "elsewhere", "not ours");
        let text = std::fs::read_to_string(&path).unwrap();
        let line: Value = serde_json::from_str(text.trim_end()).unwrap();
        assert_eq!((&line["s"], &line["c"]), (&"W".into(), &"test".into()));
        assert_eq!(line["msg"], "it is");
        assert_eq!(
            line["attr"],
            serde_json::json!({"connection": 7, "shard": "a"})
        );
        assert_eq!(log.recent().1, 1);
        assert_eq!(log.warnings().len(), 1);
        log.rotate().unwrap();
        tracing::info!(target: "banyan_test", "after");
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 1);
        assert_eq!(
            std::fs::read_dir(&dir).unwrap().count(),
            3,
            "old, rotated, current"
        );
        std::fs::remove_dir_all(&dir).unwrap();
    }

    /// A log in a directory of its own, beside the one that `tracing` writes to.
    fn apart(name: &str, rotation: Rotation) -> (PathBuf, Log) {
        let dir = std::env::temp_dir().join(format!("banyan-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("a.log");
        let sink = Sink::File(open(&path).unwrap());
        let options = LogOptions {
            path: Some(path.clone()),
            rotation,
            ..LogOptions::default()
        };
        (path, Log::new(sink, &options))
    }

    fn say(log: &Log, message: &str) {
        log.write(&Line {
            time: chrono::Utc::now(),
            level: Level::INFO,
            component: "test",
            message: message.to_owned(),
            fields: Map::new(),
        });
    }

    fn said(path: &Path) -> Vec<String> {
        let text = std::fs::read_to_string(path).unwrap();
        let message = |line: &str| serde_json::from_str::<Value>(line).unwrap()["msg"].clone();
        let messages = text.lines().map(message);
        messages.map(|m| m.as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn a_file_that_somebody_else_has_moved_is_followed_by_a_new_one() {
        for rotation in [Rotation::Rename, Rotation::Reopen] {
            let (path, log) = apart(&format!("moved-{rotation:?}"), rotation);
            say(&log, "one");
            let moved = path.with_extension("1");
            std::fs::rename(&path, &moved).unwrap();
            say(&log, "two");
            log.rotate().unwrap();
            say(&log, "three");
            assert_eq!(said(&moved), ["one", "two"], "{rotation:?}");
            assert_eq!(said(&path), ["three"], "{rotation:?}");
            std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
        }
    }

    #[test]
    fn reopening_moves_nothing() {
        let (path, log) = apart("reopened", Rotation::Reopen);
        say(&log, "one");
        log.rotate().unwrap();
        say(&log, "two");
        assert_eq!(said(&path), ["one", "two"]);
        let directory = path.parent().unwrap();
        assert_eq!(std::fs::read_dir(directory).unwrap().count(), 1);
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn where_no_new_file_can_be_opened_the_old_one_goes_on() {
        let (path, log) = apart("kept", Rotation::Reopen);
        say(&log, "one");
        let moved = path.with_extension("1");
        std::fs::rename(&path, &moved).unwrap();
        std::fs::create_dir(&path).unwrap();
        log.rotate().unwrap_err();
        say(&log, "two");
        assert_eq!(said(&moved), ["one", "two"]);
        std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }
}
