//! What `hello` means to the connection rather than to the service.

use bson::raw::cstr;
use bson::{RawArrayBuf, RawBsonRef, RawDocumentBuf};

use crate::compression::Compressor;
use crate::connection::Connection;
use crate::request::Request;

pub(crate) fn is_hello(name: &str) -> bool {
    matches!(name, "hello" | "isMaster" | "ismaster")
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
        let mut with_names = RawDocumentBuf::new();
        for (name, value) in reply.iter().flatten() {
            if name.as_str() == "ok" {
                with_names.append(cstr!("compression"), names.clone());
            }
            with_names.append(name, value);
        }
        *reply = with_names;
    }
    connection.negotiated(compressors);
}
