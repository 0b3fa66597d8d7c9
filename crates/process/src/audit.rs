//! The audit log's place: a file, the standard output or syslog. What is written there is the
//! business of others.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use clap::{Args, ValueEnum};
use tracing::error;

use crate::exit::{Exit, fail};
use crate::logging::{Rotation, move_away};
use crate::syslog::{self, Syslog};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AuditDestination {
    File,
    Console,
    Syslog,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum AuditFormat {
    #[default]
    #[value(name = "JSON")]
    Json,
    #[value(name = "BSON")]
    Bson,
}

#[derive(Args, Clone, Debug, Default)]
pub struct AuditFlags {
    /// Where the audit log goes [default: there is none]
    #[arg(
        id = "auditDestination",
        long = "auditDestination",
        value_enum,
        ignore_case = true
    )]
    pub destination: Option<AuditDestination>,
    /// How a file holds its events
    #[arg(
        id = "auditFormat",
        long = "auditFormat",
        value_enum,
        ignore_case = true
    )]
    pub format: Option<AuditFormat>,
    /// The file, with --auditDestination file
    #[arg(id = "auditPath", long = "auditPath", value_name = "FILE")]
    pub path: Option<PathBuf>,
    /// Only events that match this query are written
    #[arg(id = "auditFilter", long = "auditFilter", value_name = "QUERY")]
    pub filter: Option<String>,
    /// Which events are written is what setAuditConfig says, and no flag
    #[arg(id = "auditRuntimeConfiguration", long = "auditRuntimeConfiguration")]
    pub runtime_configuration: bool,
}

/// The parameter that has requests noted that were let in, too.
pub const SUCCESS_PARAMETER: &str = "auditAuthorizationSuccess";

impl AuditFlags {
    /// What is wrong with flags that each are right by themselves. `parameters`: those of
    /// `--setParameter`.
    pub fn refusal(&self, parameters: &[(String, String)]) -> Option<&'static str> {
        let is_file = self.destination == Some(AuditDestination::File);
        if self.destination.is_none() {
            let given = self.format.is_some() || self.path.is_some() || self.filter.is_some();
            let given = given || self.runtime_configuration;
            return given
                .then_some("auditDestination must be specified if other audit options are");
        }
        if is_file && self.format.is_none() {
            return Some("auditFormat must be specified when auditDestination is to a file");
        }
        if is_file && self.path.is_none() {
            return Some("auditPath must be specified when auditDestination is to a file");
        }
        if !is_file && (self.format.is_some() || self.path.is_some()) {
            return Some("auditFormat and auditPath are only for an auditDestination of a file");
        }
        let says_which = parameters.iter().any(|(name, _)| name == SUCCESS_PARAMETER);
        if self.runtime_configuration && (self.filter.is_some() || says_which) {
            return Some(
                "auditFilter and auditAuthorizationSuccess cannot be given with \
                 auditRuntimeConfiguration",
            );
        }
        None
    }

    /// The query of `--auditFilter`: JSON, or as one types it, with names without quotes.
    pub fn query(&self) -> Result<Option<serde_json::Value>, String> {
        let Some(text) = &self.filter else {
            return Ok(None);
        };
        let query: serde_json::Value = match serde_json::from_str(text) {
            Ok(query) => query,
            // Its flow style is JSON whose quotes may be single ones, or missing.
            Err(_) => serde_yaml_ng::from_str(text).map_err(|error| error.to_string())?,
        };
        match query.is_object() {
            true => Ok(Some(query)),
            false => Err("it is no document".to_owned()),
        }
    }
}

enum Place {
    File(File),
    Console,
    Syslog(Syslog),
}

/// The audit log of this process.
pub struct AuditSink {
    place: Mutex<Place>,
    path: Option<PathBuf>,
    rotation: Rotation,
    /// Writes the first event of a file that a signal has begun.
    note_rotation: OnceLock<fn(Option<&Path>)>,
    pub format: AuditFormat,
}

static SINK: OnceLock<AuditSink> = OnceLock::new();

/// Opens the audit log, where there is to be one. Call it once, after a fork.
pub(crate) fn open(flags: &AuditFlags, rotation: Rotation) -> io::Result<()> {
    let place = match (flags.destination, &flags.path) {
        (Some(AuditDestination::File), Some(path)) => Place::File(open_file(path)?),
        (Some(AuditDestination::Console), _) => Place::Console,
        (Some(AuditDestination::Syslog), _) => {
            let syslog = Syslog::open(Path::new(syslog::SOCKET), &program());
            Place::Syslog(syslog.map_err(|error| {
                let said = format!("syslog at {}: {error}", syslog::SOCKET);
                io::Error::new(error.kind(), said)
            })?)
        }
        _ => return Ok(()),
    };
    SINK.get_or_init(|| AuditSink {
        place: Mutex::new(place),
        path: flags.path.clone(),
        rotation,
        note_rotation: OnceLock::new(),
        format: flags.format.unwrap_or_default(),
    });
    Ok(())
}

/// What this program is called.
fn program() -> String {
    let path = std::env::args_os().next().map(PathBuf::from);
    let name = path.as_deref().and_then(Path::file_name);
    name.map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

/// The audit log of this process, if it has one.
pub fn sink() -> Option<&'static AuditSink> {
    SINK.get()
}

/// Who did what is for the server's own user to read.
fn open_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).append(true).mode(0o600).open(path)
}

impl AuditSink {
    /// Writes one event whole: a document, or a line without its end. What cannot be written ends
    /// the process, as in MongoDB: an audit log with holes proves nothing.
    pub fn write(&self, event: &[u8]) {
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        let written = match &mut *place {
            Place::File(file) if self.format == AuditFormat::Bson => file.write_all(event),
            Place::File(file) => file.write_all(&line(event)),
            Place::Console => io::stdout().lock().write_all(&line(event)),
            Place::Syslog(syslog) => syslog.send(event),
        };
        if let Err(error) = written {
            let reason = format!("the audit log cannot be written: {error}");
            fail(Exit::Abrupt, &reason);
        }
    }

    /// Goes on in a new file of the same name; does nothing without a file. Where the events so far
    /// have gone, if they were moved.
    pub fn rotate(&self) -> io::Result<Option<PathBuf>> {
        let Some(path) = &self.path else {
            return Ok(None);
        };
        // Whoever writes an event waits: it belongs into one of the two files.
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        let moved = match self.rotation {
            Rotation::Rename => move_away(path)?,
            Rotation::Reopen => None,
        };
        match open_file(path) {
            Ok(file) => *place = Place::File(file),
            Err(error) => {
                // The open file gets its name back, so that its events are found.
                if let Some(moved) = &moved {
                    let _ = std::fs::rename(moved, path);
                }
                return Err(error);
            }
        }
        Ok(moved)
    }

    /// Has [`Self::rotate_and_note`] tell where the events so far have gone. Call it once.
    pub fn note_rotations(&self, note: fn(Option<&Path>)) {
        self.note_rotation.get_or_init(|| note);
    }

    /// [`Self::rotate`], for a signal that nobody waits for.
    pub(crate) fn rotate_and_note(&self) {
        match (self.rotate(), self.note_rotation.get()) {
            (Ok(moved), Some(note)) => note(moved.as_deref()),
            (Ok(_), None) => {}
            (Err(error), _) => {
                error!(%error, "the audit log cannot be rotated; going on in the old one");
            }
        }
    }
}

/// In one write: lines of several threads, or of several processes, do not mix.
fn line(event: &[u8]) -> Vec<u8> {
    let mut line = Vec::with_capacity(event.len() + 1);
    line.extend_from_slice(event);
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_json_or_what_one_types() {
        let query = |text: &str| {
            let flags = AuditFlags {
                filter: Some(text.to_owned()),
                ..AuditFlags::default()
            };
            flags.query()
        };
        let wanted = serde_json::json!({
            "atype": {"$in": ["createCollection", "dropCollection"]}, "param.db": "test", "result": 0,
        });
        for text in [
            r#"{"atype":{"$in":["createCollection","dropCollection"]},"param.db":"test","result":0}"#,
            r#"{ atype: { $in: [ "createCollection", 'dropCollection' ] }, "param.db": "test", result: 0 }"#,
        ] {
            assert_eq!(query(text), Ok(Some(wanted.clone())), "{text}");
        }
        for text in ["", "[1]", "{", "atype"] {
            assert!(query(text).is_err(), "{text}");
        }
        assert_eq!(AuditFlags::default().query(), Ok(None));
    }

    #[test]
    fn a_file_wants_a_path_and_a_format() {
        let flags = |destination, format, path: Option<&str>| AuditFlags {
            destination,
            format,
            path: path.map(PathBuf::from),
            ..AuditFlags::default()
        };
        use AuditDestination::{Console, File, Syslog};
        let json = Some(AuditFormat::Json);
        for good in [
            flags(None, None, None),
            flags(Some(File), json, Some("a")),
            flags(Some(Console), None, None),
            flags(Some(Syslog), None, None),
        ] {
            assert_eq!(good.refusal(&[]), None, "{good:?}");
        }
        for bad in [
            flags(None, json, None),
            flags(None, None, Some("a")),
            flags(Some(File), json, None),
            flags(Some(File), None, Some("a")),
            flags(Some(Console), json, None),
        ] {
            assert!(bad.refusal(&[]).is_some(), "{bad:?}");
        }
    }

    #[test]
    fn what_is_configured_at_run_time_is_not_given_as_flags() {
        let flags = |filter: Option<&str>| AuditFlags {
            destination: Some(AuditDestination::Console),
            filter: filter.map(str::to_owned),
            runtime_configuration: true,
            ..AuditFlags::default()
        };
        let parameters = [(SUCCESS_PARAMETER.to_owned(), "true".to_owned())];
        assert_eq!(flags(None).refusal(&[]), None);
        assert!(flags(Some("{}")).refusal(&[]).is_some());
        assert!(flags(None).refusal(&parameters).is_some());
        let alone = AuditFlags {
            destination: None,
            ..flags(None)
        };
        assert!(alone.refusal(&[]).is_some());
    }
}
