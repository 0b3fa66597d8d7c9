//! What a query is parsed in: the clock, the command's variables, the JavaScript engine.

use std::sync::Arc;

use bson::{DateTime, RawBson, Timestamp};

use crate::filter::JavaScript;

/// Parsing needs it once per command; nothing here changes while the command runs.
#[derive(Clone, Debug)]
pub struct Context {
    /// `$$NOW`: one time for the whole command.
    pub now: DateTime,
    /// `$$CLUSTER_TIME`, where the deployment keeps one.
    pub cluster_time: Option<Timestamp>,
    /// The command's `let`: names and their values.
    pub variables: Vec<(String, RawBson)>,
    /// Runs `$where`, where there is an engine.
    pub javascript: Option<Arc<dyn JavaScript>>,
}

impl Default for Context {
    fn default() -> Context {
        Context {
            now: DateTime::now(),
            cluster_time: None,
            variables: Vec::new(),
            javascript: None,
        }
    }
}
