//! What a router does because of the cluster's parameters, which the config servers keep.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use banyan_access::audit_config;
use banyan_access::reads_and_writes::is_timed_read;
use banyan_query::query_settings::{self, KnownSettings};
use banyan_wire::Request;
use bson::{RawBsonRef, RawDocument, cstr};
use parking_lot::RwLock;

use crate::fields;

/// As they were when they were read last.
#[derive(Default)]
pub struct ClusterParameters {
    /// How long reads may take that name no time, in milliseconds; 0: as long as they like.
    read_time_max: AtomicU64,
    has_query_settings: AtomicBool,
    query_settings: RwLock<Arc<KnownSettings>>,
}

impl ClusterParameters {
    pub fn note(&self, reply: &RawDocument) {
        let parameters = reply.get_array("clusterParameters").into_iter().flatten();
        for parameter in parameters.flatten().filter_map(|value| value.as_document()) {
            match fields::get(parameter, "_id") {
                Some(RawBsonRef::String("defaultMaxTimeMS")) => {
                    let number = fields::get_number(parameter, "readOperations").unwrap_or(0);
                    let milliseconds = u64::try_from(number).unwrap_or(0);
                    self.read_time_max.store(milliseconds, Ordering::Relaxed);
                }
                Some(RawBsonRef::String(query_settings::PARAMETER)) => {
                    let known = KnownSettings::of(parameter);
                    let is_there = !known.is_empty();
                    *self.query_settings.write() = Arc::new(known);
                    self.has_query_settings.store(is_there, Ordering::Relaxed);
                }
                Some(RawBsonRef::String(audit_config::PARAMETER)) => audit_config::apply(parameter),
                _ => {}
            }
        }
    }

    /// Whether any queries have settings.
    pub fn have_query_settings(&self) -> bool {
        self.has_query_settings.load(Ordering::Relaxed)
    }

    pub fn query_settings(&self) -> Arc<KnownSettings> {
        self.query_settings.read().clone()
    }

    /// The request with the time that it may take. `None`: it stays as it is, as it must where its user
    /// may pass that by.
    pub fn timed(&self, request: &Request, may_bypass: impl FnOnce() -> bool) -> Option<Request> {
        let milliseconds = self.time_max(request)?;
        if may_bypass() {
            return None;
        }
        let mut body = RawDocument::to_owned(&request.body);
        body.append(cstr!("maxTimeMS"), milliseconds);
        Some(Request {
            body: body.into(),
            ..request.clone()
        })
    }

    /// How long this request may take, if it names no time itself.
    fn time_max(&self, request: &Request) -> Option<i64> {
        let milliseconds = i64::try_from(self.read_time_max.load(Ordering::Relaxed)).ok()?;
        let applies = milliseconds > 0
            && request.get("maxTimeMS").is_none()
            && is_timed_read(&request.name, &request.body);
        applies.then_some(milliseconds)
    }
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;

    #[test]
    fn reads_that_name_no_time_have_the_clusters() {
        let parameters = ClusterParameters::default();
        let time = |body| parameters.time_max(&Request::command("t", body));
        assert_eq!(time(rawdoc! { "find": "a" }), None);
        parameters.note(&rawdoc! { "clusterParameters": [
            { "_id": "changeStreamOptions" },
            { "_id": "defaultMaxTimeMS", "readOperations": 50_i64 },
        ] });
        assert_eq!(time(rawdoc! { "find": "a" }), Some(50));
        assert_eq!(time(rawdoc! { "find": "a", "maxTimeMS": 0 }), None);
        assert_eq!(time(rawdoc! { "insert": "a" }), None);
        let output = rawdoc! { "aggregate": "a", "pipeline": [{ "$out": "b" }] };
        assert_eq!(time(output), None);
    }
}
