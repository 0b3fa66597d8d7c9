//! The opcodes of the drivers of 2012, turned into today's commands, and their replies turned back
//! into OP_REPLY.
//!
//! The writes among them are not answered; a client asks `getLastError` on the same connection (see
//! [`crate::last_error`]).

use banyan_document::is_true;
use bson::raw::cstr;
use bson::{RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use bytes::{Buf, Bytes};

use crate::decoding::{
    self, COMMAND_DEPTH_MAX, DecodeError, Header, ReplyForm, malformed, read_cstring, read_document,
};
use crate::error::CommandError;
use crate::request::{Doc, Origin, Request, Sequence, first_name};

/// OP_REPLY's flag bits.
const REPLY_CURSOR_NOT_FOUND: i32 = 1;
const REPLY_QUERY_FAILURE: i32 = 1 << 1;
const REPLY_AWAIT_CAPABLE: i32 = 1 << 3;

/// OP_QUERY's flag bits.
const QUERY_TAILABLE: i32 = 1 << 1;
const QUERY_SECONDARY_OK: i32 = 1 << 2;
const QUERY_NO_CURSOR_TIMEOUT: i32 = 1 << 4;
const QUERY_AWAIT_DATA: i32 = 1 << 5;
const QUERY_EXHAUST: i32 = 1 << 6;
const QUERY_PARTIAL: i32 = 1 << 7;

const INSERT_CONTINUE_ON_ERROR: i32 = 1;
const UPDATE_UPSERT: i32 = 1;
const UPDATE_MULTI: i32 = 1 << 1;
const DELETE_SINGLE: i32 = 1;

/// More ids than this in one OP_KILL_CURSORS is not a client we know.
const KILL_CURSORS_MAX: usize = 30_000;

/// More collections or indexes than this are cut off for drivers that ask in the old way.
const CATALOG_BATCH: i32 = 100_000;

/// Turns the bytes after the header into a command.
pub(crate) fn decode(header: Header, payload: &Bytes) -> Result<(Request, ReplyForm), DecodeError> {
    let mut bytes = payload.clone();
    match header.opcode {
        decoding::OP_QUERY => query(header, &mut bytes),
        decoding::OP_GET_MORE => get_more(header, &mut bytes),
        decoding::OP_INSERT => insert(header, &mut bytes),
        decoding::OP_UPDATE => update(header, &mut bytes),
        decoding::OP_DELETE => delete(header, &mut bytes),
        decoding::OP_KILL_CURSORS => kill_cursors(header, &mut bytes),
        other => Err(malformed(format!("unknown opcode {other}"))),
    }
}

fn int(bytes: &mut Bytes) -> Result<i32, DecodeError> {
    if bytes.remaining() < 4 {
        return Err(malformed("the message is too short"));
    }
    Ok(bytes.get_i32_le())
}

fn document(header: Header, form: ReplyForm, bytes: &mut Bytes) -> Result<Doc, DecodeError> {
    let refuse = |code, text: String| DecodeError::Refused {
        request_id: header.request_id,
        error: CommandError::new(code, text),
        form,
    };
    read_document(bytes, COMMAND_DEPTH_MAX, &refuse)
}

fn namespace(bytes: &mut Bytes) -> Result<(String, String), DecodeError> {
    let full = read_cstring(bytes)?;
    let (database, collection) = full
        .split_once('.')
        .ok_or_else(|| malformed(format!("no namespace: {full:?}")))?;
    Ok((database.to_owned(), collection.to_owned()))
}

fn request(header: Header, database: String, body: RawDocumentBuf, origin: Origin) -> Request {
    let mut body = body;
    body.append(cstr!("$db"), database.as_str());
    Request {
        request_id: header.request_id,
        name: first_name(&body).unwrap_or_default().to_owned(),
        database,
        body: body.into(),
        sequences: Vec::new(),
        more_to_come: false,
        exhaust_allowed: false,
        origin,
    }
}

fn query(header: Header, bytes: &mut Bytes) -> Result<(Request, ReplyForm), DecodeError> {
    let flags = int(bytes)?;
    let (database, collection) = namespace(bytes)?;
    let skip = int(bytes)?;
    let wanted = int(bytes)?;
    if collection == "$cmd" {
        let form = ReplyForm::Command;
        let body = document(header, form, bytes)?;
        let body = unwrap_command(&body, flags);
        if body.is_empty() {
            return Err(malformed("an empty command"));
        }
        return Ok((
            request(header, database, body, Origin::LegacyQueryCommand),
            form,
        ));
    }
    if let Some(name) = collection.strip_prefix("$cmd.sys.") {
        let form = ReplyForm::Command;
        let filter = document(header, form, bytes)?;
        let body = pseudo_command(name, &filter)?;
        return Ok((
            request(header, "admin".to_owned(), body, Origin::LegacyQueryCommand),
            form,
        ));
    }
    let form = ReplyForm::Cursor;
    let filter = document(header, form, bytes)?;
    if let Some((body, form)) = system_collection(&collection, &filter) {
        return Ok((request(header, database, body, Origin::LegacyOp), form));
    }
    let fields = if bytes.is_empty() {
        None
    } else {
        Some(document(header, form, bytes)?)
    };
    let (body, form) = find_command(&collection, flags, skip, wanted, &filter, fields.as_deref());
    let mut request = request(header, database, body, Origin::LegacyOp);
    request.exhaust_allowed = flags & QUERY_EXHAUST != 0 && form == ReplyForm::Cursor;
    Ok((request, form))
}

/// The catalog as collections: what drivers read before there were commands for it.
fn system_collection(
    collection: &str,
    filter: &RawDocument,
) -> Option<(RawDocumentBuf, ReplyForm)> {
    let whole = rawdoc! {"batchSize": CATALOG_BATCH};
    match collection {
        "system.namespaces" => Some((
            rawdoc! {"listCollections": 1, "cursor": whole},
            ReplyForm::Namespaces,
        )),
        "system.indexes" => {
            let filter = filter
                .get_document("$query")
                .or_else(|_| filter.get_document("query"))
                .unwrap_or(filter);
            let (_, name) = filter.get_str("ns").ok()?.split_once('.')?;
            Some((
                rawdoc! {"listIndexes": name, "cursor": whole},
                ReplyForm::Indexes,
            ))
        }
        _ => None,
    }
}

/// Turns the reply of `listCollections` into documents of `system.namespaces`.
pub(crate) fn as_namespaces(reply: &RawDocument) -> RawDocumentBuf {
    with_batch(reply, |database, entry| {
        let name = entry.get_str("name").unwrap_or_default();
        rawdoc! {"name": format!("{database}.{name}")}
    })
}

/// Turns the reply of `listIndexes` into documents of `system.indexes`. A collection that isn't
/// there has none.
pub(crate) fn as_indexes(reply: &RawDocument) -> RawDocumentBuf {
    if CommandError::from_reply(reply)
        .is_some_and(|error| error.code == crate::ErrorCode::NamespaceNotFound)
    {
        let batch = RawArrayBuf::new();
        return rawdoc! {"cursor": {"id": 0i64, "ns": "", "firstBatch": batch}, "ok": 1.0};
    }
    let ns = reply
        .get_document("cursor")
        .ok()
        .and_then(|cursor| cursor.get_str("ns").ok());
    with_batch(reply, |_, entry| {
        let mut index = entry.to_owned();
        index.append(cstr!("ns"), ns.unwrap_or_default());
        index
    })
}

/// A first batch with each document changed; `change` is also given the database's name.
fn with_batch(
    reply: &RawDocument,
    change: impl Fn(&str, &RawDocument) -> RawDocumentBuf,
) -> RawDocumentBuf {
    let Ok(cursor) = reply.get_document("cursor") else {
        return reply.to_owned();
    };
    let ns = cursor.get_str("ns").unwrap_or_default();
    let database = ns.split_once('.').map_or(ns, |(database, _)| database);
    let mut batch = RawArrayBuf::new();
    for entry in cursor
        .get_array("firstBatch")
        .ok()
        .into_iter()
        .flatten()
        .flatten()
    {
        if let RawBsonRef::Document(entry) = entry {
            batch.push(change(database, entry));
        }
    }
    rawdoc! {"cursor": {"id": 0i64, "ns": ns, "firstBatch": batch}, "ok": 1.0}
}

/// A command may be wrapped as `{$query: {…}, $readPreference: {…}}`.
fn unwrap_command(body: &RawDocument, flags: i32) -> RawDocumentBuf {
    let wrapped = match first_name(body) {
        Some(name @ ("$query" | "query")) => body.get_document(name).ok(),
        _ => None,
    };
    let mut out = RawDocumentBuf::new();
    let mut names_preference = false;
    let wrapper = wrapped
        .map(|_| body)
        .into_iter()
        .flat_map(|body| body.iter().flatten().skip(1));
    let inner = wrapped.unwrap_or(body);
    for (name, value) in inner.iter().flatten().chain(wrapper) {
        names_preference |= name.as_str() == "$readPreference";
        if name.as_str() != "$db" {
            out.append(name, value);
        }
    }
    if flags & QUERY_SECONDARY_OK != 0 && !names_preference && !out.is_empty() {
        out.append(
            cstr!("$readPreference"),
            rawdoc! {"mode": "secondaryPreferred"},
        );
    }
    out
}

/// `db.$cmd.sys.inprog` and its siblings, commands in another form.
fn pseudo_command(name: &str, filter: &RawDocument) -> Result<RawDocumentBuf, DecodeError> {
    let command = match name {
        "inprog" => cstr!("currentOp"),
        "killop" => cstr!("killOp"),
        "unlock" => cstr!("fsyncUnlock"),
        other => {
            return Err(malformed(format!(
                "unknown pseudo collection $cmd.sys.{other}"
            )));
        }
    };
    let mut out = RawDocumentBuf::new();
    out.append(command, 1);
    for (name, value) in filter.iter().flatten() {
        out.append(name, value);
    }
    Ok(out)
}

fn find_command(
    collection: &str,
    flags: i32,
    skip: i32,
    wanted: i32,
    filter: &RawDocument,
    fields: Option<&RawDocument>,
) -> (RawDocumentBuf, ReplyForm) {
    let mut out = rawdoc! {"find": collection};
    let wrapped = is_wrapper(filter);
    let mut explain = false;
    let mut names_preference = false;
    if wrapped {
        for (name, value) in filter.iter().flatten() {
            let name = match name.as_str().trim_start_matches('$') {
                "query" => cstr!("filter"),
                "orderby" => cstr!("sort"),
                "hint" => cstr!("hint"),
                "comment" => cstr!("comment"),
                "maxTimeMS" => cstr!("maxTimeMS"),
                "max" => cstr!("max"),
                "min" => cstr!("min"),
                "returnKey" => cstr!("returnKey"),
                "showDiskLoc" => cstr!("showRecordId"),
                "readPreference" => {
                    names_preference = true;
                    cstr!("$readPreference")
                }
                "explain" => {
                    explain = is_true(value);
                    continue;
                }
                // `$snapshot`, `$maxScan`: gone, and without effect on what is found.
                _ => continue,
            };
            out.append(name, value);
        }
    } else {
        out.append(cstr!("filter"), filter);
    }
    if let Some(fields) = fields.filter(|fields| !fields.is_empty()) {
        out.append(cstr!("projection"), fields);
    }
    if skip > 0 {
        out.append(cstr!("skip"), skip);
    }
    match wanted {
        0 => {}
        1 => {
            out.append(cstr!("limit"), 1i64);
            out.append(cstr!("singleBatch"), true);
        }
        wanted if wanted < 0 => {
            out.append(cstr!("limit"), i64::from(wanted).abs());
            out.append(cstr!("singleBatch"), true);
        }
        wanted => out.append(cstr!("batchSize"), wanted),
    }
    for (bit, name) in [
        (QUERY_TAILABLE, cstr!("tailable")),
        (QUERY_NO_CURSOR_TIMEOUT, cstr!("noCursorTimeout")),
        (QUERY_AWAIT_DATA, cstr!("awaitData")),
        (QUERY_PARTIAL, cstr!("allowPartialResults")),
    ] {
        if flags & bit != 0 {
            out.append(name, true);
        }
    }
    if explain {
        let mut outer = rawdoc! {"explain": out};
        outer.append(cstr!("verbosity"), "allPlansExecution");
        return (outer, ReplyForm::Explained);
    }
    if flags & QUERY_SECONDARY_OK != 0 && !names_preference {
        out.append(
            cstr!("$readPreference"),
            rawdoc! {"mode": "secondaryPreferred"},
        );
    }
    (out, ReplyForm::Cursor)
}

/// `{query: …}` may be a wrapper or a filter on a field called `query`; a wrapper holds a document.
fn is_wrapper(filter: &RawDocument) -> bool {
    if filter.get_document("$query").is_ok() {
        return true;
    }
    first_name(filter) == Some("query")
        && filter.get_document("query").is_ok()
        && filter.iter().flatten().skip(1).any(|(name, _)| {
            matches!(
                name.as_str().trim_start_matches('$'),
                "orderby" | "hint" | "explain"
            )
        })
}

fn get_more(header: Header, bytes: &mut Bytes) -> Result<(Request, ReplyForm), DecodeError> {
    int(bytes)?;
    let (database, collection) = namespace(bytes)?;
    let wanted = int(bytes)?;
    if bytes.remaining() < 8 {
        return Err(malformed("OP_GET_MORE without a cursor id"));
    }
    let mut body = rawdoc! {"getMore": bytes.get_i64_le(), "collection": collection};
    if wanted != 0 {
        body.append(cstr!("batchSize"), i64::from(wanted).abs());
    }
    Ok((
        request(header, database, body, Origin::LegacyOp),
        ReplyForm::Cursor,
    ))
}

fn insert(header: Header, bytes: &mut Bytes) -> Result<(Request, ReplyForm), DecodeError> {
    let flags = int(bytes)?;
    let (database, collection) = namespace(bytes)?;
    let documents = bytes.clone();
    let mut count = 0;
    let mut first = None;
    while !bytes.is_empty() {
        let document = document(header, ReplyForm::None, bytes)?;
        first.get_or_insert(document);
        count += 1;
    }
    let Some(first) = first else {
        return Err(malformed("OP_INSERT without documents"));
    };
    if collection == "system.indexes" {
        let body = create_index_command(&first)?;
        return Ok((
            request(header, database, body, Origin::LegacyOp),
            ReplyForm::None,
        ));
    }
    let ordered = flags & INSERT_CONTINUE_ON_ERROR == 0;
    let body = rawdoc! {"insert": collection, "ordered": ordered};
    let mut request = request(header, database, body, Origin::LegacyOp);
    request
        .sequences
        .push(Sequence::new("documents".to_owned(), documents, count));
    Ok((request, ReplyForm::None))
}

/// `ensureIndex` of an old driver: an insert of `{ns, key, name, …}` into `system.indexes`.
fn create_index_command(spec: &RawDocument) -> Result<RawDocumentBuf, DecodeError> {
    let collection = spec
        .get_str("ns")
        .ok()
        .and_then(|full| full.split_once('.'))
        .map(|(_, collection)| collection)
        .ok_or_else(|| malformed("an index without a namespace"))?;
    let mut index = RawDocumentBuf::new();
    for (name, value) in spec.iter().flatten() {
        if !matches!(name.as_str(), "ns" | "_id") {
            index.append(name, value);
        }
    }
    let indexes = RawArrayBuf::from_iter([index]);
    Ok(rawdoc! {"createIndexes": collection, "indexes": indexes})
}

fn update(header: Header, bytes: &mut Bytes) -> Result<(Request, ReplyForm), DecodeError> {
    int(bytes)?;
    let (database, collection) = namespace(bytes)?;
    let flags = int(bytes)?;
    let filter = RawDocument::to_owned(&document(header, ReplyForm::None, bytes)?);
    let change = RawDocument::to_owned(&document(header, ReplyForm::None, bytes)?);
    let statement = rawdoc! {
        "q": filter,
        "u": change,
        "upsert": flags & UPDATE_UPSERT != 0,
        "multi": flags & UPDATE_MULTI != 0,
    };
    let body = rawdoc! {"update": collection, "updates": RawArrayBuf::from_iter([statement])};
    Ok((
        request(header, database, body, Origin::LegacyOp),
        ReplyForm::None,
    ))
}

fn delete(header: Header, bytes: &mut Bytes) -> Result<(Request, ReplyForm), DecodeError> {
    int(bytes)?;
    let (database, collection) = namespace(bytes)?;
    let flags = int(bytes)?;
    let filter = RawDocument::to_owned(&document(header, ReplyForm::None, bytes)?);
    let limit = i32::from(flags & DELETE_SINGLE != 0);
    let statement = rawdoc! {"q": filter, "limit": limit};
    let body = rawdoc! {"delete": collection, "deletes": RawArrayBuf::from_iter([statement])};
    Ok((
        request(header, database, body, Origin::LegacyOp),
        ReplyForm::None,
    ))
}

fn kill_cursors(header: Header, bytes: &mut Bytes) -> Result<(Request, ReplyForm), DecodeError> {
    int(bytes)?;
    let count = usize::try_from(int(bytes)?).unwrap_or(usize::MAX);
    if count > KILL_CURSORS_MAX || bytes.remaining() != count * 8 {
        return Err(malformed(
            "OP_KILL_CURSORS lies about its number of cursors",
        ));
    }
    let mut cursors = RawArrayBuf::new();
    for _ in 0..count {
        cursors.push(bytes.get_i64_le());
    }
    // The opcode names no collection.
    let body = rawdoc! {"killCursors": "$cmd", "cursors": cursors};
    Ok((
        request(header, "admin".to_owned(), body, Origin::LegacyOp),
        ReplyForm::None,
    ))
}

/// Appends an OP_REPLY with the one document that a command answers.
pub(crate) fn encode_command_reply(
    out: &mut Vec<u8>,
    request_id: i32,
    response_to: i32,
    reply: &RawDocument,
) {
    let start = decoding::begin(out, request_id, response_to, decoding::OP_REPLY);
    reply_head(out, REPLY_AWAIT_CAPABLE, 0, 1);
    out.extend_from_slice(reply.as_bytes());
    decoding::finish(out, start);
}

/// Appends an OP_REPLY with what an `explain` answers; it fails as the query itself would.
pub(crate) fn encode_explained_reply(
    out: &mut Vec<u8>,
    request_id: i32,
    response_to: i32,
    reply: &RawDocument,
) {
    match CommandError::from_reply(reply) {
        Some(error) => encode_query_failure(out, request_id, response_to, &error),
        None => encode_command_reply(out, request_id, response_to, reply),
    }
}

/// Appends an OP_REPLY with the batch of a `find` or `getMore` reply.
pub(crate) fn encode_cursor_reply(
    out: &mut Vec<u8>,
    request_id: i32,
    response_to: i32,
    reply: &RawDocument,
) {
    if let Some(error) = CommandError::from_reply(reply) {
        return encode_query_failure(out, request_id, response_to, &error);
    }
    let start = decoding::begin(out, request_id, response_to, decoding::OP_REPLY);
    let cursor = reply.get_document("cursor").ok();
    let id = cursor
        .and_then(|cursor| cursor.get_i64("id").ok())
        .unwrap_or_default();
    let head = out.len();
    reply_head(out, REPLY_AWAIT_CAPABLE, id, 0);
    let batch = cursor.and_then(|cursor| {
        cursor
            .get_array("firstBatch")
            .or_else(|_| cursor.get_array("nextBatch"))
            .ok()
    });
    let mut count = 0i32;
    for value in batch.into_iter().flatten().flatten() {
        if let RawBsonRef::Document(document) = value {
            out.extend_from_slice(document.as_bytes());
            count += 1;
        }
    }
    out[head + 16..head + 20].copy_from_slice(&count.to_le_bytes());
    decoding::finish(out, start);
}

fn encode_query_failure(
    out: &mut Vec<u8>,
    request_id: i32,
    response_to: i32,
    error: &CommandError,
) {
    let start = decoding::begin(out, request_id, response_to, decoding::OP_REPLY);
    if error.code == crate::ErrorCode::CursorNotFound {
        reply_head(out, REPLY_CURSOR_NOT_FOUND, 0, 0);
    } else {
        reply_head(out, REPLY_QUERY_FAILURE, 0, 1);
        let mut failure = rawdoc! {"$err": error.message.as_str(), "code": error.code.code()};
        for (name, value) in error.to_reply().iter().flatten() {
            if name.as_str() != "code" {
                failure.append(name, value);
            }
        }
        out.extend_from_slice(failure.as_bytes());
    }
    decoding::finish(out, start);
}

fn reply_head(out: &mut Vec<u8>, flags: i32, cursor: i64, count: i32) {
    out.extend_from_slice(&flags.to_le_bytes());
    out.extend_from_slice(&cursor.to_le_bytes());
    out.extend_from_slice(&0i32.to_le_bytes());
    out.extend_from_slice(&count.to_le_bytes());
}
