//! What `hello` and `getLastError` mean to the connection rather than to the service.

use bson::raw::cstr;
use bson::{RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};

use crate::compression::Compressor;
use crate::connection::Connection;
use crate::request::Request;

pub(crate) fn is_hello(name: &str) -> bool {
    matches!(name, "hello" | "isMaster" | "ismaster")
}

pub(crate) fn is_last_error(name: &str) -> bool {
    matches!(name, "getLastError" | "getlasterror")
}

/// Takes from a `hello` what concerns the connection; returns the compressors both sides speak
/// if the client named any.
pub(crate) fn greet(connection: &Connection, request: &Request) -> Option<Vec<Compressor>> {
    if let Some(RawBsonRef::Document(client)) = request.get("client") {
        connection.set_metadata(client.to_owned());
    }
    let hello_ok = match request.get("helloOk") {
        Some(RawBsonRef::Boolean(yes)) => yes,
        Some(RawBsonRef::Int32(n)) => n != 0,
        Some(RawBsonRef::Int64(n)) => n != 0,
        Some(RawBsonRef::Double(n)) => n != 0.0,
        _ => false,
    };
    if hello_ok {
        connection.set_hello_ok();
    }
    let Some(RawBsonRef::Array(offered)) = request.get("compression") else {
        return None;
    };
    Some(
        offered
            .into_iter()
            .filter_map(|name| Compressor::from_name(name.ok()?.as_str()?))
            .collect(),
    )
}

pub(crate) fn answer(
    connection: &Connection,
    compressors: Option<Vec<Compressor>>,
    reply: &mut RawDocumentBuf,
) {
    let Some(compressors) = compressors else {
        return;
    };
    if !compressors.is_empty() {
        let names = RawArrayBuf::from_iter(compressors.iter().map(|compressor| compressor.name()));
        reply.append(cstr!("compression"), names);
    }
    connection.negotiated(compressors);
}

/// A write is acknowledged by a majority as it is; only `w` above 1, or tags, mean waiting for
/// more. The wait is a no-op write with that concern.
pub(crate) fn write_concern_wait(request: Request) -> Option<Request> {
    let w = request.get("w")?;
    let waits = match w {
        RawBsonRef::Int32(n) => n > 1,
        RawBsonRef::Int64(n) => n > 1,
        RawBsonRef::Double(n) => n > 1.0,
        RawBsonRef::String(mode) => mode != "majority",
        _ => true,
    };
    if !waits {
        return None;
    }
    let mut concern = RawDocumentBuf::new();
    for name in [cstr!("w"), cstr!("j"), cstr!("wtimeout")] {
        if let Some(value) = request.get(name.as_str()) {
            concern.append(name, value);
        }
    }
    let body = rawdoc! {
        "appendOplogNote": 1,
        "data": {"msg": "getLastError"},
        "writeConcern": concern,
        "$db": "admin",
    };
    Some(Request {
        database: "admin".to_owned(),
        name: "appendOplogNote".to_owned(),
        body: body.into(),
        sequences: Vec::new(),
        ..request
    })
}

pub(crate) fn with_write_concern_error(
    answer: RawDocumentBuf,
    waited: &RawDocument,
) -> RawDocumentBuf {
    let Ok(error) = waited.get_document("writeConcernError") else {
        return answer;
    };
    let mut out = RawDocumentBuf::new();
    for (name, value) in answer.iter().flatten() {
        if name.as_str() == "err" {
            out.append(name, "timeout");
            out.append(cstr!("wtimeout"), true);
        } else {
            out.append(name, value);
        }
    }
    if let Ok(message) = error.get_str("errmsg") {
        out.append(cstr!("wnote"), message);
    }
    out
}
