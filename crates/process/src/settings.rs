//! MongoDB's configuration file: YAML whose settings are flags by other names.
//!
//! A file is read as flags that stand before those of the command line, so a flag wins over the
//! file and both are checked by the same parser.

use std::path::Path;

use serde_yaml_ng::{Mapping, Value};

/// How a setting becomes a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `--flag value`.
    Value,
    /// `--flag value`, and the value is a password.
    Secret,
    /// `--flag` when true.
    Switch,
    /// `--flag` when false.
    Off,
    /// `--flag` for `enabled`, nothing for `disabled`.
    Enabled,
    /// `-v`, as often as the number says.
    Verbosity,
    /// `clusterRole: shardsvr` is `--shardsvr`.
    Role,
    /// `{name: value}` is `--flag name=value` each.
    Pairs,
    /// Says what is done anyway; other values are refused.
    Only(&'static str),
    /// Accepted, without effect.
    Ignored,
}

pub struct Setting {
    pub path: &'static str,
    pub flag: &'static str,
    pub kind: Kind,
}

const fn setting(path: &'static str, flag: &'static str, kind: Kind) -> Setting {
    Setting { path, flag, kind }
}

/// Every setting that a file may hold. Whether a program takes the flag is its parser's word.
pub const SETTINGS: &[Setting] = &[
    setting("net.port", "port", Kind::Value),
    setting("net.bindIp", "bind_ip", Kind::Value),
    setting("net.bindIpAll", "bind_ip_all", Kind::Switch),
    setting("net.maxIncomingConnections", "maxConns", Kind::Value),
    setting("net.ipv6", "ipv6", Kind::Switch),
    setting("net.tls.mode", "tlsMode", Kind::Value),
    setting(
        "net.tls.certificateKeyFile",
        "tlsCertificateKeyFile",
        Kind::Value,
    ),
    setting(
        "net.tls.certificateKeyFilePassword",
        "tlsCertificateKeyFilePassword",
        Kind::Secret,
    ),
    setting("net.tls.clusterFile", "tlsClusterFile", Kind::Value),
    setting(
        "net.tls.clusterPassword",
        "tlsClusterPassword",
        Kind::Secret,
    ),
    setting("net.tls.CAFile", "tlsCAFile", Kind::Value),
    setting("net.tls.clusterCAFile", "tlsClusterCAFile", Kind::Value),
    setting("net.tls.CRLFile", "tlsCRLFile", Kind::Value),
    setting(
        "net.tls.disabledProtocols",
        "tlsDisabledProtocols",
        Kind::Value,
    ),
    setting(
        "net.tls.allowConnectionsWithoutCertificates",
        "tlsAllowConnectionsWithoutCertificates",
        Kind::Switch,
    ),
    setting(
        "net.tls.allowInvalidCertificates",
        "tlsAllowInvalidCertificates",
        Kind::Switch,
    ),
    setting(
        "net.tls.allowInvalidHostnames",
        "tlsAllowInvalidHostnames",
        Kind::Switch,
    ),
    setting("net.ssl.mode", "tlsMode", Kind::Value),
    setting("net.ssl.PEMKeyFile", "tlsCertificateKeyFile", Kind::Value),
    setting(
        "net.ssl.PEMKeyPassword",
        "tlsCertificateKeyFilePassword",
        Kind::Secret,
    ),
    setting("net.ssl.clusterFile", "tlsClusterFile", Kind::Value),
    setting(
        "net.ssl.clusterPassword",
        "tlsClusterPassword",
        Kind::Secret,
    ),
    setting("net.ssl.CAFile", "tlsCAFile", Kind::Value),
    setting("net.ssl.clusterCAFile", "tlsClusterCAFile", Kind::Value),
    setting("net.ssl.CRLFile", "tlsCRLFile", Kind::Value),
    setting(
        "net.ssl.disabledProtocols",
        "tlsDisabledProtocols",
        Kind::Value,
    ),
    setting(
        "net.ssl.allowConnectionsWithoutCertificates",
        "tlsAllowConnectionsWithoutCertificates",
        Kind::Switch,
    ),
    setting(
        "net.ssl.allowInvalidCertificates",
        "tlsAllowInvalidCertificates",
        Kind::Switch,
    ),
    setting(
        "net.ssl.allowInvalidHostnames",
        "tlsAllowInvalidHostnames",
        Kind::Switch,
    ),
    setting("net.unixDomainSocket.enabled", "", Kind::Ignored),
    setting("net.compression.compressors", "", Kind::Ignored),
    setting("systemLog.destination", "", Kind::Only("file")),
    setting("systemLog.path", "logpath", Kind::Value),
    setting("systemLog.logAppend", "logappend", Kind::Switch),
    setting("systemLog.quiet", "quiet", Kind::Switch),
    setting("systemLog.verbosity", "v", Kind::Verbosity),
    setting("systemLog.logRotate", "logRotate", Kind::Value),
    setting("processManagement.fork", "fork", Kind::Switch),
    setting("processManagement.pidFilePath", "pidfilepath", Kind::Value),
    setting("processManagement.timeZoneInfo", "", Kind::Ignored),
    setting("storage.dbPath", "dbpath", Kind::Value),
    setting("storage.directoryPerDB", "directoryperdb", Kind::Switch),
    setting("storage.journal.enabled", "nojournal", Kind::Off),
    setting("storage.engine", "storageEngine", Kind::Value),
    setting(
        "storage.wiredTiger.engineConfig.cacheSizeGB",
        "wiredTigerCacheSizeGB",
        Kind::Value,
    ),
    setting("replication.replSetName", "replSet", Kind::Value),
    setting("replication.replSet", "replSet", Kind::Value),
    setting("replication.oplogSizeMB", "oplogSize", Kind::Value),
    setting("replication.selfInitiate", "selfInitiate", Kind::Switch),
    setting(
        "storage.oplogMinRetentionHours",
        "oplogMinRetentionHours",
        Kind::Value,
    ),
    setting("sharding.clusterRole", "", Kind::Role),
    setting("sharding.configDB", "configdb", Kind::Value),
    setting("security.keyFile", "keyFile", Kind::Value),
    setting("security.authorization", "auth", Kind::Enabled),
    setting(
        "security.transitionToAuth",
        "transitionToAuth",
        Kind::Switch,
    ),
    setting("security.clusterAuthMode", "clusterAuthMode", Kind::Value),
    setting(
        "security.redactClientLogData",
        "redactClientLogData",
        Kind::Switch,
    ),
    setting("security.javascriptEnabled", "noscripting", Kind::Off),
    setting("auditLog.destination", "auditDestination", Kind::Value),
    setting("auditLog.format", "auditFormat", Kind::Value),
    setting("auditLog.path", "auditPath", Kind::Value),
    setting("auditLog.filter", "auditFilter", Kind::Value),
    setting(
        "auditLog.runtimeConfiguration",
        "auditRuntimeConfiguration",
        Kind::Switch,
    ),
    setting("setParameter", "setParameter", Kind::Pairs),
];

#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error("Error reading config file {path}: {source}")]
    Read {
        path: String,
        source: std::io::Error,
    },
    #[error("Error parsing config file {path}: {source}")]
    Parse {
        path: String,
        source: serde_yaml_ng::Error,
    },
    #[error("Unrecognized option: {0}")]
    Unknown(String),
    #[error("{0} is not allowed when {1} is specified")]
    Twice(String, String),
    #[error("Error parsing option \"{path}\": {what}")]
    Value { path: String, what: String },
}

/// The flags that a file stands for, and the settings in it that have no effect.
#[derive(Debug, Default, PartialEq)]
pub struct FileFlags {
    pub flags: Vec<String>,
    pub without_effect: Vec<String>,
}

pub fn read(path: &Path) -> Result<FileFlags, SettingsError> {
    let named = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|source| SettingsError::Read {
        path: named.clone(),
        source,
    })?;
    parse(&text).map_err(|error| match error {
        SettingsError::Parse { source, .. } => SettingsError::Parse {
            path: named,
            source,
        },
        other => other,
    })
}

pub fn parse(text: &str) -> Result<FileFlags, SettingsError> {
    let root: Value = serde_yaml_ng::from_str(text).map_err(|source| SettingsError::Parse {
        path: String::new(),
        source,
    })?;
    let mut out = FileFlags::default();
    match root {
        Value::Null => {}
        Value::Mapping(root) => {
            one_name_each(&root)?;
            walk("", &root, &mut out)?;
        }
        _ => {
            let what = "expected settings in the form section.name: value".to_owned();
            return Err(SettingsError::Value {
                path: String::new(),
                what,
            });
        }
    }
    Ok(out)
}

/// `net.ssl` is `net.tls` by another name: which of two values would count?
fn one_name_each(root: &Mapping) -> Result<(), SettingsError> {
    let names = |section: &str| {
        let section = root.get("net").and_then(|net| net.get(section));
        section
            .and_then(Value::as_mapping)
            .cloned()
            .unwrap_or_default()
    };
    let (old, new) = (names("ssl"), names("tls"));
    let first = |section: &Mapping| Some(section.keys().next()?.as_str()?.to_owned());
    match (first(&old), first(&new)) {
        (Some(old), Some(new)) => Err(SettingsError::Twice(
            format!("net.ssl.{old}"),
            format!("net.tls.{new}"),
        )),
        _ => Ok(()),
    }
}

fn walk(prefix: &str, mapping: &Mapping, out: &mut FileFlags) -> Result<(), SettingsError> {
    for (name, value) in mapping {
        let name = name
            .as_str()
            .map_or_else(|| format!("{name:?}"), str::to_owned);
        let path = if prefix.is_empty() {
            name
        } else {
            format!("{prefix}.{name}")
        };
        if let Some(setting) = SETTINGS.iter().find(|setting| setting.path == path) {
            apply(setting, value, out)?;
            continue;
        }
        let is_section = SETTINGS.iter().any(|setting| {
            setting
                .path
                .strip_prefix(&path)
                .is_some_and(|rest| rest.starts_with('.'))
        });
        match value {
            Value::Mapping(inner) if is_section => walk(&path, inner, out)?,
            Value::Null if is_section => {}
            _ => return Err(SettingsError::Unknown(path)),
        }
    }
    Ok(())
}

fn apply(setting: &Setting, value: &Value, out: &mut FileFlags) -> Result<(), SettingsError> {
    let wrong = |what: String| SettingsError::Value {
        path: setting.path.to_owned(),
        what,
    };
    let scalar = || scalar(value).ok_or_else(|| wrong("expected a single value".to_owned()));
    let switch = || {
        value
            .as_bool()
            .ok_or_else(|| wrong("expected true or false".to_owned()))
    };
    let flag = format!("--{}", setting.flag);
    match setting.kind {
        Kind::Value | Kind::Secret => out.flags.extend([flag, scalar()?]),
        Kind::Switch => out.flags.extend(switch()?.then_some(flag)),
        Kind::Off => out.flags.extend((!switch()?).then_some(flag)),
        Kind::Enabled => match scalar()?.as_str() {
            "enabled" => out.flags.push(flag),
            "disabled" => {}
            other => return Err(wrong(format!("{other:?} is neither enabled nor disabled"))),
        },
        Kind::Verbosity => {
            let times = value.as_u64().filter(|&level| level <= 5);
            let times = times.ok_or_else(|| wrong("expected a number from 0 to 5".to_owned()))?;
            out.flags.extend((0..times).map(|_| "-v".to_owned()));
        }
        Kind::Role => match scalar()?.as_str() {
            role @ ("shardsvr" | "configsvr") => out.flags.push(format!("--{role}")),
            other => return Err(wrong(format!("bad value {other:?}"))),
        },
        Kind::Pairs => {
            let pairs = value
                .as_mapping()
                .ok_or_else(|| wrong("expected a map".to_owned()))?;
            for (name, value) in pairs {
                let (Some(name), Some(value)) = (self::scalar(name), self::scalar(value)) else {
                    return Err(wrong("expected single values".to_owned()));
                };
                out.flags.extend([flag.clone(), format!("{name}={value}")]);
            }
        }
        Kind::Only(only) => {
            let given = scalar()?;
            if given != only {
                return Err(wrong(format!("{given:?} is not supported, only {only:?}")));
            }
        }
        Kind::Ignored => out.without_effect.push(setting.path.to_owned()),
    }
    Ok(())
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_flags_by_other_names() {
        let file = "
systemLog:
  destination: file
  path: /tmp/a.log
  logAppend: true
  verbosity: 2
net: {port: 27018, bindIp: '127.0.0.1,::1'}
storage:
  dbPath: /data
  journal:
    enabled: true
replication:
  replSetName: set_a
sharding:
  clusterRole: shardsvr
processManagement:
  fork: false
  timeZoneInfo: /usr/share/zoneinfo
security:
  authorization: enabled
  keyFile: /etc/key
setParameter:
  diagnosticDataCollectionEnabled: false
";
        let read = parse(file).unwrap();
        let expected = "--logpath /tmp/a.log --logappend -v -v --port 27018 \
            --bind_ip 127.0.0.1,::1 --dbpath /data --replSet set_a --shardsvr \
            --auth --keyFile /etc/key --setParameter diagnosticDataCollectionEnabled=false";
        assert_eq!(
            read.flags.join(" "),
            expected.split_whitespace().collect::<Vec<_>>().join(" ")
        );
        assert_eq!(read.without_effect, ["processManagement.timeZoneInfo"]);
        assert_eq!(parse("# nothing").unwrap(), FileFlags::default());
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for (file, said) in [
            ("net:\n  prot: 1", "Unrecognized option: net.prot"),
            ("nett:\n  port: 1", "Unrecognized option: nett"),
            ("net:\n  port: [1]", "net.port"),
            (
                "net:\n  tls: {modus: x}",
                "Unrecognized option: net.tls.modus",
            ),
            (
                "net: {tls: {mode: allowTLS}, ssl: {mode: allowSSL}}",
                "net.ssl.mode is not allowed when net.tls.mode is specified",
            ),
            (
                "storage:\n  journal:\n    enabled: 3",
                "expected true or false",
            ),
            ("systemLog:\n  destination: syslog", "not supported"),
            ("security:\n  authorization: perhaps", "neither enabled"),
            ("- a", "section.name"),
            ("a: [", "Error parsing config file"),
        ] {
            let error = parse(file).unwrap_err().to_string();
            assert!(error.contains(said), "{file:?} said {error:?}");
        }
    }
}
