//! Actions: what a privilege allows. The names are those of MongoDB's manual, "Privilege Actions".

use std::fmt;

macro_rules! actions {
    ($($action:ident = $name:literal,)*) => {
        /// One thing that can be done to a resource.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Action { $($action,)* }

        impl Action {
            /// Every action, in the order of their names.
            pub const ALL: &[Action] = &[$(Action::$action,)*];

            /// As roles' documents spell it.
            pub const fn name(self) -> &'static str {
                match self { $(Action::$action => $name,)* }
            }

            pub fn from_name(name: &str) -> Option<Action> {
                match name {
                    $($name => Some(Action::$action),)*
                    _ => None,
                }
            }
        }
    };
}

actions! {
    AddShard = "addShard",
    AdvanceClusterTime = "advanceClusterTime",
    AllCollectionStats = "allCollectionStats",
    AnalyzeShardKey = "analyzeShardKey",
    AnyAction = "anyAction",
    AppendOplogNote = "appendOplogNote",
    ApplicationMessage = "applicationMessage",
    ApplyOps = "applyOps",
    AuditConfigure = "auditConfigure",
    AuthSchemaUpgrade = "authSchemaUpgrade",
    BypassDefaultMaxTimeMS = "bypassDefaultMaxTimeMS",
    BypassDocumentValidation = "bypassDocumentValidation",
    BypassWriteBlockingMode = "bypassWriteBlockingMode",
    ChangeCustomData = "changeCustomData",
    ChangeOwnCustomData = "changeOwnCustomData",
    ChangeOwnPassword = "changeOwnPassword",
    ChangePassword = "changePassword",
    ChangeStream = "changeStream",
    CheckFreeMonitoringStatus = "checkFreeMonitoringStatus",
    CheckMetadataConsistency = "checkMetadataConsistency",
    CleanupOrphaned = "cleanupOrphaned",
    ClearJumboFlag = "clearJumboFlag",
    CollMod = "collMod",
    CollStats = "collStats",
    Compact = "compact",
    CompactStructuredEncryptionData = "compactStructuredEncryptionData",
    ConfigureQueryAnalyzer = "configureQueryAnalyzer",
    ConnPoolStats = "connPoolStats",
    ConnPoolSync = "connPoolSync",
    ConvertToCapped = "convertToCapped",
    CreateCollection = "createCollection",
    CreateIndex = "createIndex",
    CreateRole = "createRole",
    CreateSearchIndexes = "createSearchIndexes",
    CreateUser = "createUser",
    DbCheck = "dbCheck",
    DbHash = "dbHash",
    DbStats = "dbStats",
    DropCollection = "dropCollection",
    DropConnections = "dropConnections",
    DropDatabase = "dropDatabase",
    DropIndex = "dropIndex",
    DropRole = "dropRole",
    DropSearchIndex = "dropSearchIndex",
    DropUser = "dropUser",
    EnableProfiler = "enableProfiler",
    EnableSharding = "enableSharding",
    ExportCollection = "exportCollection",
    Find = "find",
    FlushRouterConfig = "flushRouterConfig",
    ForceUUID = "forceUUID",
    Fsync = "fsync",
    GetChangeStreamState = "getChangeStreamState",
    GetClusterParameter = "getClusterParameter",
    GetCmdLineOpts = "getCmdLineOpts",
    GetDatabaseVersion = "getDatabaseVersion",
    GetDefaultRWConcern = "getDefaultRWConcern",
    GetLog = "getLog",
    GetParameter = "getParameter",
    GetShardMap = "getShardMap",
    GetShardVersion = "getShardVersion",
    GrantRole = "grantRole",
    HostInfo = "hostInfo",
    Impersonate = "impersonate",
    ImportCollection = "importCollection",
    IndexStats = "indexStats",
    Inprog = "inprog",
    Insert = "insert",
    Internal = "internal",
    InvalidateUserCache = "invalidateUserCache",
    IssueDirectShardOperations = "issueDirectShardOperations",
    KillAnyCursor = "killAnyCursor",
    KillAnySession = "killAnySession",
    KillCursors = "killCursors",
    Killop = "killop",
    ListCachedAndActiveUsers = "listCachedAndActiveUsers",
    ListClusterCatalog = "listClusterCatalog",
    ListCollections = "listCollections",
    ListDatabases = "listDatabases",
    ListIndexes = "listIndexes",
    ListSearchIndexes = "listSearchIndexes",
    ListSessions = "listSessions",
    ListShards = "listShards",
    LogRotate = "logRotate",
    MoveChunk = "moveChunk",
    MoveCollection = "moveCollection",
    Netstat = "netstat",
    OidReset = "oidReset",
    OperationMetrics = "operationMetrics",
    PlanCacheIndexFilter = "planCacheIndexFilter",
    PlanCacheRead = "planCacheRead",
    PlanCacheWrite = "planCacheWrite",
    QuerySettings = "querySettings",
    QueryStatsRead = "queryStatsRead",
    QueryStatsReadTransformed = "queryStatsReadTransformed",
    ReIndex = "reIndex",
    RefineCollectionShardKey = "refineCollectionShardKey",
    ReleaseMemory = "releaseMemory",
    Remove = "remove",
    RemoveShard = "removeShard",
    RenameCollectionSameDB = "renameCollectionSameDB",
    ReplSetConfigure = "replSetConfigure",
    ReplSetGetConfig = "replSetGetConfig",
    ReplSetGetStatus = "replSetGetStatus",
    ReplSetResizeOplog = "replSetResizeOplog",
    ReplSetStateChange = "replSetStateChange",
    ReshardCollection = "reshardCollection",
    Resync = "resync",
    RevokeRole = "revokeRole",
    RotateCertificates = "rotateCertificates",
    RunTenantMigration = "runTenantMigration",
    ServerStatus = "serverStatus",
    SetAuthenticationRestriction = "setAuthenticationRestriction",
    SetChangeStreamState = "setChangeStreamState",
    SetClusterParameter = "setClusterParameter",
    SetDefaultRWConcern = "setDefaultRWConcern",
    SetFeatureCompatibilityVersion = "setFeatureCompatibilityVersion",
    SetFreeMonitoring = "setFreeMonitoring",
    SetParameter = "setParameter",
    SetUserWriteBlockMode = "setUserWriteBlockMode",
    ShardedDataDistribution = "shardedDataDistribution",
    ShardingState = "shardingState",
    Shutdown = "shutdown",
    SplitChunk = "splitChunk",
    SplitVector = "splitVector",
    StorageDetails = "storageDetails",
    Top = "top",
    Touch = "touch",
    TrafficRecord = "trafficRecord",
    TransitionFromDedicatedConfigServer = "transitionFromDedicatedConfigServer",
    TransitionToDedicatedConfigServer = "transitionToDedicatedConfigServer",
    Unlock = "unlock",
    UnshardCollection = "unshardCollection",
    Update = "update",
    UpdateSearchIndex = "updateSearchIndex",
    UseTenant = "useTenant",
    UseUUID = "useUUID",
    Validate = "validate",
    ValidateDBMetadata = "validateDBMetadata",
    ViewRole = "viewRole",
    ViewUser = "viewUser",
}

/// 64-bit words that hold one bit for every action.
const WORDS: usize = Action::ALL.len().div_ceil(64);

/// A set of actions, one bit each.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct ActionSet([u64; WORDS]);

impl ActionSet {
    pub const EMPTY: ActionSet = ActionSet([0; WORDS]);

    pub const fn of(actions: &[Action]) -> ActionSet {
        let mut set = ActionSet::EMPTY;
        let mut next = 0;
        while next < actions.len() {
            let bit = actions[next] as usize;
            set.0[bit / 64] |= 1 << (bit % 64);
            next += 1;
        }
        set
    }

    pub const fn union(mut self, other: ActionSet) -> ActionSet {
        let mut word = 0;
        while word < WORDS {
            self.0[word] |= other.0[word];
            word += 1;
        }
        self
    }

    #[must_use]
    pub fn difference(mut self, other: ActionSet) -> ActionSet {
        for (word, removed) in self.0.iter_mut().zip(other.0) {
            *word &= !removed;
        }
        self
    }

    pub fn insert(&mut self, action: Action) {
        *self = self.union(ActionSet::of(&[action]));
    }

    /// `anyAction` stands for all of them.
    pub fn allows(self, action: Action) -> bool {
        self.contains(action) || self.contains(Action::AnyAction)
    }

    pub fn contains(self, action: Action) -> bool {
        let bit = action as usize;
        self.0[bit / 64] & (1 << (bit % 64)) != 0
    }

    /// Whether everything that `other` allows is allowed by this set.
    pub fn allows_all(self, other: ActionSet) -> bool {
        self.contains(Action::AnyAction) || self.union(other) == self
    }

    pub fn is_empty(self) -> bool {
        self == ActionSet::EMPTY
    }

    /// In the order of their names.
    pub fn iter(self) -> impl Iterator<Item = Action> {
        Action::ALL
            .iter()
            .copied()
            .filter(move |action| self.contains(*action))
    }
}

impl fmt::Debug for ActionSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set()
            .entries(self.iter().map(Action::name))
            .finish()
    }
}

impl FromIterator<Action> for ActionSet {
    fn from_iter<I: IntoIterator<Item = Action>>(actions: I) -> ActionSet {
        let mut set = ActionSet::EMPTY;
        for action in actions {
            set.insert(action);
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_action_is_found_by_its_name_and_names_are_in_order() {
        for pair in Action::ALL.windows(2) {
            assert!(pair[0].name() < pair[1].name());
        }
        for action in Action::ALL {
            assert_eq!(Action::from_name(action.name()), Some(*action));
            let set = ActionSet::of(&[*action]);
            assert_eq!(set.iter().collect::<Vec<_>>(), [*action]);
        }
        assert_eq!(Action::from_name("Find"), None);
    }

    #[test]
    fn any_action_allows_all_and_is_no_other() {
        let any = ActionSet::of(&[Action::AnyAction]);
        assert!(any.allows(Action::Find) && !any.contains(Action::Find));
        assert!(any.allows_all(ActionSet::of(Action::ALL)));
        let find = ActionSet::of(&[Action::Find]);
        assert!(!find.allows_all(any) && find.allows_all(ActionSet::EMPTY));
        assert!(find.difference(find).is_empty());
    }
}
