//! Command lines: the flags that all programs share, and how a configuration file joins them.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, CommandFactory, Parser};

use crate::audit::AuditFlags;
use crate::cluster_auth::ClusterAuthMode;
use crate::exit::{Exit, complain};
use crate::limits::CONNECTIONS_MIN;
use crate::logging::Rotation;
use crate::settings::{self, Kind, SETTINGS};
use crate::tls::TlsFlags;

/// Flags of every server program; a program flattens them into its own.
#[derive(Args, Clone, Debug, Default)]
pub struct CommonFlags {
    /// Port to listen on
    #[arg(long, value_name = "PORT")]
    pub port: Option<u16>,
    /// Comma-separated host names or addresses to listen on [default: localhost]
    #[arg(long = "bind_ip", value_name = "HOSTS", value_delimiter = ',')]
    pub bind_ip: Vec<String>,
    /// Listen on all addresses
    #[arg(long = "bind_ip_all")]
    pub bind_ip_all: bool,
    /// Listen on IPv6 addresses as well
    #[arg(long)]
    pub ipv6: bool,
    /// Connections served at once
    #[arg(long = "maxConns", value_name = "N", value_parser = connections)]
    pub max_connections: Option<usize>,
    /// File to write the log to, instead of standard output
    #[arg(long, value_name = "FILE")]
    pub logpath: Option<PathBuf>,
    /// Append to the log file instead of moving an existing one away
    #[arg(long)]
    pub logappend: bool,
    /// What SIGUSR1 and logRotate do: move the log file away, or open its name anew
    #[arg(long = "logRotate", value_name = "rename|reopen", value_enum)]
    pub log_rotate: Option<Rotation>,
    /// Run in the background
    #[arg(long)]
    pub fork: bool,
    /// File to write the process id to
    #[arg(long, value_name = "FILE")]
    pub pidfilepath: Option<PathBuf>,
    /// Configuration file in YAML
    #[arg(long, short = 'f', value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Server parameters, name=value
    #[arg(long = "setParameter", value_name = "NAME=VALUE", value_parser = parameter)]
    pub set_parameter: Vec<(String, String)>,
    /// Log more; repeat for more still
    #[arg(short = 'v', long = "verbose", action = clap::ArgAction::Count)]
    pub verbosity: u8,
    /// Log less
    #[arg(long)]
    pub quiet: bool,
    /// Key file of the cluster's members
    #[arg(long = "keyFile", value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// How members prove to each other that they are that: by the key file, or by certificates
    #[arg(id = "clusterAuthMode", long = "clusterAuthMode", value_enum)]
    pub cluster_auth_mode: Option<ClusterAuthMode>,
    /// Log nothing of what clients send and store
    #[arg(id = "redactClientLogData", long = "redactClientLogData")]
    pub redact_client_log_data: bool,
    #[command(flatten)]
    pub audit: AuditFlags,
    #[command(flatten)]
    pub tls: TlsFlags,
}

fn connections(text: &str) -> Result<usize, String> {
    let number = text.parse().map_err(|_| "expected a number".to_owned())?;
    if number < CONNECTIONS_MIN {
        return Err(format!("has to be at least {CONNECTIONS_MIN}"));
    }
    Ok(number)
}

fn parameter(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected name=value")?;
    if name.is_empty() {
        return Err("expected name=value".to_owned());
    }
    Ok((name.to_owned(), value.to_owned()))
}

impl CommonFlags {
    /// What to listen on.
    pub fn hosts(&self) -> Vec<&str> {
        if self.bind_ip_all {
            return if self.ipv6 {
                vec!["0.0.0.0", "::"]
            } else {
                vec!["0.0.0.0"]
            };
        }
        if self.bind_ip.is_empty() {
            return vec!["localhost"];
        }
        self.bind_ip
            .iter()
            .map(|host| if host == "*" { "0.0.0.0" } else { host.trim() })
            .collect()
    }
}

/// A command line that was understood.
#[derive(Debug)]
pub struct Parsed<P> {
    pub flags: P,
    /// As it was typed, but for passwords, for `getCmdLineOpts`.
    pub argv: Vec<String>,
    /// The same by the names of the configuration file: `net.port` and so on, nested.
    pub settings: serde_json::Value,
    /// Settings of the file that are accepted and do nothing.
    pub without_effect: Vec<String>,
}

/// Reads the process's command line and its `--config` file. Ends the process for `--help` and
/// `--version` (0) and for what is not understood (2).
pub fn parse<P: Parser>() -> Parsed<P> {
    match try_parse(std::env::args_os().collect()) {
        Ok(parsed) => parsed,
        Err(Refused::Flags(error)) => {
            let code = if error.use_stderr() {
                Exit::BadOptions as i32
            } else {
                0
            };
            let _ = error.print();
            std::process::exit(code);
        }
        Err(Refused::File(error)) => {
            complain(&error.to_string());
            std::process::exit(Exit::BadOptions as i32);
        }
    }
}

#[derive(Debug)]
pub enum Refused {
    Flags(clap::Error),
    File(settings::SettingsError),
}

pub fn try_parse<P: Parser>(argv: Vec<OsString>) -> Result<Parsed<P>, Refused> {
    // A flag given twice means its last value, so that the file's come first.
    let command = <P as CommandFactory>::command().args_override_self(true);
    let first = command
        .clone()
        .try_get_matches_from(&argv)
        .map_err(Refused::Flags)?;
    let file = match config_path(&first) {
        Some(path) => settings::read(&path).map_err(Refused::File)?,
        None => settings::FileFlags::default(),
    };
    let mut merged = argv.clone();
    let at = merged.len().min(1);
    merged.splice(at..at, file.flags.into_iter().map(OsString::from));
    let mut matches = command
        .try_get_matches_from(merged)
        .map_err(Refused::Flags)?;
    let settings = by_setting(&matches);
    let flags = P::from_arg_matches_mut(&mut matches).map_err(Refused::Flags)?;
    let argv = argv
        .into_iter()
        .map(|word| word.to_string_lossy().into_owned());
    Ok(Parsed {
        flags,
        argv: censored(argv),
        settings,
        without_effect: file.without_effect,
    })
}

/// What stands for a password wherever the options are shown.
const CENSORED: &str = "<password>";
/// The flags whose values are passwords.
const SECRET_FLAGS: &[&str] = &[
    "--tlsCertificateKeyFilePassword",
    "--tlsClusterPassword",
    "--sslPEMKeyPassword",
    "--sslClusterPassword",
];

fn censored(words: impl Iterator<Item = String>) -> Vec<String> {
    let mut after_flag = false;
    let shown = words.map(|word| {
        if std::mem::take(&mut after_flag) {
            return CENSORED.to_owned();
        }
        let (flag, value) = word.split_once('=').unzip();
        let is_secret = SECRET_FLAGS.contains(&flag.unwrap_or(&word));
        after_flag = is_secret && value.is_none();
        match flag {
            Some(flag) if is_secret => format!("{flag}={CENSORED}"),
            _ => word,
        }
    });
    shown.collect()
}

fn config_path(matches: &ArgMatches) -> Option<PathBuf> {
    matches
        .try_get_one::<PathBuf>("config")
        .ok()
        .flatten()
        .cloned()
}

/// What was given, by the names of the configuration file.
fn by_setting(matches: &ArgMatches) -> serde_json::Value {
    let mut root = serde_json::Map::new();
    for id in matches.ids() {
        if matches.value_source(id.as_str()) != Some(ValueSource::CommandLine) {
            continue;
        }
        let flag = flag_of(id.as_str());
        if let "shardsvr" | "configsvr" = flag {
            insert(&mut root, "sharding.clusterRole", flag.into());
            continue;
        }
        let Some(setting) = SETTINGS.iter().find(|setting| setting.flag == flag) else {
            continue;
        };
        let value = match setting.kind {
            Kind::Switch => serde_json::Value::Bool(true),
            Kind::Off => serde_json::Value::Bool(false),
            Kind::Enabled => "enabled".into(),
            Kind::Pairs => pairs(matches, id.as_str()),
            Kind::Secret => CENSORED.into(),
            _ => raw_value(matches, id.as_str()),
        };
        insert(&mut root, setting.path, value);
    }
    serde_json::Value::Object(root)
}

/// Clap's ids are the names of fields; the flags are MongoDB's.
fn flag_of(id: &str) -> &str {
    match id {
        "max_connections" => "maxConns",
        "set_parameter" => "setParameter",
        "verbosity" => "v",
        "key_file" => "keyFile",
        "log_rotate" => "logRotate",
        "repl_set" => "replSet",
        "transition_to_auth" => "transitionToAuth",
        "oplog_size" => "oplogSize",
        "self_initiate" => "selfInitiate",
        "oplog_min_retention_hours" => "oplogMinRetentionHours",
        other => other,
    }
}

/// `--setParameter a=1 --setParameter b=2` as `{a: "1", b: "2"}`.
fn pairs(matches: &ArgMatches, id: &str) -> serde_json::Value {
    let words = matches.get_raw(id).into_iter().flatten();
    let pairs = words.filter_map(|word| {
        let (name, value) = word.to_str()?.split_once('=')?;
        Some((name.to_owned(), value.into()))
    });
    serde_json::Value::Object(pairs.collect())
}

fn raw_value(matches: &ArgMatches, id: &str) -> serde_json::Value {
    let words = matches.get_raw(id).into_iter().flatten();
    let mut words: Vec<String> = words
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    match words.len() {
        1 => {
            let word = words.remove(0);
            let number = word.parse::<i64>().map(Into::into);
            let number = number.or_else(|_| word.parse::<f64>().map(Into::into));
            number.unwrap_or(serde_json::Value::String(word))
        }
        _ => words.into(),
    }
}

fn insert(
    object: &mut serde_json::Map<String, serde_json::Value>,
    path: &str,
    value: serde_json::Value,
) {
    match path.split_once('.') {
        None => {
            object.insert(path.to_owned(), value);
        }
        Some((section, rest)) => {
            let inner = object
                .entry(section)
                .or_insert_with(|| serde_json::Value::Object(serde_json::Map::new()));
            if let Some(inner) = inner.as_object_mut() {
                insert(inner, rest, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Parser, Debug)]
    struct Program {
        #[command(flatten)]
        common: CommonFlags,
        #[arg(long = "replSet")]
        repl_set: Option<String>,
    }

    fn run(words: &[&str]) -> Result<Parsed<Program>, Refused> {
        let argv = std::iter::once("program").chain(words.iter().copied());
        try_parse(argv.map(OsString::from).collect())
    }

    #[test]
    fn flags_win_over_the_file() {
        let path = std::env::temp_dir().join(format!("banyan-options-{}.yaml", std::process::id()));
        std::fs::write(&path, "net: {port: 1, bindIp: a}\nsetParameter: {x: 1}\n").unwrap();
        let file = path.to_str().unwrap();
        let parsed = run(&[
            "--config",
            file,
            "--port",
            "2",
            "--setParameter",
            "y=2",
            "-vv",
        ])
        .unwrap();
        std::fs::remove_file(&path).unwrap();
        let common = &parsed.flags.common;
        assert_eq!(common.port, Some(2));
        assert_eq!(common.hosts(), ["a"]);
        assert_eq!(common.verbosity, 2);
        let parameters = [("x", "1"), ("y", "2")].map(|(a, b)| (a.to_owned(), b.to_owned()));
        assert_eq!(common.set_parameter, parameters);
        assert_eq!(parsed.settings["net"]["port"], 2);
        assert_eq!(
            parsed.settings["setParameter"],
            serde_json::json!({"x": "1", "y": "2"})
        );
        assert_eq!(parsed.argv[1], "--config");
    }

    #[test]
    fn passwords_are_not_shown() {
        let path = std::env::temp_dir().join(format!("banyan-secrets-{}.yaml", std::process::id()));
        std::fs::write(
            &path,
            "net: {ssl: {mode: allowSSL, clusterPassword: filed}}\n",
        )
        .unwrap();
        let file = path.to_str().unwrap();
        let typed = ["--tlsCertificateKeyFilePassword", "typed", "--port=3"];
        let words = [&["-f", file, "--sslClusterPassword=typed"][..], &typed[..]].concat();
        let parsed = run(&words).unwrap();
        std::fs::remove_file(&path).unwrap();
        let shown = format!("{parsed:?}");
        assert!(
            !shown.contains("typed") && !shown.contains("filed"),
            "{shown}"
        );
        assert_eq!(parsed.argv.last().map(String::as_str), Some("--port=3"));
        let tls = &parsed.settings["net"]["tls"];
        assert_eq!(tls["mode"], "allowSSL");
        assert_eq!(tls["certificateKeyFilePassword"], "<password>");
        assert_eq!(tls["clusterPassword"], "<password>");
        let flags = parsed.flags.common.tls;
        assert_eq!(flags.cluster_password, Some("typed".to_owned().into()));
    }

    #[test]
    fn unknown_flags_and_bad_values_are_refused() {
        for words in [
            &["--prot", "1"][..],
            &["--port", "x"],
            &["--setParameter", "x"],
            &["--maxConns", "4"],
            &["stray"],
        ] {
            assert!(matches!(run(words), Err(Refused::Flags(_))), "{words:?}");
        }
        assert!(matches!(
            run(&["-f", "/nowhere/at/all"]),
            Err(Refused::File(_))
        ));
        let parsed = run(&["--replSet", "a"]).unwrap();
        assert_eq!(parsed.flags.repl_set.as_deref(), Some("a"));
        assert_eq!(parsed.flags.common.hosts(), ["localhost"]);
        assert_eq!(parsed.settings["replication"]["replSetName"], "a");
    }
}
