//! MongoDB's error codes and their names, as one table.

macro_rules! codes {
    ($($name:ident = $code:literal,)*) => {
        /// An error code of the protocol. Codes that have a number and no name of their own are
        /// `Location(number)`, as in MongoDB.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum ErrorCode {
            $($name,)*
            Location(u32),
        }

        impl ErrorCode {
            /// The number that travels in `code`.
            pub const fn code(self) -> i32 {
                match self {
                    $(ErrorCode::$name => $code,)*
                    ErrorCode::Location(number) => number as i32,
                }
            }

            /// The word that travels in `codeName`.
            pub fn name(self) -> std::borrow::Cow<'static, str> {
                match self {
                    $(ErrorCode::$name => stringify!($name).into(),)*
                    ErrorCode::Location(number) => format!("Location{}", number as i32).into(),
                }
            }

            pub const fn from_code(code: i32) -> ErrorCode {
                match code {
                    $($code => ErrorCode::$name,)*
                    other => ErrorCode::Location(other as u32),
                }
            }
        }
    };
}

codes! {
    OK = 0,
    InternalError = 1,
    BadValue = 2,
    NoSuchKey = 4,
    GraphContainsCycle = 5,
    HostUnreachable = 6,
    HostNotFound = 7,
    UnknownError = 8,
    FailedToParse = 9,
    CannotMutateObject = 10,
    UserNotFound = 11,
    UnsupportedFormat = 12,
    Unauthorized = 13,
    TypeMismatch = 14,
    Overflow = 15,
    InvalidLength = 16,
    ProtocolError = 17,
    AuthenticationFailed = 18,
    CannotReuseObject = 19,
    IllegalOperation = 20,
    EmptyArrayOperation = 21,
    InvalidBSON = 22,
    AlreadyInitialized = 23,
    LockTimeout = 24,
    RemoteValidationError = 25,
    NamespaceNotFound = 26,
    IndexNotFound = 27,
    PathNotViable = 28,
    NonExistentPath = 29,
    InvalidPath = 30,
    RoleNotFound = 31,
    RemoteChangeDetected = 36,
    FileRenameFailed = 37,
    FileStreamFailed = 39,
    ConflictingUpdateOperators = 40,
    CursorNotFound = 43,
    LockBusy = 46,
    NoMatchingDocument = 47,
    NamespaceExists = 48,
    InvalidRoleModification = 49,
    MaxTimeMSExpired = 50,
    ManualInterventionRequired = 51,
    DollarPrefixedFieldName = 52,
    InvalidIdField = 53,
    NotSingleValueField = 54,
    InvalidDBRef = 55,
    EmptyFieldName = 56,
    DottedFieldName = 57,
    CommandNotFound = 59,
    ShardKeyNotFound = 61,
    OplogOperationUnsupported = 62,
    WriteConcernFailed = 64,
    MultipleErrorsOccurred = 65,
    ImmutableField = 66,
    CannotCreateIndex = 67,
    IndexAlreadyExists = 68,
    ShardNotFound = 70,
    ReplicaSetNotFound = 71,
    InvalidOptions = 72,
    InvalidNamespace = 73,
    NodeNotFound = 74,
    NoReplicationEnabled = 76,
    OperationIncomplete = 77,
    UnknownReplWriteConcern = 79,
    IndexOptionsConflict = 85,
    IndexKeySpecsConflict = 86,
    CannotSplit = 87,
    NetworkTimeout = 89,
    CallbackCanceled = 90,
    ShutdownInProgress = 91,
    SecondaryAheadOfPrimary = 92,
    InvalidReplicaSetConfig = 93,
    NotYetInitialized = 94,
    NotSecondary = 95,
    OperationFailed = 96,
    DBPathInUse = 98,
    UnsatisfiableWriteConcern = 100,
    OutdatedClient = 101,
    NewReplicaSetConfigurationIncompatible = 103,
    NodeNotElectable = 104,
    IncompatibleShardingMetadata = 105,
    LockFailed = 107,
    InconsistentReplicaSetNames = 108,
    ConfigurationInProgress = 109,
    CannotInitializeNodeWithData = 110,
    NotExactValueField = 111,
    WriteConflict = 112,
    InitialSyncFailure = 113,
    CommandNotSupported = 115,
    DocTooLargeForCapped = 116,
    ConflictingOperationInProgress = 117,
    NamespaceNotSharded = 118,
    InvalidSyncSource = 119,
    DocumentValidationFailure = 121,
    NotAReplicaSet = 123,
    CommandFailed = 125,
    RPCProtocolNegotiationFailed = 126,
    LockNotFound = 128,
    SymbolNotFound = 130,
    FailedToSatisfyReadPreference = 133,
    ReadConcernMajorityNotAvailableYet = 134,
    StaleTerm = 135,
    CappedPositionLost = 136,
    JSInterpreterFailure = 139,
    InvalidSSLConfiguration = 140,
    SSLHandshakeFailed = 141,
    CursorInUse = 143,
    PooledConnectionsDropped = 145,
    ExceededMemoryLimit = 146,
    ZLibError = 147,
    ReadConcernMajorityNotEnabled = 148,
    NoConfigPrimary = 149,
    StaleEpoch = 150,
    OperationCannotBeBatched = 151,
    ChunkTooBig = 153,
    InconsistentShardIdentity = 154,
    DurationOverflow = 159,
    MaxStalenessOutOfRange = 160,
    IncompatibleCollationVersion = 161,
    CollectionIsEmpty = 162,
    ZoneStillInUse = 163,
    InitialSyncActive = 164,
    ViewDepthLimitExceeded = 165,
    CommandNotSupportedOnView = 166,
    OptionNotSupportedOnView = 167,
    InvalidPipelineOperator = 168,
    CommandOnShardedViewNotSupportedOnMongod = 169,
    TooManyMatchingDocuments = 170,
    CannotIndexParallelArrays = 171,
    TransportSessionClosed = 172,
    QueryPlanKilled = 175,
    ZoneNotFound = 177,
    RangeOverlapConflict = 178,
    AmbiguousIndexKeyPattern = 181,
    InvalidViewDefinition = 182,
    ClientMetadataMissingField = 183,
    ClientMetadataAppNameTooLarge = 184,
    ClientMetadataDocumentTooLarge = 185,
    ClientMetadataCannotBeMutated = 186,
    LinearizableReadConcernError = 187,
    IncompatibleServerVersion = 188,
    PrimarySteppedDown = 189,
    FailPointEnabled = 192,
    NoShardingEnabled = 193,
    BalancerInterrupted = 194,
    ViewPipelineMaxSizeExceeded = 195,
    InvalidIndexSpecificationOption = 197,
    ReplicaSetMonitorRemoved = 199,
    ChunkRangeCleanupPending = 200,
    CannotBuildIndexKeys = 201,
    NetworkInterfaceExceededTimeLimit = 202,
    ShardingStateNotInitialized = 203,
    TimeProofMismatch = 204,
    ClusterTimeFailsRateLimiter = 205,
    NoSuchSession = 206,
    InvalidUUID = 207,
    TooManyLocks = 208,
    StaleClusterTime = 209,
    CannotVerifyAndSignLogicalTime = 210,
    KeyNotFound = 211,
    DuplicateSession = 213,
    DatabaseDropPending = 215,
    ElectionInProgress = 216,
    IncompleteTransactionHistory = 217,
    UpdateOperationFailed = 218,
    CloseChangeStream = 222,
    IllegalOpMsgFlag = 223,
    QueryFeatureNotAllowed = 224,
    TransactionTooOld = 225,
    AtomicityFailure = 226,
    CannotImplicitlyCreateCollection = 227,
    SessionTransferIncomplete = 228,
    DNSHostNotFound = 230,
    MaxSubPipelineDepthExceeded = 232,
    TooManyDocumentSequences = 233,
    RetryChangeStream = 234,
    CursorKilled = 237,
    NotImplemented = 238,
    SnapshotTooOld = 239,
    ConversionFailure = 241,
    CannotCreateCollection = 242,
    SnapshotUnavailable = 246,
    StaleDbVersion = 249,
    StaleChunkHistory = 250,
    NoSuchTransaction = 251,
    TransactionCommitted = 256,
    TransactionTooLarge = 257,
    InvalidResumeToken = 260,
    TooManyLogicalSessions = 261,
    ExceededTimeLimit = 262,
    OperationNotSupportedInTransaction = 263,
    TooManyFilesOpen = 264,
    OrphanedRangeCleanUpFailed = 265,
    FailPointSetFailed = 266,
    PreparedTransactionInProgress = 267,
    MigrationConflict = 272,
    IndexBuildAborted = 276,
    UnsatisfiableCommitQuorum = 278,
    ClientDisconnect = 279,
    ChangeStreamFatalError = 280,
    WouldChangeOwningShard = 283,
    IndexBuildAlreadyInProgress = 285,
    ChangeStreamHistoryLost = 286,
    ChecksumMismatch = 288,
    NoQueryExecutionPlans = 291,
    QueryExceededMemoryLimitNoDiskUseAllowed = 292,
    InvalidServerType = 298,
    DataCorruptionDetected = 301,
    ShardInvalidatedForTargeting = 304,
    CurrentConfigNotCommittedYet = 310,
    ObjectIsBusy = 316,
    APIVersionError = 322,
    APIStrictError = 323,
    APIDeprecationError = 324,
    MechanismUnavailable = 334,
    AuditingNotEnabled = 344,
    RuntimeAuditConfigurationNotEnabled = 345,
    APIMismatchError = 347,
    CannotConvertIndexToUnique = 359,
    CollectionUUIDMismatch = 361,
    UserWritesBlocked = 371,
    CannotDropShardKeyIndex = 373,
    QueryRejectedBySettings = 403,
    SocketException = 9001,
    NotWritablePrimary = 10107,
    BSONObjectTooLarge = 10334,
    DuplicateKey = 11000,
    InterruptedAtShutdown = 11600,
    Interrupted = 11601,
    InterruptedDueToReplStateChange = 11602,
    NotARetryableWriteCommand = 50768,
    BackgroundOperationInProgressForDatabase = 12586,
    BackgroundOperationInProgressForNamespace = 12587,
    MergeStageNoMatchingDocument = 13113,
    DatabaseDifferCase = 13297,
    StaleConfig = 13388,
    NotPrimaryNoSecondaryOk = 13435,
    NotPrimaryOrSecondary = 13436,
    OutOfDiskSpace = 14031,
    SearchNotEnabled = 31082,
    ClientMarkedKilled = 46841,
}

impl ErrorCode {
    /// The member can't take the request now and another one (or the same one, later) can.
    pub fn is_not_primary(self) -> bool {
        matches!(
            self,
            ErrorCode::NotWritablePrimary
                | ErrorCode::NotPrimaryNoSecondaryOk
                | ErrorCode::NotPrimaryOrSecondary
                | ErrorCode::InterruptedDueToReplStateChange
                | ErrorCode::PrimarySteppedDown
        )
    }

    pub fn is_shutdown(self) -> bool {
        matches!(
            self,
            ErrorCode::ShutdownInProgress | ErrorCode::InterruptedAtShutdown
        )
    }

    /// A driver may send a numbered write again, once, that failed so.
    pub fn is_retryable(self) -> bool {
        self.is_not_primary()
            || self.is_shutdown()
            || self.is_network()
            || self == ErrorCode::ExceededTimeLimit
    }

    /// The router's picture of a collection or database is out of date.
    pub fn is_stale_routing(self) -> bool {
        matches!(
            self,
            ErrorCode::StaleConfig
                | ErrorCode::StaleDbVersion
                | ErrorCode::StaleEpoch
                | ErrorCode::ShardInvalidatedForTargeting
        )
    }

    pub fn is_network(self) -> bool {
        matches!(
            self,
            ErrorCode::HostUnreachable
                | ErrorCode::HostNotFound
                | ErrorCode::NetworkTimeout
                | ErrorCode::SocketException
                | ErrorCode::NetworkInterfaceExceededTimeLimit
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_names_go_both_ways() {
        for code in [2, 59, 11000, 13388, 10107, 292] {
            let parsed = ErrorCode::from_code(code);
            assert!(!matches!(parsed, ErrorCode::Location(_)), "{code}");
            assert_eq!(parsed.code(), code);
        }
        assert_eq!(ErrorCode::DuplicateKey.name(), "DuplicateKey");
        assert_eq!(ErrorCode::from_code(40324).name(), "Location40324");
        assert_eq!(ErrorCode::from_code(40324).code(), 40324);
    }
}
