//! Names of first stages that only the node can answer.

pub(super) const CHANGE_STREAM: &str = "$changeStream";
pub(super) const COLL_STATS: &str = "$collStats";
pub(super) const CURRENT_OP: &str = "$currentOp";
pub(super) const INDEX_STATS: &str = "$indexStats";
pub(super) const LIST_CATALOG: &str = "$listCatalog";
pub(super) const LIST_LOCAL_SESSIONS: &str = "$listLocalSessions";
pub(super) const LIST_SESSIONS: &str = "$listSessions";
pub(super) const PLAN_CACHE_STATS: &str = "$planCacheStats";
