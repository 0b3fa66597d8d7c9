//! What every process tells of its connections to others, and how it drops them: `connPoolStats` and
//! `dropConnections`.

use std::collections::BTreeMap;

use bson::raw::CString;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

use crate::client::{Pool, PoolUsage};
use crate::codes::ErrorCode;
use crate::error::CommandError;
use crate::params::Field;

/// The figures of all pools: in sum, and by the address that they lead to.
pub fn stats() -> RawDocumentBuf {
    let mut hosts: BTreeMap<String, PoolUsage> = BTreeMap::new();
    let mut total = PoolUsage::default();
    for pool in Pool::all() {
        let usage = pool.usage();
        add(&mut total, &usage);
        add(hosts.entry(pool.address().to_owned()).or_default(), &usage);
    }
    let mut by_host = RawDocumentBuf::new();
    let mut pool = figures(
        &total,
        [
            "poolInUse",
            "poolAvailable",
            "poolCreated",
            "poolRefreshing",
        ],
    );
    for (host, usage) in &hosts {
        // No address holds a zero byte.
        let Ok(host) = CString::try_from(host.as_str()) else {
            continue;
        };
        let figures = figures(usage, ["inUse", "available", "created", "refreshing"]);
        by_host.append(&host, figures.clone());
        pool.append(&host, figures);
    }
    rawdoc! {
        "numClientConnections": 0,
        "numAScopedConnections": 0,
        "totalInUse": number(total.in_use),
        "totalAvailable": number(total.available),
        "totalCreated": number(total.created),
        "totalRefreshing": number(total.connecting),
        "pools": { "global": pool },
        "hosts": by_host,
    }
}

fn add(sum: &mut PoolUsage, usage: &PoolUsage) {
    sum.in_use += usage.in_use;
    sum.available += usage.available;
    sum.created += usage.created;
    sum.connecting += usage.connecting;
}

fn figures(usage: &PoolUsage, names: [&'static str; 4]) -> RawDocumentBuf {
    let values = [
        usage.in_use,
        usage.available,
        usage.created,
        usage.connecting,
    ];
    let mut out = RawDocumentBuf::new();
    for (name, value) in names.into_iter().zip(values) {
        if let Ok(name) = CString::try_from(name) {
            out.append(&name, number(value));
        }
    }
    out
}

fn number(value: u64) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

/// Drops the connections to the addresses that a `dropConnections` names.
pub fn drop_connections(body: &RawDocument) -> Result<RawDocumentBuf, CommandError> {
    let Ok(Some(value)) = body.get("hostAndPort") else {
        return Err(CommandError::new(
            ErrorCode::Location(40414),
            "BSON field 'dropConnections.hostAndPort' is missing but a required field",
        ));
    };
    let field = Field {
        command: "dropConnections",
        name: "hostAndPort",
        value,
    };
    let RawBsonRef::Array(listed) = value else {
        return Err(field.wrong_type("type 'array'"));
    };
    let mut addresses = Vec::new();
    for item in listed.into_iter().flatten() {
        let RawBsonRef::String(address) = item else {
            return Err(CommandError::new(
                ErrorCode::TypeMismatch,
                "BSON field 'dropConnections.hostAndPort' has an item that is not a string",
            ));
        };
        addresses.push(address_of(address)?);
    }
    for pool in Pool::all() {
        if addresses.iter().any(|address| address == pool.address()) {
            pool.drop_connections();
        }
    }
    let mut reply = RawDocumentBuf::new();
    reply.append(cstr!("ok"), 1.0);
    Ok(reply)
}

/// `host:port`; a host alone stands for MongoDB's port.
fn address_of(text: &str) -> Result<String, CommandError> {
    let failed = |why: &str| CommandError::new(ErrorCode::FailedToParse, why);
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    };
    if host.is_empty() {
        return Err(failed("Empty host component parsing HostAndPort"));
    }
    match port {
        None => Ok(format!("{text}:27017")),
        Some(port) if port.parse::<u16>().is_ok_and(|port| port > 0) => Ok(text.to_owned()),
        Some(_) => Err(failed("Did not consume whole string.")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_such() {
        assert_eq!(address_of("a:1").unwrap(), "a:1");
        assert_eq!(address_of("a").unwrap(), "a:27017");
        assert_eq!(address_of("[::1]:5").unwrap(), "[::1]:5");
        for wrong in ["a:x", "a:0", ":5", "a:99999"] {
            let error = address_of(wrong).unwrap_err();
            assert_eq!(error.code, ErrorCode::FailedToParse, "{wrong}");
        }
    }

    #[test]
    fn pools_are_told_of_while_there_are_any() {
        let pool = Pool::new("nowhere.invalid:1", crate::PoolOptions::default());
        let shown = || stats().get_document("hosts").unwrap().to_owned();
        let host = shown()
            .get_document("nowhere.invalid:1")
            .unwrap()
            .to_owned();
        assert_eq!(host.get_i32("created").unwrap(), 0);
        drop(pool);
        assert!(shown().get_document("nowhere.invalid:1").is_err());
    }
}
